"""The one place that knows how things are run: ``python -m nox -l`` lists it all."""

from __future__ import annotations

import itertools
import json
import os
import shlex
import shutil
import subprocess
import sys
import tarfile
import zipfile
from collections.abc import Callable, Iterable
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
EXTENSIONS = ("executor_core", "future", "known", "lane", "loop_calls", "pool", "semaphore", "timers", "worker")
"""The modules of `_core` that are compiled; setup.py has the same."""
FOLDERS = ("LICENSES", "benchmarks", "docs", "src", "tests")
ORIGIN = ".git_archival.txt"
"""What ``git archive`` fills in with the commit and the last tag, for setuptools-scm to make the version of."""
WANTED = ("3.11", "3.12", "3.13", "3.14", "3.15", "3.13t", "3.14t", "3.15t", "pypy3.11")
WHO_ARE_YOU = (
    "import sys, sysconfig; "
    "print('pypy' * (sys.implementation.name == 'pypy') + '%d.%d' % sys.version_info[:2] "
    "+ 't' * bool(sysconfig.get_config_var('Py_GIL_DISABLED')))"
)


def answers_to(name: str) -> bool:
    """Tell whether PATH has a Python of this name that works and is what its name says.

    A version manager's shim may be there and fail; a ``python3.13`` may be a free-threaded build.
    """
    executables = (name, "pypy3", "pypy") if name.startswith("pypy") else (f"python{name}",)
    for executable, folder in itertools.product(executables, os.get_exec_path()):
        if found := shutil.which(executable, path=folder):
            try:
                told = subprocess.run([found, "-c", WHO_ARE_YOU], capture_output=True, text=True, timeout=60)
            except (OSError, subprocess.TimeoutExpired):
                continue
            if told.returncode == 0 and told.stdout.strip() == name:
                return True
    return False


def interpreters() -> list[str]:
    """Return the names of the Pythons to test on, the one that runs nox among them."""
    own = subprocess.run([sys.executable, "-c", WHO_ARE_YOU], capture_output=True, text=True, check=True)
    running = own.stdout.strip() if sys.implementation.name in ("cpython", "pypy") else sys.executable
    found = [name for name in WANTED if name == running or answers_to(name)]
    return found if running in found else [*found, running]


PYTHONS = interpreters()
COMPILING = [name for name in PYTHONS if name[0] == "3"]
"""The CPythons. Elsewhere the plain core is all there is."""
OTHERS = [name for name in PYTHONS if name not in COMPILING]
WITH_GIL = [name for name in COMPILING if not name.endswith("t")]
WITHOUT_GIL = [name for name in COMPILING if name.endswith("t")]
EVERY = [(name, "pure") for name in PYTHONS] + [(name, "ext") for name in COMPILING]
USUAL = [(name, "ext") for name in WITH_GIL or COMPILING] or [(name, "pure") for name in OTHERS]
OLDEST, NEWEST = USUAL[0], USUAL[-1]
PLAIN = (NEWEST[0], "pure")
FREE = (WITHOUT_GIL[-1], "ext") if WITHOUT_GIL else NEWEST
"""The newest CPython without a GIL, if there is one."""
TESTED = [(name, variant) for name, variant in EVERY if variant == "ext" or (name, variant) == PLAIN or name in OTHERS]
"""Where the suite runs. Everywhere the variant "ext" has the tests of the core take the plain and the compiled one in
turn. With "pure" the other tests run on the plain core, too: on the newest CPython, and where nothing is compiled."""

ENDS = {OLDEST, NEWEST, FREE}
CORES = {"ext": "compiled core and plain one", "pure": "plain core alone"}
EACH_KIND = {*ENDS, PLAIN}
"""One session of each kind: the oldest, the newest, without a GIL, and on the plain core."""
EACH_IMPLEMENTATION = {*EACH_KIND, *((name, "pure") for name in OTHERS)}

BOTH_ENDS = (
    "_pool/test_sizing.py",
    "_prefork",
    "_top",
    "test_bad_input.py",
    "test_imports.py",
    "test_pytest_plugin.py",
)
ONE_OF_EACH_KIND = (
    "_http",
    "_pool/test_tracing.py",
    "_servers",
    "test_fastthreadpool.py",
    "test_main.py",
)
SPARED: dict[str, set[tuple[str, str]]] = {
    "bench": {NEWEST},
    "integrations": {NEWEST},
    "test_examples.py": {NEWEST},
    "test_messages.py": {NEWEST},
    "test_release.py": {NEWEST},
    "_anyio": {OLDEST, PLAIN, FREE},
    "_metrics": {*ENDS, PLAIN},
    **{name: {OLDEST, NEWEST} for name in BOTH_ENDS},
    **dict.fromkeys(ONE_OF_EACH_KIND, EACH_KIND),
    **dict.fromkeys(("_loops", "_maps", "_monitor", "_pool/test_dump.py"), EACH_IMPLEMENTATION),
}
"""Tests of what differs little between Pythons, and where they run. The others run everywhere: those of the core and of
the pool's threads."""


def spared(session: nox.Session, variant: str) -> list[str]:
    """Return what keeps pytest from the tests that other sessions have."""
    pair = (str(session.python), variant)
    return [f"--ignore=tests/{folder}" for folder, chosen in SPARED.items() if pair not in chosen]


Task = Callable[[nox.Session, str], None]


def pairs(chosen: list[tuple[str, str]]) -> Callable[[Task], Task]:
    """Return the decorator that makes a session for each pair of a Python and a variant, Python by Python."""
    ordered = sorted(chosen, key=lambda pair: PYTHONS.index(pair[0]))
    return nox.parametrize(
        "python,variant",
        [nox.param(*pair, id="-".join(pair), tags=["ends"] if pair in ENDS else []) for pair in ordered],
    )


def group(name: str) -> tuple[str, ...]:
    """Return the requirements of a dependency group."""
    return nox.project.dependency_groups(PYPROJECT, name)


def install(session: nox.Session, *requirements: str) -> None:
    """Install requirements, the newest that need no compiler where there are such; pip and uv share these options."""
    try:
        session.install("--only-binary", ":all:", *requirements, silent=True)
    except nox.command.CommandFailed:
        session.install(*requirements, silent=True)


def install_what_can_be(session: nox.Session, *requirements: str) -> None:
    """Install each requirement on its own; say on standard error which ones could not be."""
    missing = []
    for requirement in requirements:
        try:
            install(session, requirement)
        except nox.command.CommandFailed:
            missing.append(requirement)
    if missing:
        print(f"{session.name}: could not be installed here: {', '.join(missing)}", file=sys.stderr)


def environment(variant: str) -> dict[str, str | None]:
    """Return what the environment of a variant is, at build and at run time."""
    return {"EBBPOOL_PURE": "1" if variant == "pure" else None}


def leave_origin(folder: Path) -> None:
    """Have copied sources tell the version that git tells here, if it does. An sdist has it in its metadata."""
    if (ROOT / ".git").exists():
        shutil.copy2(ROOT / ORIGIN, folder)
        wanted = (ROOT / ORIGIN).read_text(encoding="utf-8").replace("$Format:", "").replace("$\n", "%n")
        git = ["git", "log", "-1", f"--format={wanted}"]
        try:
            told = subprocess.run(git, cwd=ROOT, capture_output=True, text=True, timeout=60)
        except (OSError, subprocess.TimeoutExpired):
            return
        if told.returncode == 0:
            (folder / ORIGIN).write_text(told.stdout, encoding="utf-8")


def snapshot(session: nox.Session) -> Path:
    """Copy the sources, so that a build neither finds nor leaves anything in the tree."""
    folder = Path(session.create_tmp()) / "source"
    shutil.rmtree(folder, ignore_errors=True)
    folder.mkdir()
    leave = shutil.ignore_patterns("*.c", "*.so", "*.pyd", "*.egg-info", "__pycache__", "_build", ".*")
    for path in ROOT.iterdir():
        if path.is_file() and path.name[0] != ".":
            shutil.copy2(path, folder)
        elif path.name in FOLDERS:
            shutil.copytree(path, folder / path.name, ignore=leave)
    leave_origin(folder)
    return folder


def install_ebbpool(session: nox.Session, variant: str = "ext", *, quickly: bool = False) -> None:
    """Build and install the package as a user gets it: not editable, and built anew every time.

    If that is to be done `quickly`, the compiler optimises less, which takes it half the time.
    """
    env = environment(variant)
    if quickly and sys.platform == "linux":
        env["CFLAGS"] = "-O1 -g0 -DNDEBUG -fno-strict-overflow"
    session.install("--no-deps", "--force-reinstall", str(snapshot(session)), env=env)


def install_tests(session: nox.Session) -> None:
    """Install what the tests need, and uvloop where there is one."""
    install(session, *group("test"))
    if session.python not in WITHOUT_GIL:
        install_what_can_be(session, *group("test-uvloop"))


@nox.session
@pairs(TESTED)
def tests(session: nox.Session, variant: str) -> None:
    """Run the test suite against the installed package, in several processes: most tests wait most of the time."""
    number = TESTED.index((str(session.python), variant)) + 1
    session.log(
        f"Session {number} of {len(TESTED)}: the suite on {session.python}, {CORES[variant]}. Some minutes each."
    )
    session.log("First what the tests need is installed: half a minute, with no output.")
    install_tests(session)
    session.log("Now ebbpool is built from this folder and installed: up to two minutes, with no output.")
    install_ebbpool(session, variant, quickly=(str(session.python), variant) != NEWEST)
    # Each process of an interpreter that compiles as it runs does so anew.
    processes = os.environ.get("EBBPOOL_TEST_PROCESSES", "2" if session.python in OTHERS else "4")
    chosen = session.posargs or ("-n", processes, *spared(session, variant))
    session.run("python", "-m", "pytest", *chosen, env=environment(variant))


@nox.session
@pairs(EVERY)
def stress(session: nox.Session, variant: str) -> None:
    """Run the opt-in stress tests: ``EBBPOOL_STRESS_SECONDS`` is how long each keeps the pressure up."""
    install_tests(session)
    install_ebbpool(session, variant)
    session.run("python", "-m", "pytest", "tests/stress", *session.posargs, env=environment(variant))


@nox.session
@pairs(EVERY)
def conformance(session: nox.Session, variant: str) -> None:
    """Run CPython's own tests of thread pools and futures on ebbpool."""
    install_ebbpool(session, variant)
    session.run("python", "tests/conformance/run.py", *session.posargs, env=environment(variant))


@nox.session
def downstream(session: nox.Session) -> None:
    """Run the test suites of FastAPI, Starlette, anyio, uvloop and aiofiles, stock and on ebbpool; compare."""
    told = session.run("python", "-c", WHO_ARE_YOU, silent=True)
    without = ["--without-uvloop"] if os.name == "nt" or str(told).strip().endswith("t") else []
    table = session.run("python", "tests/downstream/suites.py", *without, silent=True)
    pins = table.split() if isinstance(table, str) else []
    try:
        install(session, *group("downstream"), *pins)
    except nox.command.CommandFailed:
        session.error("what the suites need cannot be installed: no network here, or no wheel for this Python")
    install_ebbpool(session)
    session.run("python", "tests/downstream/run.py", "--work", session.create_tmp(), *session.posargs)


@nox.session
def integrations(session: nox.Session) -> None:
    """Run the examples of docs/integrations with the libraries that they are about."""
    install(session, *group("integrations"))
    install_what_can_be(session, *group("test-uvloop"))
    install_ebbpool(session, quickly=True)
    suites = ("tests/integrations", "tests/test_examples.py", "tests/_anyio/test_anyio_overload.py")
    session.run("python", "-m", "pytest", *(session.posargs or ("-n", "4", *suites)))


@nox.session
def docs(session: nox.Session) -> None:
    """Build the site, warnings being errors, follow its links, and look at each page in a browser if there is one."""
    install(session, *group("docs"))
    install_what_can_be(session, *group("docs-browser"))
    # The plain core tells Sphinx the parameters of its methods.
    install_ebbpool(session, "pure")
    site = ROOT / "docs/_build/html"
    shutil.rmtree(site, ignore_errors=True)
    if (ROOT / "benchmarks").is_dir():
        session.run("python", "-m", "benchmarks", "figures", "--check", env=environment("pure"))
    session.run("sphinx-build", "-q", "-W", "--keep-going", "-b", "html", "docs", str(site), env=environment("pure"))
    session.run("python", "docs/_check.py", str(site), *session.posargs, env=environment("pure"))
    print(f"{session.name}: open {(site / 'index.html').as_uri()}")


@nox.session
def cluster(session: nox.Session) -> None:
    """Run the tests of the executor over a Dask cluster, against real ones on this machine."""
    install(session, *group("cluster"))
    install_what_can_be(session, *group("test-uvloop"))
    install_ebbpool(session)
    session.run("python", "-m", "pytest", *(session.posargs or ("tests/_dask", "tests/test_examples.py")))


@nox.session
def conformance_cluster(session: nox.Session) -> None:
    """Run CPython's own tests of executors on the one over a Dask cluster."""
    install(session, *group("cluster"))
    install_ebbpool(session)
    session.run("python", "tests/conformance/run.py", "--cluster", *session.posargs)


@nox.session
def lint(session: nox.Session) -> None:
    """Check style and format, that each file has a licence, and that no workflow can do more than it must."""
    install(session, *group("lint"))
    install(session, *group("audit"))
    session.run("ruff", "check", ".")
    session.run("ruff", "format", "--check", ".")
    if (ROOT / ".git").exists():
        session.run("reuse", "lint", "--quiet")
    if (ROOT / ".github").exists():
        session.run("zizmor", "--offline", "--quiet", "--no-progress", ".github")


@nox.session
def typing(session: nox.Session) -> None:
    """Check types with mypy and pyright, those of the samples in tests/typing among them, and that none is missing."""
    install(session, *group("typing"))
    install_ebbpool(session, "pure")
    session.run("mypy", *session.posargs)
    session.run("pyright")
    session.run("pyright", "--verifytypes", "ebbpool", "--ignoreexternal")


FACES = {
    "__main__": ("test_main.py",),
    "_cli": ("test_main.py",),
    "_checks": ("test_bad_input.py",),
    "_ebbpool_pytest": ("test_pytest_plugin.py",),
    "_interpreter": ("test_main.py", "_pool/test_quota.py"),
    "_maps": ("_loops",),
    "_leaks": ("test_pytest_plugin.py",),
    "_replacements": ("test_switch.py",),
    "aio": ("_loops",),
    "celery": ("integrations",),
    "django": ("integrations",),
    "executor": ("test_bad_input.py",),
    "gunicorn": ("integrations",),
    "opentelemetry": ("_metrics",),
    "prometheus": ("_metrics",),
    "socketserver": ("_servers", "_http"),
    "sync": ("_core",),
}
"""Where tests of a file or room of the package are, beside those of its name."""


def changed(session: nox.Session) -> set[Path]:
    """Return the files that differ from those of main, or from the last commit's parent if none does."""

    def git(*arguments: str) -> list[str]:
        told = session.run("git", *arguments, external=True, silent=True)
        return str(told).splitlines()

    found = {*git("diff", "--name-only", "HEAD"), *git("ls-files", "--others", "--exclude-standard")}
    known = git("for-each-ref", "--format=%(refname:short)", "refs/heads/main", "refs/remotes/origin/main")
    found.update(*(git("diff", "--name-only", f"{name}...") for name in known[:1]))
    return {Path(name) for name in found or git("diff", "--name-only", "HEAD~1")}


def tests_of(path: Path) -> set[str]:
    """Return the files and folders in tests that a change of `path` concerns."""
    first, *rest = path.parts
    if first == "src":
        room = rest[1 if len(rest) > 1 else 0].removesuffix(".py")
        name = room.strip("_")
        wanted: tuple[str, ...] = (f"_{name}", f"test_{name}.py", *FACES.get(room, ()))
    elif first == "tests" and path.name.startswith("test_") and "stress" not in rest:
        return {str(path)}
    elif first == "tests" and (rest[0] == "support" or path.name == "conftest.py") and "stress" not in rest:
        return {"tests"}
    else:
        examples = "test_examples.py"
        others = {"benchmarks": ("bench",), "docs": (examples, "test_messages.py"), "README.md": (examples,)}
        others["examples"] = ("integrations/test_sqlalchemy.py",)
        others |= dict.fromkeys((".github", "noxfile.py", "pyproject.toml"), ("test_release.py",))
        wanted = others.get(first, ())
    return {f"tests/{name}" for name in wanted}


@nox.session
def quick(session: nox.Session) -> None:
    """Check style, types, and the tests of the folders that have changed, on the plain core: for every few minutes."""
    install(session, *group("lint"), *group("typing"))
    session.install("--no-deps", "--editable", ".", env=environment("pure"))
    session.run("ruff", "check", ".")
    session.run("ruff", "format", "--check", ".")
    session.run("mypy")
    chosen = {"tests/test_imports.py"}.union(*map(tests_of, changed(session)))
    present = sorted(name for name in chosen if (ROOT / name).exists())
    session.run("python", "-m", "pytest", "-n", "4", *present, *session.posargs, env=environment("pure"))


@nox.session
def coverage(session: nox.Session) -> None:
    """Measure what the test suite covers of the plain core and everything around it."""
    install(session, *group("coverage"))
    install_what_can_be(session, *group("test-uvloop"))
    install_ebbpool(session, "pure")
    session.run("coverage", "erase")
    session.run("coverage", "run", "-m", "pytest", *session.posargs, env=environment("pure"))
    session.run("coverage", "combine", "--quiet")
    session.run("coverage", "report")


@nox.session
def demo(session: nox.Session) -> None:
    """Put the same load on servers with and without ebbpool."""
    install(session, *group("demo"))
    install_what_can_be(session, *group("demo-compiled"))
    install_ebbpool(session)
    session.run("python", "-m", "benchmarks.demo", *session.posargs)


@nox.session
def bench(session: nox.Session) -> None:
    """Run the benchmarks, or look at runs: ``-- --quick``, ``-- submit map``, ``-- show RUN``; -- --help."""
    install_what_can_be(session, *group("bench"))
    try:
        # It imports Cython in its setup.py and does not say so.
        needed = group("bench-fastthreadpool")
        session.install(*[package for package in needed if package != "fastthreadpool"], silent=True)
        session.install("--no-build-isolation", *needed, silent=True)
    except nox.command.CommandFailed:
        print("bench: fastthreadpool could not be built here", file=sys.stderr)
    install_ebbpool(session)
    session.run("python", "-m", "benchmarks", *session.posargs)


@nox.session
def guard(session: nox.Session) -> None:
    """Count the instructions of some loads with valgrind; fail if they are more than those that are kept."""
    install_ebbpool(session)
    session.run("python", "-m", "benchmarks.guard", *session.posargs)


def contents(archive: Path) -> list[str]:
    """Return the names of the files in a wheel or an sdist."""
    if archive.suffix == ".whl":
        with zipfile.ZipFile(archive) as wheel:
            return wheel.namelist()
    with tarfile.open(archive) as sdist:
        return sdist.getnames()


def check_contents(session: nox.Session, artefacts: dict[str, Path]) -> None:
    """Fail unless each archive holds what it must and nothing that it must not."""
    needed = {
        "sdist": (
            *(f"ebbpool/_core/{name}{end}" for name in EXTENSIONS for end in (".py", "_c.pxd")),
            "ebbpool/_core/native_c.pxd",
            "ebbpool/py.typed",
            "src/_ebbpool_pytest.py",
            "tests/conftest.py",
        )
    }
    unwanted = {
        "sdist": (".c", ".so", ".pyd", ".pyc"),
        "ext": (".c", ".pxd", ".pyc"),
        "pure": (".c", ".pxd", ".pyc", ".so", ".pyd"),
    }
    for kind, archive in artefacts.items():
        names = contents(archive)
        if wrong := [name for name in names if name.endswith(unwanted[kind])]:
            session.error(f"{archive.name} must not hold {wrong}")
        for name in needed.get(kind, ("ebbpool/_core/pool.py", "ebbpool/py.typed", "_ebbpool_pytest.py")):
            if not any(entry.endswith(name) for entry in names):
                session.error(f"{archive.name} lacks {name}")
    if not artefacts["pure"].name.endswith("-py3-none-any.whl"):
        session.error(f"{artefacts['pure'].name} is not tagged py3-none-any")
    for extension in EXTENSIONS:
        if not any(f"ebbpool/_core/{extension}_c." in name for name in contents(artefacts["ext"])):
            session.warn(f"{artefacts['ext'].name} lacks {extension}_c: is there a compiler?")


def make_sdist(session: nox.Session, work: Path) -> tuple[Path, Path]:
    """Make an sdist in a folder; return it, and where it is unpacked."""
    for folder in (work / "out", work / "unpacked"):
        shutil.rmtree(folder, ignore_errors=True)
    source = str(snapshot(session))
    backend = ("python", "-m", "build", "--outdir", str(work / "out/sdist"), "--sdist")
    session.run(*backend, source, env=environment("pure"))
    (sdist,) = (work / "out/sdist").iterdir()
    with tarfile.open(sdist) as archive:
        archive.extractall(work / "unpacked", filter="data")
    (unpacked,) = (work / "unpacked").iterdir()
    return sdist, unpacked


INSTALLED = (
    "import importlib.metadata; "
    "print(*sorted({found.name for found in importlib.metadata.distributions()} - {'pip', 'setuptools', 'wheel'}))"
)


def run_alone(
    session: nox.Session,
    folder: Path,
    what: Iterable[str],
    needed: Iterable[str],
    command: Iterable[str],
    **env: str | None,
) -> None:
    """Install ebbpool, and nothing else, in a new environment; then what tests need there, and run them."""
    session.run("python", "-m", "virtualenv", "--quiet", "--clear", str(folder), silent=True)
    python = str(folder / ("Scripts/python.exe" if os.name == "nt" else "bin/python"))
    session.run(python, "-m", "pip", "install", "--quiet", *what, external=True, env=env)
    told = str(session.run(python, "-I", "-c", INSTALLED, external=True, silent=True)).split()
    if told != ["ebbpool"]:
        session.error(f"pip install ebbpool brought in {told}")
    pip = (python, "-m", "pip", "install", "--quiet", "--prefer-binary")
    session.run(*pip, *needed, external=True, env=env)
    session.run(python, *command, *session.posargs, external=True, env=env)


def check_bills(session: nox.Session, wheels: Iterable[Path]) -> None:
    """Fail unless each wheel has a bill of materials that is about it, and names Cython if it is compiled."""
    for wheel in wheels:
        with zipfile.ZipFile(wheel) as archive:
            bills = [name for name in archive.namelist() if ".dist-info/sboms/" in name and name[-1] != "/"]
            compiled = any("ebbpool/_core/pool_c." in name for name in archive.namelist())
            bill = json.loads(archive.read(bills[0])) if len(bills) == 1 else session.error(f"{wheel.name}: {bills}")
        ours = bill["metadata"]["component"]
        parts = [part["name"] for part in bill["components"]]
        if f"{ours['name']}-{ours['version']}" != "-".join(wheel.name.split("-")[:2]):
            session.error(f"{wheel.name} has the bill of materials of {ours}")
        if parts != ["Cython"] * compiled:
            session.error(f"{wheel.name} has {parts} in its bill of materials")


@nox.session
def build(session: nox.Session) -> None:
    """Make an sdist, a compiled and a pure wheel in dist/; run the suite on each in a clean environment."""
    install(session, *group("build"), *group("upload"))
    work = Path(session.create_tmp()).resolve()
    dist = ROOT / "dist"
    shutil.rmtree(dist, ignore_errors=True)
    sdist, source = make_sdist(session, work)
    artefacts = {"sdist": sdist}
    for variant in ("ext", "pure"):
        backend = ("python", "-m", "build", "--outdir", str(work / "out" / variant), "--wheel")
        session.run(*backend, str(source), env=environment(variant))
        (artefacts[variant],) = (work / "out" / variant).iterdir()
    check_contents(session, artefacts)
    check_bills(session, (artefacts["ext"], artefacts["pure"]))
    dist.mkdir()
    for artefact in artefacts.values():
        shutil.copy2(artefact, dist)
    session.run("twine", "check", "--strict", *map(str, sorted(dist.iterdir())))
    # From here on the sdist's own tests run, next to nothing that could be imported in the package's place.
    session.chdir(source)
    for kind, artefact in artefacts.items():
        env = environment("pure" if kind == "pure" else "ext")
        # An sdist needs what it is built with.
        what = (str(artefact),) if kind == "sdist" else ("--no-index", "--find-links", str(artefact.parent), "ebbpool")
        run_alone(session, work / f"clean-{kind}", what, group("test"), ("-m", "pytest"), **env)


@nox.session
def wheels(session: nox.Session) -> None:
    """Make an sdist, and of it the wheels for this kind of machine with cibuildwheel, tested, in dist/."""
    install(session, *group("wheels"), *group("upload"))
    dist = ROOT / "dist"
    shutil.rmtree(dist, ignore_errors=True)
    dist.mkdir()
    sdist, _ = make_sdist(session, Path(session.create_tmp()).resolve())
    shutil.copy2(sdist, dist)
    session.run("cibuildwheel", "--output-dir", str(dist), *session.posargs, str(sdist))
    check_bills(session, dist.glob("*.whl"))
    session.run("twine", "check", "--strict", *map(str, sorted(dist.iterdir())))


@nox.session(python=COMPILING)
def wheel(session: nox.Session) -> None:
    """Make and test a wheel with the settings of cibuildwheel, but for a Python of this machine, in dist/local/."""
    install(session, *group("build"), *group("repair"))
    settings = PYPROJECT["tool"]["cibuildwheel"]
    here = settings.get({"linux": "linux", "darwin": "macos", "win32": "windows"}[sys.platform], {})
    env = settings["environment"] | here.get("environment", {})
    work = Path(session.create_tmp()).resolve()
    _, source = make_sdist(session, work)
    session.run("python", "-m", "build", "--outdir", str(work / "out/wheel"), "--wheel", str(source), env=env)
    (made,) = (work / "out/wheel").iterdir()
    if sys.platform == "linux":
        session.run("auditwheel", "repair", "--wheel-dir", str(work / "out/repaired"), str(made))
        (made,) = (work / "out/repaired").iterdir()
    check_bills(session, [made])
    alone = work / "out/tests"
    alone.mkdir()
    for name in settings["test-sources"]:
        (source / name).rename(alone / name)
    session.chdir(alone)
    what = ("--no-index", "--find-links", str(made.parent), "ebbpool")
    _, *command = shlex.split(settings["test-command"])
    run_alone(session, work / "clean", what, settings["test-requires"], command, **env)
    (ROOT / "dist/local").mkdir(parents=True, exist_ok=True)
    shutil.copy2(made, ROOT / "dist/local")
