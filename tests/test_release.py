"""What is said about the package in several places says the same."""

from __future__ import annotations

import ast
import re
import subprocess
import sys
import tomllib
import zipfile
from pathlib import Path
from typing import Any

import pytest

ROOT = Path(__file__).parent.parent
WORKFLOWS = ROOT / ".github/workflows"
NOXFILE = ast.parse((ROOT / "noxfile.py").read_text(encoding="utf-8"))
PYPROJECT: dict[str, Any] = tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))
PROJECT: dict[str, Any] = PYPROJECT["project"]


def supported() -> set[str]:
    """Return the Pythons that the noxfile says are supported."""
    for node in NOXFILE.body:
        if isinstance(node, ast.Assign) and ast.unparse(node.targets[0]) == "SUPPORTED":
            return set(ast.literal_eval(node.value))
    raise AssertionError("noxfile.py has no SUPPORTED")


def sessions() -> list[str]:
    """Return the names of the sessions, in the order of ``nox -l``."""
    functions = [node for node in NOXFILE.body if isinstance(node, ast.FunctionDef)]
    return [node.name for node in functions if "listed" in map(ast.unparse, node.decorator_list)]


def test_the_classifiers_name_the_pythons_that_are_tested() -> None:
    told = {text.rpartition(" :: ")[2] for text in PROJECT["classifiers"] if re.search(r"Python :: 3\.\d+$", text)}
    tested = {name for name in supported() if re.fullmatch(r"3\.\d+", name)}
    assert told == tested
    oldest = min(tested, key=lambda name: int(name.split(".")[1]))
    assert PROJECT["requires-python"] == f">={oldest}"
    assert any("Free Threading" in text for text in PROJECT["classifiers"])


@pytest.mark.skipif(not WORKFLOWS.exists(), reason="an sdist has no workflows")
def test_the_workflows_run_sessions_that_exist_on_all_pythons() -> None:
    text = "\n".join(path.read_text(encoding="utf-8") for path in WORKFLOWS.glob("*.yml"))
    named = set(re.findall(r"nox -s ([a-z]+)", text))
    for listed in re.findall(r"session: \[(.*)\]", text):
        named.update(listed.split(", "))
    named.update(re.findall(r"session: ([a-z]+)", text))
    assert {"tests", "wheels", "lint", "docs"} <= named
    assert named <= {*sessions()}
    (pythons,) = re.findall(r"python: \[(.*)\]", text)
    assert {name.strip('"') for name in pythons.split(", ")} == supported()


@pytest.mark.parametrize("group", ["demo", "bench"])
def test_what_serves_the_example_has_what_it_imports(group: str) -> None:
    tree = ast.parse((ROOT / "examples/fastapi_sqlalchemy.py").read_text(encoding="utf-8"))
    imported = {
        node.module.split(".")[0] for node in ast.walk(tree) if isinstance(node, ast.ImportFrom) and node.module
    }
    # FastAPI brings pydantic.
    wanted = {name.replace("_", "-") for name in imported - sys.stdlib_module_names - {"ebbpool", "pydantic"}}
    given = {re.split(r"[^\w-]", requirement)[0] for requirement in PYPROJECT["dependency-groups"][group]}
    assert "sqlalchemy" in wanted and wanted <= given


@pytest.mark.skipif(not WORKFLOWS.exists(), reason="an sdist has no workflows")
def test_the_workflows_publish_for_the_repository_that_the_package_names() -> None:
    source = PROJECT["urls"]["Source"]
    release = (WORKFLOWS / "release.yml").read_text(encoding="utf-8")
    (publishing,) = re.findall(r"github\.repository == '(.*?)'", release)
    assert source == f"https://github.com/{publishing}"
    others = [*ROOT.glob(".github/**/*.md"), *ROOT.glob(".github/**/*.yml")]
    named = {found for path in others for found in re.findall(r"https://github\.com/\w+/\w+", path.read_text("utf-8"))}
    assert named == {source}


def test_the_readme_leads_somewhere_wherever_it_is_shown() -> None:
    """The package index shows it, too, and has no files beside it."""
    readme = (ROOT / "README.md").read_text(encoding="utf-8")
    assert readme.count("\n") <= 150
    source = PROJECT["urls"]["Source"]
    pages, files = f"{source}/blob/main/", f"{source.replace('://github.', '://raw.githubusercontent.')}/main/"
    badges = re.findall(r"\[!\[[^\]]*\]\((\S+)/badge\.svg\)\]\((\S+)\)", readme)
    for shown, target in badges:
        assert shown == target and (WORKFLOWS / target.removeprefix(f"{source}/actions/workflows/")).is_file()
    readme = re.sub(r"\[!\[.*", "", readme)
    for picture, target in re.findall(r"(!?)\[[^\]]*\]\(([^)\s]*)\)", readme):
        start = files if picture else pages
        assert target.startswith(start), f"{target} does not start with {start}"
        path, _, place = target.removeprefix(start).partition("#")
        page = (ROOT / path).read_text(encoding="utf-8")
        titles = re.findall(r"^#+ (.*)$", page, flags=re.MULTILINE)
        assert not place or place in {re.sub(r"[^\w-]", "", title.lower().replace(" ", "-")) for title in titles}


def newest(specifiers: str) -> str:
    """Return the newest release, as far as the bound tells, that is below it: 0.54 of ``>=0.30,<0.55``."""
    *major, minor = re.findall(r"<([\d.]+)", specifiers)[0].split(".")
    return ".".join([*major, str(int(minor) - 1)])


def test_the_readme_says_with_which_versions_the_tests_run() -> None:
    readme = (ROOT / "README.md").read_text(encoding="utf-8")
    table = dict(re.findall(r"^\| (Pythons|event loops|frameworks) \| (.*) \|$", readme, flags=re.MULTILINE))
    pythons = table.pop("Pythons")
    minors = sorted(int(name[2:]) for name in supported() if re.fullmatch(r"3\.\d+", name))
    free = sorted(name for name in supported() if name.endswith("t"))
    (pypy,) = (name.removeprefix("pypy") for name in supported() if name.startswith("pypy"))
    expected = f"CPython 3.{minors[0]} to 3.{minors[-1]}, free-threaded {' and '.join(free)}, PyPy {pypy}"
    assert pythons == expected
    groups = PYPROJECT["dependency-groups"]
    required = [each for name in ("test", "integrations", "cluster") for each in groups[name] if isinstance(each, str)]
    tested = {re.split(r"[<>=;\[]", each)[0]: newest(each) for each in required if "<" in each}
    told = dict(re.findall(r"(\w+) (\d[\d.]*)", " ".join(table.values())))
    assert told == {name: tested[name.lower()] for name in told}
    assert {"anyio", "trio", "uvloop", "rloop", "zuvloop", "FastAPI", "Starlette", "gunicorn", "uvicorn"} <= told.keys()


@pytest.mark.skipif(not (ROOT / ".git").exists(), reason="only a checkout has the tags")
def test_what_the_changelog_says_was_released_has_a_tag() -> None:
    dated = re.findall(r"^## (\S+) - \d", (ROOT / "CHANGELOG.md").read_text(encoding="utf-8"), flags=re.MULTILINE)
    tags = subprocess.check_output(["git", "tag", "--list", "v[0-9]*"], cwd=ROOT, text=True).split()
    assert {f"v{version}" for version in dated} == set(tags)


@pytest.mark.parametrize("page", ["design/invariants.md", "working.md"])
def test_the_tests_that_a_page_names_are_there(page: str) -> None:
    text = (ROOT / "docs" / page).read_text(encoding="utf-8")
    source = ""
    for name in re.findall(r"`(?:tests/)?((?:\w+/)*test_\w+(?:\.py)?)`", text):
        if name.endswith(".py"):
            source = (ROOT / "tests" / name).read_text(encoding="utf-8")
        else:
            assert f"def {name}(" in source, name
    for invariant in re.findall(r"^\| \*.*\|$", text, flags=re.MULTILINE):
        assert re.search(r"`test_\w+`|\bturns\b", invariant), f"which test fails? {invariant}"


WHEEL = """
import os
import runpy
import sys

import setuptools

given = {}
setup, setuptools.setup = setuptools.setup, given.update
os.environ["EBBPOOL_PURE"] = "1"
runpy.run_path(sys.argv[1])
setup(
    name="part",
    version="1",
    ext_modules=[setuptools.Extension("part", ["part.c"], optional=True)],
    cmdclass={"bdist_wheel": given["cmdclass"]["bdist_wheel"]},
    script_name="setup.py",
    script_args=["-q", "bdist_wheel"],
)
"""


@pytest.mark.skipif(not (ROOT / "setup.py").exists(), reason="it is not here")
def test_a_wheel_without_extensions_is_for_all_platforms(tmp_path: Path) -> None:
    pytest.importorskip("setuptools", "77")
    (tmp_path / "part.c").write_text("this does not compile")
    script = [sys.executable, "-c", WHEEL, str(ROOT / "setup.py")]
    subprocess.run(script, cwd=tmp_path, check=True, capture_output=True, timeout=100)
    (wheel,) = (tmp_path / "dist").iterdir()
    assert wheel.name == "part-1-py3-none-any.whl"
    with zipfile.ZipFile(wheel) as archive:
        assert b"Root-Is-Purelib: true" in archive.read("part-1.dist-info/WHEEL")
