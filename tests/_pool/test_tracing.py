"""OpenTelemetry and Sentry: a task belongs to the request that submitted it, whatever was imported or set up first."""

from __future__ import annotations

import pytest
from support.common import output_of
from support.pages import is_here

OPENTELEMETRY = """
    from opentelemetry import context, trace
    from opentelemetry.instrumentation.threading import ThreadingInstrumentor

    def instrument():
        ThreadingInstrumentor().instrument()

    def uninstrument():
        ThreadingInstrumentor().uninstrument()

    @contextmanager
    def request(number):
        span = trace.NonRecordingSpan(trace.SpanContext(number, number, False))
        token = context.attach(trace.set_span_in_context(span))
        try:
            yield
        finally:
            context.detach(token)

    def seen(*_):
        return trace.get_current_span().get_span_context().trace_id
"""
SENTRY = """
    import sentry_sdk
    from sentry_sdk.integrations.threading import ThreadingIntegration
    from sentry_sdk.transport import Transport

    class Nowhere(Transport):
        def capture_envelope(self, envelope):
            pass

    def start(*integrations):
        sentry_sdk.init(
            "http://key@localhost/1",
            transport=Nowhere,
            default_integrations=False,
            auto_enabling_integrations=False,
            integrations=integrations,
        )

    def instrument():
        start(ThreadingIntegration(propagate_scope=True))

    def uninstrument():
        start()

    @contextmanager
    def request(number):
        with sentry_sdk.isolation_scope() as scope:
            scope.set_tag("request", number)
            yield

    def seen(*_):
        return sentry_sdk.get_isolation_scope()._tags.get("request", 0)
"""
PRELUDE = """
    import asyncio, sys, threading
    from contextlib import contextmanager

    def collect(submit, numbers=(1, 2, 3)):
        futures = []
        for number in numbers:
            with request(number):
                futures.append(submit(seen))
        return [future.result(20) for future in futures]
"""
TOOLS = {
    "opentelemetry": ("opentelemetry.instrumentation.threading", OPENTELEMETRY),
    "sentry": ("sentry_sdk", SENTRY),
}


@pytest.fixture(params=TOOLS)
def tool(request: pytest.FixtureRequest) -> str:
    """Source that defines `instrument`, `uninstrument`, `request(number)` and `seen()`."""
    module, source = TOOLS[request.param]
    if not is_here(module):
        pytest.skip(f"{module} is not installed")
    return PRELUDE + source


@pytest.mark.parametrize(("first", "then"), [("instrument()", "import ebbpool"), ("import ebbpool", "instrument()")])
def test_instrumented_before_the_pool_is_made(tool: str, first: str, then: str) -> None:
    script = f"""
        {first}
        {then}
        from ebbpool import AdaptiveExecutor

        begun = []
        with AdaptiveExecutor(1, initializer=lambda: begun.append(seen())) as pool:
            print(collect(pool.submit), begun)
            with pool.session() as session:
                print(collect(session.submit))
    """
    assert output_of(script, tool) == ["[1, 2, 3] [0]", "[1, 2, 3]"]


def test_a_worker_that_was_started_under_instrumentation_carries_no_request(tool: str) -> None:
    script = """
        from ebbpool import AdaptiveExecutor
        from support.seams import in_timekeeper

        instrument()
        with AdaptiveExecutor(1) as pool:
            with request(1):
                pool.submit(int).result(20)
            uninstrument()
            found = []
            over = threading.Event()
            in_timekeeper(lambda: (found.append(seen()), over.set()))
            assert over.wait(20)
            print(collect(pool.submit), found)
    """
    assert output_of(script, tool) == ["[0, 0, 0] [0]"]


def test_every_way_in_from_a_loop(tool: str) -> None:
    script = """
        from ebbpool import AdaptiveExecutor, aio
        instrument()

        async def handle(number, call):
            with request(number):
                return await call()

        async def main(pool):
            loop = asyncio.get_running_loop()
            loop.set_default_executor(pool)

            async def mapped():
                return {result async for result in pool.amap(seen, range(20))}.pop()

            for call in (
                lambda: pool.run(seen),
                lambda: lane.run(seen),
                lambda: loop.run_in_executor(None, seen),
                lambda: loop.run_in_executor(lane, seen),
                lambda: asyncio.to_thread(seen),
                mapped,
            ):
                print(await asyncio.gather(*(handle(number, call) for number in (1, 2, 3))))

        for factory in (asyncio.new_event_loop, aio.new_loop_factory()):
            with AdaptiveExecutor(2) as pool, asyncio.Runner(loop_factory=factory) as runner:
                lane = pool.lane("lane", limit=1)
                runner.run(main(pool))
    """
    assert output_of(script, tool) == ["[1, 2, 3]"] * 12
