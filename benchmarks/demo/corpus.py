"""The blocking work: full-text search in SQLite, and hashing of the files found.

Standard library only. Every function here blocks and is meant for a worker thread.
"""

from __future__ import annotations

import contextlib
import hashlib
import json
import sqlite3
import sysconfig
import threading
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

DIGEST_FILES = 40
"""The most files one digest request reads."""

_SCHEMA = """
CREATE TABLE files (id INTEGER PRIMARY KEY, path TEXT NOT NULL);
CREATE VIRTUAL TABLE source USING fts5(text, content='', tokenize="ascii tokenchars '_'");
"""
_FIND = """
SELECT path FROM files WHERE id IN (SELECT rowid FROM source WHERE source MATCH ?) ORDER BY path
"""


class NoFullTextSearch(RuntimeError):
    """This interpreter's SQLite was built without FTS5."""


def stdlib_root() -> Path:
    """Return the folder of the running interpreter's standard library."""
    return Path(sysconfig.get_path("stdlib"))


def source_files(root: Path, limit: int | None = None) -> list[str]:
    """Return the Python files below ``root``, but no installed packages: sorted, relative, POSIX paths.

    Args:
        root: The folder to look in.
        limit: Keep at most this many, spread evenly over the sorted list; all when None.
    """
    outside = {"site-packages", "dist-packages", "__pycache__"}
    found = sorted(
        path.relative_to(root).as_posix()
        for path in root.rglob("*.py")
        if path.is_file() and not outside.intersection(path.relative_to(root).parts)
    )
    if limit is None or len(found) <= limit:
        return found
    return [found[i * len(found) // limit] for i in range(limit)]


def build_index(database: Path, root: Path, paths: Sequence[str], advance: Callable[[], None]) -> None:
    """Write a new index of ``paths`` to ``database``; calls ``advance`` once per file.

    Raises:
        NoFullTextSearch: SQLite lacks FTS5.
    """
    with contextlib.closing(sqlite3.connect(database)) as connection, connection:
        try:
            connection.executescript(_SCHEMA)
        except sqlite3.OperationalError as error:
            if "fts5" not in str(error):
                raise
            raise NoFullTextSearch(
                f"SQLite {sqlite3.sqlite_version} of this Python has no FTS5 ({error}); the demo needs it"
            ) from error
        for number, path in enumerate(paths):
            text = (root / path).read_bytes().decode("utf-8", "replace")
            connection.execute("INSERT INTO files VALUES (?, ?)", (number, path))
            connection.execute("INSERT INTO source (rowid, text) VALUES (?, ?)", (number, text))
            advance()


def sha256_of(path: Path) -> str:
    """Return the SHA-256 of a file's content, in hexadecimal."""
    with path.open("rb") as file:
        return hashlib.file_digest(file, "sha256").hexdigest()


def encode(answer: dict[str, Any]) -> bytes:
    """Return an answer as the one JSON text that stands for it."""
    return json.dumps(answer, sort_keys=True, separators=(",", ":")).encode()


class Session:
    """One thread's connection to the index, closed when its thread ends."""

    def __init__(self, database: Path) -> None:
        # check_same_thread: a thread-local value may be finalised by another thread at interpreter exit.
        self.connection = sqlite3.connect(f"{database.as_uri()}?mode=ro", uri=True, check_same_thread=False)

    def __del__(self) -> None:
        if "connection" in self.__dict__:
            self.connection.close()


class Library:
    """The indexed source tree, used from any number of threads at once.

    Args:
        database: What `build_index` wrote.
        root: The folder that the indexed paths are relative to.
    """

    def __init__(self, database: Path, root: Path) -> None:
        self._database = database.resolve()
        self._root = root
        self._local = threading.local()

    def find(self, query: str) -> list[str]:
        """Return the paths of the files that contain every word of ``query``, sorted."""
        if not hasattr(self._local, "session"):
            self._local.session = Session(self._database)
        rows = self._local.session.connection.execute(_FIND, (query,))
        return [path for (path,) in rows]

    def search(self, query: str) -> bytes:
        """Answer a search: the files found."""
        return encode({"query": query, "files": self.find(query)})

    def digest(self, query: str) -> bytes:
        """Answer a digest: how many files were found, and one SHA-256 over the first of them, in order."""
        found = self.find(query)
        total = hashlib.sha256()
        for path in found[:DIGEST_FILES]:
            total.update((self._root / path).read_bytes())
        return encode({"query": query, "found": len(found), "sha256": total.hexdigest()})

    def verify(self, path: str, fetch: Callable[[str], str]) -> bytes:
        """Answer a verification: a file's SHA-256 beside the one that ``fetch(path)`` returns."""
        here = sha256_of(self._root / path)
        there = fetch(path)
        return encode({"path": path, "sha256": here, "stored": there, "same": here == there})
