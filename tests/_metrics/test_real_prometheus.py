"""A FastAPI application under load, scraped by a real Prometheus server and by OpenTelemetry's in-memory reader.

It needs the program `prometheus`, fastapi and uvicorn, and is skipped without them.
"""

from __future__ import annotations

import importlib.util
import json
import os
import shutil
import signal
import subprocess
import sys
import textwrap
import threading
import urllib.error
import urllib.parse
import urllib.request
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
from support.common import TIMEOUT, Background, eventually
from support.metrics import TIMES, told_by
from support.serve import environment
from support.server import reserved_port

from ebbpool._metrics.table import METRICS

PROMETHEUS = shutil.which("prometheus")
for package in ("fastapi", "uvicorn", "prometheus_client", "opentelemetry"):
    if importlib.util.find_spec(package) is None:
        pytest.skip(f"not installed here: {package}", allow_module_level=True)
pytest.importorskip("opentelemetry.sdk.metrics")
if PROMETHEUS is None:
    pytest.skip("no prometheus here", allow_module_level=True)

APP = """
    import sys
    import threading
    import time
    from contextlib import asynccontextmanager
    from dataclasses import asdict

    import uvicorn
    from fastapi import FastAPI
    from opentelemetry.sdk.metrics import MeterProvider
    from opentelemetry.sdk.metrics.export import InMemoryMetricReader
    from prometheus_client import CollectorRegistry, make_asgi_app

    from ebbpool import AdaptiveExecutor
    from ebbpool.anyio import install
    from ebbpool.opentelemetry import instrument
    from ebbpool.prometheus import PoolCollector

    registry = CollectorRegistry()
    reader = InMemoryMetricReader()
    gate = threading.Event()

    @asynccontextmanager
    async def lifespan(app):
        async with AdaptiveExecutor(4, thread_name_prefix="web", max_queue=100, keep_alive=600) as pool:
            with install(pool), instrument(MeterProvider([reader]), sample=1 / 4):
                app.state.pool, app.state.lane = pool, pool.lane("reports", limit=1)
                PoolCollector(sample=1 / 4, registry=registry)
                yield

    app = FastAPI(lifespan=lifespan)
    app.mount("/metrics", make_asgi_app(registry))

    @app.get("/work")
    def work():
        time.sleep(0.002)  # the work of a request, which the histogram shows; nothing waits for it to pass

    @app.get("/hold")
    def hold():
        gate.wait()

    @app.get("/report")
    async def report():
        app.state.lane.submit(gate.wait)

    @app.get("/open")
    async def open_gate():
        gate.set()

    @app.get("/stats")
    async def stats():
        return asdict(app.state.pool.stats()) | {"lane": asdict(app.state.lane.stats())}

    @app.get("/otel")
    async def otel():
        data = reader.get_metrics_data()
        return [
            [metric.name, dict(point.attributes), getattr(point, "value", None) or getattr(point, "count", 0)]
            for metric in data.resource_metrics[0].scope_metrics[0].metrics
            for point in metric.data.data_points
        ]

    uvicorn.run(app, host="127.0.0.1", port=int(sys.argv[1]), log_level="warning")
"""


def ask(url: str) -> Any:
    with urllib.request.urlopen(url, timeout=TIMEOUT) as response:
        return json.loads(response.read())


def answers(url: str) -> bool:
    try:
        with urllib.request.urlopen(url, timeout=TIMEOUT):
            return True
    except urllib.error.HTTPError as error:
        error.close()
    except OSError:
        pass
    return False


@contextmanager
def running(command: list[str], log: Path, url: str) -> Iterator[None]:
    with (
        log.open("w") as output,
        subprocess.Popen(command, env=environment(), cwd=log.parent, stdout=output, stderr=output) as process,
    ):
        try:
            eventually(lambda: process.poll() is not None or answers(url), f"{command[0]} answers")
            assert process.poll() is None, log.read_text()
            yield
            process.send_signal(signal.SIGTERM)
            assert process.wait(TIMEOUT) in (0, -signal.SIGTERM), log.read_text()
        finally:
            if process.poll() is None:
                process.kill()


@pytest.fixture
def ports() -> Iterator[tuple[int, int]]:
    with reserved_port() as one, reserved_port() as other:
        yield one, other


@pytest.mark.skipif(os.name != "posix", reason="it is stopped by a signal")
@pytest.mark.skipif(sys.implementation.name != "cpython", reason="the application takes too long to start")
def test_both_show_what_stats_shows(tmp_path: Path, ports: tuple[int, int]) -> None:
    port, own = ports
    site, prometheus = f"http://127.0.0.1:{port}", f"http://127.0.0.1:{own}"
    program, config = tmp_path / "app.py", tmp_path / "prometheus.yml"
    program.write_text(textwrap.dedent(APP))
    config.write_text(
        "global: {scrape_interval: 200ms, scrape_timeout: 200ms}\n"
        "scrape_configs:\n- job_name: app\n  metrics_path: /metrics/\n"
        f"  static_configs: [{{targets: ['127.0.0.1:{port}']}}]\n"
    )
    command = [
        str(PROMETHEUS),
        f"--config.file={config}",
        f"--storage.tsdb.path={tmp_path / 'data'}",
        f"--web.listen-address=127.0.0.1:{own}",
    ]

    def query(expression: str) -> list[dict[str, Any]]:
        asked = ask(f"{prometheus}/api/v1/query?query={urllib.parse.quote(expression)}")
        assert asked["status"] == "success"
        result: list[dict[str, Any]] = asked["data"]["result"]
        return result

    def shown_by_prometheus() -> dict[tuple[str, str, str], float]:
        found = {}
        for metric in METRICS:
            name = metric.prometheus_name + ("_total" if metric.kind == "counter" else "")
            for row in query(name):
                labels = row["metric"]
                assert (labels["pool"], labels["job"]) == ("web", "app")
                found[metric.name, labels.get("lane", ""), labels.get(metric.label, "")] = float(row["value"][1])
        return found

    def shown_by_opentelemetry() -> dict[tuple[str, str, str], float]:
        found = {}
        for name, attributes, value in ask(f"{site}/otel"):
            assert attributes.pop("ebbpool.pool.name") == "web"
            lane = attributes.pop("ebbpool.lane.name", "")
            found[name, lane, attributes.popitem()[1] if attributes else ""] = float(value)
        return found

    def told_by_stats() -> dict[tuple[str, str, str], float]:
        stats = ask(f"{site}/stats")
        return told_by(SimpleNamespace(**stats), {"reports": SimpleNamespace(**stats["lane"])})

    def without_times(found: dict[tuple[str, str, str], float]) -> dict[tuple[str, str, str], float]:
        return {key: value for key, value in found.items() if key[0] not in TIMES and "duration" not in key[0]}

    over = threading.Event()

    def load() -> int:
        answered = 0
        while not over.is_set():
            with urllib.request.urlopen(f"{site}/work", timeout=TIMEOUT) as response:
                answered += response.status == 200
        return answered

    with ExitStack() as stack:
        stack.enter_context(running([sys.executable, str(program), str(port)], tmp_path / "app.log", f"{site}/stats"))
        stack.enter_context(running(command, tmp_path / "prometheus.log", f"{prometheus}/-/ready"))
        clients = [Background(load) for _ in range(8)]
        eventually(lambda: query('rate(ebbpool_task_completions_total{outcome="completed"}[5s]) > 10'), "a rate")
        eventually(lambda: query('ebbpool_threads{state="busy"} > 0'), "busy threads")
        over.set()
        answered = sum(client.join() for client in clients)

        # A state that stands still: every thread is taken, requests and a task of the lane wait.
        for _ in range(2):
            ask(f"{site}/report")
        held = [Background(lambda: ask(f"{site}/hold")) for _ in range(6)]

        def all_are_there() -> bool:
            told = told_by_stats()
            return told["ebbpool.threads", "", "busy"] == 4 and told["ebbpool.queue.length", "", ""] == 3

        eventually(all_are_there, "every thread is taken, and requests wait")
        expected = told_by_stats()
        assert expected["ebbpool.task.completions", "", "completed"] == answered > 100
        assert expected["ebbpool.lane.queue.length", "reports", ""] == 1
        eventually(lambda: without_times(shown_by_prometheus()) == expected, "Prometheus shows what stats() shows")
        assert without_times(shown_by_opentelemetry()) == expected
        assert told_by_stats() == expected
        oldest = "ebbpool_queue_oldest_wait_seconds"
        before = float(query(oldest)[0]["value"][1])
        eventually(lambda: float(query(oldest)[0]["value"][1]) > before, "the wait grows")
        (samples,) = query("ebbpool_task_run_duration_seconds_count")
        assert 0 < float(samples["value"][1]) < answered
        (quantile,) = query("histogram_quantile(0.5, ebbpool_task_run_duration_seconds_bucket)")
        # The server interpolates within the bucket that begins at 0.001.
        assert 0.001 < float(quantile["value"][1]) < 1
        print(f"{answered} requests answered; half of the sampled ones ran for at most {quantile['value'][1]} s")
        for key, value in expected.items():
            print(*filter(None, key), "stats:", value, "Prometheus:", shown_by_prometheus()[key])

        ask(f"{site}/open")
        for request in held:
            request.join()
