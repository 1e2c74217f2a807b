"""Every warning that the package logs, and every reason of a decision, has its entry in the documentation."""

from __future__ import annotations

import ast
import re
from collections.abc import Iterator
from pathlib import Path

import pytest
from support.common import HOME

SOURCES = Path(HOME) / "ebbpool"
PAGE = Path(__file__).parent.parent / "docs/incidents/warnings.md"
LOGGING = {"warning", "error", "critical", "exception", "complain"}
SPOKEN = {"why", "_at_limit", "_for_those_under_way", "_text", "_warn"}
"""Functions that return a part of what is logged, or of a reason."""

pytestmark = pytest.mark.skipif(not PAGE.exists(), reason="the documentation is not here")


def pattern(text: ast.expr) -> str | None:
    """Return a pattern for the first line of what a string in the source may become; None if it says nothing."""
    if isinstance(text, ast.Constant) and isinstance(text.value, str):
        parts = re.split(r"%[rsd]|%\.\df", text.value)
    elif isinstance(text, ast.JoinedStr):
        parts = [""]
        for value in text.values:
            if isinstance(value, ast.Constant):
                parts[-1] += str(value.value)
            else:
                parts.append("")
    else:
        return None
    kept: list[str] = []
    for part in parts:
        line, end, _ = part.partition("\n")
        kept.append(re.escape(line))
        if end:
            break
    return ".*".join(kept) if any(len(part) > 2 for part in parts) else None


def said(tree: ast.AST) -> Iterator[ast.expr]:
    """Yield the strings in a module that are logged, warned of, or told as a reason."""
    for node in ast.walk(tree):
        if isinstance(node, ast.Call) and node.args:
            name = ast.unparse(node.func)
            if name == "Complaint":
                yield node.args[1]
            elif name == "warnings.warn" or (name.rpartition(".")[2] in LOGGING and "parser" not in name):
                yield node.args[0]
        elif isinstance(node, ast.FunctionDef) and node.name in SPOKEN:
            body = [part for statement in node.body for part in ast.walk(statement)]
            # A docstring is neither returned nor assigned.
            values = [part.value for part in body if isinstance(part, (ast.Return, ast.Assign))]
            yield from (value for value in values if value is not None)
        elif isinstance(node, ast.Assign) and ast.unparse(node.targets[0]) == "self._cause":
            yield node.value
        elif isinstance(node, ast.Assign) and ast.unparse(node.targets[0]) == "why":
            yield from (part for part in ast.walk(node.value) if isinstance(part, ast.expr))


EVENT = re.compile(r"""(?:eport|log)\(\s*(?:logging\.\w+, )?"(\w+)"|: \("(\w+)", logging\.\w+\),""")
"""How the name of an event that `_prefork` logs stands in its source."""


def messages() -> set[str]:
    found = set()
    for path in SOURCES.rglob("*.py"):
        for text in said(ast.parse(path.read_text(encoding="utf-8"))):
            if (each := pattern(text)) is not None:
                found.add(each)
    return found


def entries() -> list[str]:
    """Return the messages that the page explains: terms of its lists."""
    return re.findall(r"^`([^`\n]+)`\n: ", PAGE.read_text(encoding="utf-8"), flags=re.MULTILINE)


def test_every_warning_and_every_reason_has_its_entry() -> None:
    known = entries()
    found = messages()
    assert len(found) > 30
    assert [each for each in sorted(found) if not any(re.search(each, entry) for entry in known)] == []


def test_every_entry_is_about_something_that_is_said() -> None:
    found = messages()
    assert [entry for entry in entries() if not any(re.search(each, entry) for each in found)] == []


def test_every_event_of_prefork_has_its_entry() -> None:
    sources = "".join(path.read_text("utf-8") for path in (SOURCES / "_prefork").glob("*.py"))
    named = {name for found in EVENT.findall(sources) for name in found if name}
    rows = re.findall(r"^\| (`.*?`) \|", PAGE.read_text(encoding="utf-8"), flags=re.MULTILINE)
    assert named == {name for row in rows for name in re.findall(r"`(\w+)`", row)}
