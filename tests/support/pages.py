"""The examples in the documents, and the packages that they need."""

from __future__ import annotations

import ast
import importlib.util
import re
from collections.abc import Iterator
from pathlib import Path

import pytest
from sybil.document import Document
from sybil.parsers.myst import CodeBlockParser

from support.common import output_of

ROOT = Path(__file__).parent.parent.parent
PACKAGES = (
    "a2wsgi",
    "aiohttp",
    "anyio",
    "apscheduler",
    "asgiref",
    "celery",
    "dask",
    "distributed",
    "django",
    "fastapi",
    "flask",
    "grpc",
    "gunicorn",
    "httpx",
    "joblib",
    "litestar",
    "mcp",
    "numpy",
    "opentelemetry.sdk",
    "prometheus_client",
    "pydantic_ai",
    "pytest",
    "sqlalchemy",
    "starlette",
    "threadpoolctl",
    "twisted",
    "uvicorn",
    "uvloop",
)
"""What examples may need and do without."""
OURS = {f"ebbpool.{name}": name for name in ("anyio", "celery", "django", "gunicorn")} | {
    "ebbpool.dask": "distributed",
    "ebbpool.opentelemetry": "opentelemetry.sdk",
    "ebbpool.prometheus": "prometheus_client",
}
"""What modules of ours need."""


PYTHON = CodeBlockParser("python", evaluator=lambda example: None)


def blocks_of(page: Path, heading: str = "") -> list[str]:
    """Return the code of the examples of a page, from the first line on that begins with `heading`."""
    lines = page.read_text(encoding="utf-8").splitlines()
    start = next(number for number, line in enumerate(lines, 1) if line.startswith(heading))
    return [str(example.parsed) for example in Document.parse(str(page), PYTHON).examples() if example.line > start]


def changes_of(page: Path) -> list[str]:
    """Return the changes that a page has, one for each block."""
    return re.findall(r"```diff\n(.*?)```", page.read_text(encoding="utf-8"), re.S)


def changed(code: str, change: str) -> str:
    """Return code after a change, whose parts are separated by ``@@``."""
    for hunk in change.split("@@\n"):
        lines = [(line[:1], line[1:]) for line in hunk.splitlines(keepends=True)]
        old = "".join(line for kind, line in lines if kind != "+")
        assert code.count(old) == 1, f"not once in the code:\n{old}"
        code = code.replace(old, "".join(line for kind, line in lines if kind != "-"))
    return code


def imported(code: str) -> Iterator[str]:
    """Yield the modules that code imports, and what ours among them need."""
    for node in ast.walk(ast.parse(code)):
        if isinstance(node, ast.Import):
            names = [alias.name for alias in node.names]
        elif isinstance(node, ast.ImportFrom):
            names = [node.module or ""]
        else:
            continue
        yield from (OURS.get(name, name) for name in names)


def is_here(package: str) -> bool:
    try:
        return importlib.util.find_spec(package) is not None
    except ModuleNotFoundError:
        return False


def skip_without_packages(code: str) -> None:
    wanted = {package for name in imported(code) for package in PACKAGES if f"{name}.".startswith(f"{package}.")}
    if missing := sorted(package for package in wanted if not is_here(package)):
        pytest.skip(f"not installed here: {', '.join(missing)}")


def use_example(place: str, use: str, number: int = 0) -> list[str]:
    """Return the lines that are printed by an example in docs/integrations, and `use` of it.

    The place is a page, and a heading on it if it is not the page's first one: ``more#gRPC``. If it is empty, there is
    no example.
    """
    page, _, heading = place.partition("#")
    file = ROOT / "docs" / "integrations" / f"{page}.md"
    code = use if not page else f"{blocks_of(file, heading and f'## {heading}')[number]}\n{use}"
    skip_without_packages(code)
    return output_of(code)
