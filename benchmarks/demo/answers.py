"""What every answer has to be, worked out in plain Python without SQLite.

The index splits text as SQLite's ``ascii`` tokenizer does with ``_`` added: a word is a run of ASCII
letters and digits, ``_``, and bytes from 0x80 up; upper and lower case ASCII letters are the same.
`words_in` repeats that rule on the bytes of a file.
"""

from __future__ import annotations

import hashlib
import re
from collections.abc import Callable, Iterable
from pathlib import Path

from .corpus import DIGEST_FILES, encode

_WORD = re.compile(rb"[A-Za-z0-9_\x80-\xff]+")


def words_in(source: bytes) -> set[bytes]:
    """Return the words of a source text, in lower case."""
    return set(_WORD.findall(source.lower()))


class Answers:
    """Expected answers over a set of files.

    Args:
        root: The folder that ``paths`` are relative to.
        paths: The indexed files.
        queries: The searches to be asked: words, separated by spaces, all of which a file must contain.
        advance: Called once per file scanned.
    """

    def __init__(self, root: Path, paths: Iterable[str], queries: Iterable[str], advance: Callable[[], None]) -> None:
        self._root = root
        self.digests: dict[str, str] = {}
        self._found: dict[str, list[str]] = {query: [] for query in queries}
        wanted = {query: {word.encode() for word in query.lower().split()} for query in self._found}
        for path in sorted(paths):
            source = (root / path).read_bytes()
            self.digests[path] = hashlib.sha256(source).hexdigest()
            words = words_in(source)
            for query, needed in wanted.items():
                if needed <= words:
                    self._found[query].append(path)
            advance()

    def useful(self) -> list[str]:
        """Return the queries that find at least one file."""
        return [query for query, found in self._found.items() if found]

    def search(self, query: str) -> bytes:
        """Return the body that ``/search`` must answer with."""
        return encode({"query": query, "files": self._found[query]})

    def digest(self, query: str) -> bytes:
        """Return the body that ``/digest`` must answer with."""
        found = self._found[query]
        read = b"".join((self._root / path).read_bytes() for path in found[:DIGEST_FILES])
        return encode({"query": query, "found": len(found), "sha256": hashlib.sha256(read).hexdigest()})

    def verify(self, path: str) -> bytes:
        """Return the body that ``/verify`` must answer with."""
        digest = self.digests[path]
        return encode({"path": path, "sha256": digest, "stored": digest, "same": True})
