"""How everything is run: ``python -m nox -l`` lists it, with the time it takes on two processors once installed."""

from __future__ import annotations

import functools
import os
import re
import shlex
import shutil
import subprocess
import sys
from collections.abc import Callable
from contextlib import nullcontext, suppress
from pathlib import Path

import nox
import nox.command

nox.needs_version = ">=2025.2.9"
nox.options.sessions = ["lint", "typing", "tests"]
nox.options.reuse_existing_virtualenvs = True
nox.options.error_on_missing_interpreters = False
nox.options.download_python = "never"

ROOT = Path(__file__).parent
PYPROJECT = nox.project.load_toml(ROOT / "pyproject.toml")
NOT_COPIED = ("*.c", "*.egg-info", "*.pyd", "*.so", "*env", ".*", "__pycache__", "_build", "build", "dist", "reports")
OPTIONAL = ("axe-playwright-python", "playwright", "rloop", "uvloop", "zuvloop")
"""What some Pythons have no wheel of; tests that need it skip."""
SUPPORTED = ("3.11", "3.12", "3.13", "3.14", "3.15", "3.14t", "3.15t", "pypy3.11")
WHO_ARE_YOU = """
import sys, sysconfig
free = "t" * bool(sysconfig.get_config_var("Py_GIL_DISABLED"))
print("pypy" * (sys.implementation.name == "pypy") + "%d.%d" % sys.version_info[:2] + free)
"""


def name_of(executable: str) -> str:
    """Return the name of a Python, or nothing if it does not work: a version manager's shim may be there and fail."""
    with suppress(OSError, subprocess.SubprocessError):
        told = subprocess.run([executable, "-c", WHO_ARE_YOU], capture_output=True, check=True, text=True, timeout=60)
        return told.stdout.strip()
    return ""


def is_here(name: str) -> bool:
    """Tell whether PATH has a Python that is what its name says; a ``python3.13`` may be a free-threaded build."""
    executable = "pypy3" if name.startswith("pypy") else f"python{name}"
    found = (shutil.which(executable, path=folder) for folder in os.get_exec_path())
    return any(name_of(path) == name for path in found if path)


RUNNING = name_of(sys.executable) if sys.implementation.name in ("cpython", "pypy") else sys.executable
PYTHONS = [name for name in SUPPORTED if name == RUNNING or is_here(name)]
# It is not supported, and takes the place of the later ones without a GIL where there are none.
PYTHONS += ["3.13t"] * (not any(name.endswith("t") for name in PYTHONS) and is_here("3.13t"))
PYTHONS += [RUNNING] * (RUNNING not in PYTHONS)
COMPILING = [name for name in PYTHONS if name[0] == "3"]  # the CPythons; elsewhere the plain core is all there is
EVERY = [(name, core) for name in PYTHONS for core in ("pure", "ext") if core == "pure" or name in COMPILING]
USUAL = [pair for pair in EVERY if pair[1] == "ext" and not pair[0].endswith("t")] or EVERY
OLDEST, NEWEST = USUAL[0], USUAL[-1]
FREE = next((pair for pair in reversed(EVERY) if pair[0] in COMPILING and pair[0].endswith("t")), NEWEST)
PLAIN = (NEWEST[0], "pure")
OTHERS = {(name, "pure") for name in PYTHONS if name not in COMPILING}
TESTED = [pair for pair in EVERY if pair[1] == "ext" or pair == PLAIN or pair in OTHERS]
"""Where the suite runs. With "ext" the tests of the core take the compiled and the plain one in turn, with "pure" the
other tests run on the plain core, too: on the newest CPython, and where nothing is compiled."""
KINDS = {OLDEST, NEWEST, FREE, PLAIN}
SPARED = (
    ("bench integrations test_examples.py test_messages.py test_release.py", {NEWEST}),
    ("_pool/test_sizing.py _prefork _top test_bad_input.py test_imports.py test_pytest_plugin.py", {OLDEST, NEWEST}),
    ("_anyio", {OLDEST, FREE, PLAIN}),
    ("_http _metrics _pool/test_tracing.py _servers test_fastthreadpool.py test_main.py", KINDS),
    ("_loops _maps _monitor _pool/test_dump.py", KINDS | OTHERS),
)
"""Tests of what differs little between Pythons, and where they run; the others run everywhere."""

CORES: dict[str, dict[str, str | None]] = {"ext": {"EBBPOOL_PURE": None}, "pure": {"EBBPOOL_PURE": "1"}}
"""What the environment of a core is, at build and at run time."""


def on(chosen: list[tuple[str, str]]) -> Callable[[Callable[..., None]], Callable[..., None]]:
    """Return the decorator that makes a session for each pair of a Python and a core."""
    tags = {pair: ["ends"] for pair in (OLDEST, NEWEST, FREE)}
    return nox.parametrize("python,core", [nox.param(*pair, id="-".join(pair), tags=tags.get(pair)) for pair in chosen])


def listed(task: Callable[..., None]) -> object:
    """Make a session that starts by saying what the list says about it."""

    @functools.wraps(task)
    def run(session: nox.Session, **named: str) -> None:
        session.log(" ".join(str(task.__doc__).split()))
        task(session, **named)

    return nox.session(run)


def git(*arguments: str) -> list[str]:
    """Return the lines that git tells, or none if it does not or this is no clone."""
    if not (ROOT / ".git").exists() or not shutil.which("git"):
        return []
    told = subprocess.run(["git", *arguments], cwd=ROOT, capture_output=True, text=True, timeout=60)
    return told.stdout.splitlines() if told.returncode == 0 else []


def snapshot(session: nox.Session) -> Path:
    """Copy the sources, so that a build neither finds nor leaves anything in the tree, and what git tells of them."""
    folder = Path(session.create_tmp()).resolve() / "source"
    shutil.rmtree(folder, ignore_errors=True)
    shutil.copytree(ROOT, folder, ignore=shutil.ignore_patterns(*NOT_COPIED))
    origin = ".git_archival.txt"  # where setuptools-scm looks for the version; before the first tag it counts commits
    if commit := git("rev-parse", "--short=9", "HEAD"):
        told = git("describe", "--tags", "--match", "v[0-9]*") or [f"v0.0-{len(git('rev-list', 'HEAD'))}-g{commit[0]}"]
        (folder / origin).write_text(f"node: {commit[0]}\ndescribe-name: {told[0]}\n", encoding="utf-8")
    elif (ROOT / origin).exists():
        shutil.copy2(ROOT / origin, folder)
    return folder


def install(session: nox.Session, *groups: str, core: str = "", quickly: bool = False) -> None:
    """Install dependency groups in versions that need no compiler where there are such, then ebbpool as users get it.

    What is optional may be missing. Compiled `quickly`, ebbpool is there in half the time, and not as fast.
    """
    wanted = {one for name in groups for one in nox.project.dependency_groups(PYPROJECT, name)}
    if session.python == "3.13t":  # which no marker tells
        wanted = {requirement for requirement in wanted if not requirement.startswith(OPTIONAL)}
    lenient = {"bench", "demo"}.intersection(groups)  # which say what they lack
    alone = {requirement for requirement in wanted if lenient or requirement.startswith(OPTIONAL)}
    for requirements in filter(None, (sorted(wanted - alone), *([requirement] for requirement in sorted(alone)))):
        try:
            session.install("--only-binary", ":all:", *requirements, silent=True)
        except nox.command.CommandFailed:
            with suppress(nox.command.CommandFailed) if alone.issuperset(requirements) else nullcontext():
                session.install(*requirements)
    if core:
        session.log("ebbpool is built and installed: up to two minutes if it is compiled, with no output.")
        flags = {"CFLAGS": "-O1 -g0 -DNDEBUG -fno-strict-overflow"} if quickly and sys.platform == "linux" else {}
        session.install("--no-deps", "--force-reinstall", str(snapshot(session)), env=CORES[core] | flags)


@listed
def quick(session: nox.Session) -> None:
    """Check style, types, and on the plain core some tests and those of what differs from main: a minute."""
    install(session, "lint", "test")
    session.install("--no-deps", "--editable", ".", env=CORES["pure"])
    session.run("ruff", "check", ".")
    session.run("ruff", "format", "--check", ".")
    session.run("mypy")
    main = git("merge-base", "HEAD", "origin/main") or git("merge-base", "HEAD", "main") or ["HEAD"]
    changed = git("diff", "--name-only", *main) + git("ls-files", "--others", "--exclude-standard")
    chosen = {name for name in changed if re.match(r"tests/(?!interleavings/|stress/)(.*/)?test_\w+\.py", name)}
    chosen.add("tests/_loops/test_short_first.py")  # a model of the engine
    rooms = re.findall(r"^src/ebbpool/_?(\w+)", "\n".join(changed), flags=re.MULTILINE)
    for room in ("bad_input", "core", "executor", "imports", *rooms):
        chosen |= {f"tests/_{room}", f"tests/test_{room}.py"}
    present = [name for name in sorted(chosen) if (ROOT / name).exists()]
    session.run("python", "-m", "pytest", "-n", "4", *present, *session.posargs, env=CORES["pure"])


@listed
def lint(session: nox.Session) -> None:
    """Check style and format, that each file has a licence, and that no workflow can do more than it must: 10 s."""
    install(session, "lint")
    session.run("ruff", "check", ".")
    session.run("ruff", "format", "--check", ".")
    if (ROOT / ".git").exists():
        session.run("reuse", "lint", "--quiet")
        session.run("zizmor", "--offline", "--quiet", "--no-progress", ".github")


@listed
def typing(session: nox.Session) -> None:
    """Check types with mypy and pyright, those of the samples in tests/typing too, and that none is missing: 30 s."""
    install(session, "typing", core="pure")
    session.run("mypy", *session.posargs)
    session.run("pyright")
    session.run("pyright", "--verifytypes", "ebbpool", "--ignoreexternal")


@listed
@on(TESTED)
def tests(session: nox.Session, core: str) -> None:
    """Run the suite on the installed package, on each Python: 2 minutes each, 5 on the first and the last."""
    pair = (str(session.python), core)
    session.log(f"Session {TESTED.index(pair) + 1} of {len(TESTED)}: {'-'.join(pair)}.")
    install(session, "test", core=core, quickly=pair != NEWEST)
    # Most tests wait most of the time. Each process of an interpreter that compiles as it runs does so anew.
    processes = os.environ.get("EBBPOOL_TEST_PROCESSES", "2" if pair in OTHERS else "4")
    spared = [f"--ignore=tests/{name}" for names, where in SPARED if pair not in where for name in names.split()]
    session.run("python", "-m", "pytest", *(session.posargs or ("-n", processes, *spared)), env=CORES[core])


@listed
@on(EVERY)
def stress(session: nox.Session, core: str) -> None:
    """Run tests under load, ``EBBPOOL_STRESS_SECONDS`` each: 5 minutes a Python and core."""
    install(session, "test", core=core)
    session.run("python", "-m", "pytest", "tests/stress", *session.posargs, env=CORES[core])


@listed
@on([PLAIN])
def interleavings(session: nox.Session, core: str) -> None:
    """Run small programs in every order of steps: 2 minutes; 10 if ``EBBPOOL_ORDERS_PAIRS=1`` asks for more orders."""
    install(session, "test", core=core)
    session.run("python", "-m", "pytest", *(session.posargs or ("-n", "2", "tests/interleavings")), env=CORES[core])


@listed
@on(EVERY)
def conformance(session: nox.Session, core: str) -> None:
    """Run CPython's own tests of pools and futures, a minute a Python and core; 3 over a cluster (``-- --cluster``)."""
    install(session, "cluster" if "--cluster" in session.posargs else "test", core=core)
    session.run("python", "tests/conformance/run.py", *session.posargs, env=CORES[core])


@listed
def integrations(session: nox.Session) -> None:
    """Run all examples with the libraries that they are about, anyio's tests on the oldest and newest: 4 minutes."""
    install(session, "integrations", quickly=True, core="ext")
    oldest = PYPROJECT["project"]["optional-dependencies"]["anyio"][0].replace(">=", "==")
    for anyio, suites in ((oldest, ()), ("anyio<5", ("tests/integrations", "tests/test_examples.py"))):
        session.install("--upgrade", anyio, silent=True)
        session.run("python", "-m", "pytest", *(session.posargs or ("-n", "4", "tests/_anyio", *suites)))


@listed
def cluster(session: nox.Session) -> None:
    """Run the tests of the executor over a Dask cluster, against real ones on this machine: 5 minutes."""
    install(session, "cluster", core="ext")
    session.run("python", "-m", "pytest", *(session.posargs or ("tests/_dask", "tests/test_examples.py")))


@listed
def downstream(session: nox.Session) -> None:
    """Run the suites of FastAPI, Starlette, anyio, uvloop and aiofiles, stock and on ebbpool; compare: half an hour."""
    without = ["--without-uvloop"] if os.name == "nt" or RUNNING == "3.13t" else []
    table = session.run("python", "tests/downstream/suites.py", *without, silent=True)
    session.install(*str(table).split(), silent=True)
    install(session, "downstream", core="ext")
    session.run("python", "tests/downstream/run.py", "--work", session.create_tmp(), *session.posargs)


@listed
def coverage(session: nox.Session) -> None:
    """Measure what the suite covers of the plain core and everything around it: 10 minutes."""
    install(session, "test", core="pure")
    session.run("coverage", "erase")
    session.run("coverage", "run", "-m", "pytest", *session.posargs, env=CORES["pure"])
    session.run("coverage", "combine", "--quiet")
    session.run("coverage", "report")


@listed
def docs(session: nox.Session) -> None:
    """Build the site, warnings being errors, follow its links, show each page in a browser if there is one: 30 s."""
    install(session, "docs", core="pure")
    site = ROOT / "docs/_build/html"
    shutil.rmtree(site, ignore_errors=True)
    session.run("python", "-m", "benchmarks", "figures", "--check", env=CORES["pure"])
    session.run("sphinx-build", "-q", "-W", "--keep-going", "-b", "html", "docs", str(site), env=CORES["pure"])
    session.run("python", "docs/_check.py", str(site), *session.posargs, env=CORES["pure"])
    print(f"{session.name}: open {(site / 'index.html').as_uri()}")


@listed
def demo(session: nox.Session) -> None:
    """Put the same loads on FastAPI servers with and without ebbpool, and write a page about it: two minutes."""
    install(session, "demo", core="ext")
    session.run("python", "-m", "benchmarks.demo", *session.posargs)


@listed
def bench(session: nox.Session) -> None:
    """Run the benchmarks, half an hour, or look at runs: ``-- --quick``, ``-- submit map``, ``-- show RUN``."""
    install(session, "bench")
    with suppress(nox.command.CommandFailed):
        session.install("--no-build-isolation", "fastthreadpool", silent=True)
    install(session, core="ext")
    session.run("python", "-m", "benchmarks", *session.posargs)


@listed
def guard(session: nox.Session) -> None:
    """Count the instructions of some loads with valgrind; fail if they are more than those that are kept: a minute."""
    install(session, core="ext")
    session.run("python", "-m", "benchmarks.guard", *session.posargs)


def make(session: nox.Session, kind: str, source: Path, folder: Path, core: str, **env: str | None) -> Path:
    """Make an sdist or a wheel in a folder of its own."""
    shutil.rmtree(folder, ignore_errors=True)
    session.run("python", "-m", "build", "--outdir", str(folder), f"--{kind}", str(source), env=CORES[core] | env)
    return next(folder.iterdir())


def make_sdist(session: nox.Session, folder: Path) -> tuple[Path, Path]:
    """Make an sdist in a folder of its own; return it, and the folder where it is unpacked."""
    sdist = make(session, "sdist", snapshot(session), folder, "pure")
    unpacked = Path(session.create_tmp()).resolve() / "unpacked"
    shutil.rmtree(unpacked, ignore_errors=True)
    shutil.unpack_archive(sdist, unpacked)
    return sdist, next(unpacked.iterdir())


@listed
def build(session: nox.Session) -> None:
    """Make an sdist, a compiled and a pure wheel in dist/, and run the suite on each as it is installed: 20 minutes."""
    install(session, "build", "test")
    sdist, source = make_sdist(session, ROOT / "dist")
    folder = Path(session.create_tmp()).resolve()
    made = [(sdist, "ext"), *((make(session, "wheel", source, folder / core, core), core) for core in ("ext", "pure"))]
    for wheel, _ in made[1:]:
        shutil.copy2(wheel, ROOT / "dist")
    session.run("twine", "check", "--strict", *(str(artefact) for artefact, _ in made))
    # From here on the sdist's own tests run, next to nothing that could be imported in the package's place.
    session.chdir(source)
    for artefact, core in made:
        session.install("--no-deps", "--force-reinstall", str(artefact), env=CORES[core])
        session.run("python", "-m", "pytest", *session.posargs, env=CORES[core])


@listed
def wheels(session: nox.Session) -> None:
    """Make an sdist, and of it the wheels for such machines with cibuildwheel, tested, in dist/: half an hour."""
    install(session, "build")
    sdist, _ = make_sdist(session, ROOT / "dist")
    session.run("cibuildwheel", "--output-dir", str(ROOT / "dist"), *session.posargs, str(sdist))
    session.run("twine", "check", "--strict", *map(str, sorted(ROOT.glob("dist/*"))))


@listed
@on([pair for pair in EVERY if pair[1] == "ext"])
def wheel(session: nox.Session, core: str) -> None:
    """Make and test a wheel as cibuildwheel does, but for a Python of this machine, in dist/local/: 3 minutes each."""
    install(session, "build")
    settings = PYPROJECT["tool"]["cibuildwheel"]
    env = settings["environment"] | settings.get(sys.platform, {}).get("environment", {})
    folder = Path(session.create_tmp()).resolve()
    _, source = make_sdist(session, folder / "sdist")
    made = make(session, "wheel", source, folder / core, core, **env)
    if sys.platform == "linux":
        session.run("auditwheel", "repair", "--wheel-dir", str(made.parent / "repaired"), str(made))
        (made,) = (made.parent / "repaired").iterdir()
    session.install("--force-reinstall", str(made), *settings["test-requires"])
    session.run(*shlex.split(settings["test-command"]), env=env)
    (ROOT / "dist/local").mkdir(parents=True, exist_ok=True)
    shutil.copy2(made, ROOT / "dist/local")
