"""All imports lazy, as ``PYTHON_LAZY_IMPORTS=all`` has them on CPython 3.15: public modules, ways in, the plugin."""

from __future__ import annotations

import pkgutil
import sys
from pathlib import Path

import pytest
from support.common import PLUGIN, python

import ebbpool

pytestmark = pytest.mark.skipif(sys.version_info < (3, 15), reason="before CPython 3.15 imports are never lazy")

LAZY = {"PYTHON_LAZY_IMPORTS": "all"}
PUBLIC = [module.name for module in pkgutil.iter_modules(ebbpool.__path__) if not module.name.startswith("_")]
NEEDS = {"anyio": "anyio", "celery": "celery", "dask": "distributed", "django": "django", "gunicorn": "gunicorn"}


def lines_of(*arguments: str, **environ: str) -> list[str]:
    done = python(*arguments, **LAZY, **environ)
    assert (done.returncode, done.stderr) == (0, ""), done.stderr + done.stdout
    return done.stdout.splitlines()


@pytest.mark.parametrize("name", PUBLIC)
def test_each_public_module_has_what_it_names(name: str) -> None:
    if name in NEEDS:
        pytest.importorskip(NEEDS[name])
    script = f"""
import ebbpool.{name} as module
assert all(hasattr(module, name) for name in getattr(module, "__all__", ()))
import ebbpool
print(ebbpool.COMPILED)
"""
    assert lines_of("-W", "ignore", "-c", script) == [str(ebbpool.COMPILED)]


WAYS = """
import asyncio
import threading
import anyio
import ebbpool
from ebbpool.aio import new_loop_factory

def name():
    return threading.current_thread().name.partition("_")[0]

async def main():
    names = {await asyncio.to_thread(name), await anyio.to_thread.run_sync(name)}
    return names | {await installed.executor.run(name)}
"""


def test_install_and_its_end() -> None:
    pytest.importorskip("anyio")
    script = """
with ebbpool.AdaptiveExecutor(thread_name_prefix="pool") as pool:
    with ebbpool.install(pool) as installed:
        print(asyncio.run(main()), installed.executor.submit(pow, 2, 3).result())
        with asyncio.Runner(loop_factory=new_loop_factory()) as runner:
            print(runner.run(main()))
    print(asyncio.run(asyncio.to_thread(name)), anyio.run(anyio.to_thread.run_sync, name))
"""
    assert lines_of("-c", WAYS + script) == ["{'pool'} 8", "{'pool'}", "asyncio AnyIO worker thread"]


def test_a_program_under_run(tmp_path: Path) -> None:
    pytest.importorskip("anyio")
    program = tmp_path / "program.py"
    program.write_text(f"{WAYS}\ninstalled = ebbpool.install()\nprint(asyncio.run(main()))", encoding="utf-8")
    assert lines_of("-m", "ebbpool", "run", str(program)) == ["{'ebbpool'}"]


def test_the_plugin(tmp_path: Path) -> None:
    """pytest itself cannot be imported so: all imports of ebbpool's are lazy here, and no others."""
    (tmp_path / "lazy.py").write_text(
        """
import sys
sys.set_lazy_imports_filter(lambda importer, name, names: importer.startswith(("ebbpool", "_ebbpool")))
sys.set_lazy_imports("all")
""",
        encoding="utf-8",
    )
    (tmp_path / "test_plugin.py").write_text(
        """
import asyncio
import ebbpool

kept = []

def test_fixture(adaptive_executor):
    async def main():
        return await adaptive_executor.run(pow, 2, 3)
    assert asyncio.run(main()) == 8

def test_leak():
    kept.append(ebbpool.AdaptiveExecutor())
""",
        encoding="utf-8",
    )
    options = ("-p", "lazy", *PLUGIN, "--ebbpool-leaks", "--ebbpool-grace=0.1", "-p", "no:cacheprovider", "-q")
    done = python("-m", "pytest", *options, str(tmp_path), cwd=tmp_path)
    assert "2 passed, 1 error" in done.stdout, done.stdout + done.stderr
    assert "is open: it was never shut down" in done.stdout
