"""The load generator's process: a few hundred clients, and the slow store that the app leans on."""

from __future__ import annotations

import argparse
import asyncio
import json
import time
from collections.abc import Sequence
from pathlib import Path

from benchmarks.load import http

from . import upstream
from .control import Link
from .plan import Plan, Request

Row = tuple[int, float, float, float, str]
"""Index of the request in the plan; when it was sent and when answered (s from the start); how much later it
was sent than it could have been (s); and "" or what was wrong."""


class Client:
    """One keep-alive connection to 127.0.0.1, opened when first needed and again after a failure."""

    def __init__(self, port: int) -> None:
        self._port = port
        self._streams: tuple[asyncio.StreamReader, asyncio.StreamWriter] | None = None

    async def connect(self) -> tuple[asyncio.StreamReader, asyncio.StreamWriter]:
        """Open the connection unless it is open."""
        if self._streams is None:
            self._streams = await asyncio.open_connection("127.0.0.1", self._port)
        return self._streams

    def close(self) -> None:
        """Close the connection; the next request opens another."""
        if self._streams is not None:
            self._streams[1].close()
            self._streams = None

    async def get(self, target: str) -> tuple[int, bytes]:
        """Send one GET request and return status and body.

        Raises:
            BadResponse: The response was not understood.
            OSError, EOFError: The connection failed.
        """
        reader, writer = await self.connect()
        complete = False
        try:
            writer.write(http.request(target))
            head = await reader.readuntil(http.END_OF_HEAD)
            status, length = http.parse_head(head)
            body = await reader.readexactly(length)
            complete = b"\r\nconnection: close" not in head.lower()
            return status, body
        finally:
            if not complete:
                self.close()


def verdict(status: int, body: bytes, expected: bytes) -> str:
    """Return "" for a right answer, else what is wrong with it."""
    if status != 200:
        return f"error: status {status}: {body[:200].decode('utf-8', 'replace')}"
    if body != expected:
        return f"wrong: {body[:200]!r} instead of {expected[:200]!r}"
    return ""


async def ask(client: Client, target: str, expected: bytes) -> str:
    """Send one request and judge its answer, as `verdict` does."""
    try:
        return verdict(*await client.get(target), expected)
    except (OSError, EOFError, http.BadResponse, asyncio.LimitOverrunError) as error:
        return f"error: {error!r}"


async def play(client: Client, mine: Sequence[tuple[int, Request]], plan: Plan, start: float) -> list[Row]:
    """Send one client's requests when they are due, one after the other; one due meanwhile waits its turn."""
    loop = asyncio.get_running_loop()
    give_up = start + plan.scale.burst_at + plan.scale.patience
    rows: list[Row] = []
    for number, request in mine:
        could = max(loop.time(), start + request.at)
        await asyncio.sleep(could - loop.time())
        sent = loop.time()
        try:
            async with asyncio.timeout_at(give_up):
                said = await ask(client, request.target, plan.answers[request.answer].encode())
        except TimeoutError:
            said = "error: not answered in time"
        rows.append((number, sent - start, loop.time() - start, max(0.0, sent - could), said))
    return rows


async def generate(port: int, plan: Plan, link: Link) -> list[Row]:
    """Open every connection, say so, play the whole plan, and return what came of each request."""
    clients = [Client(port) for _ in range(plan.scale.clients)]
    sequences: list[list[tuple[int, Request]]] = [[] for _ in clients]
    for number, request in enumerate(plan.requests):
        sequences[request.client].append((number, request))
    try:
        for client in clients:
            await client.connect()
        start = asyncio.get_running_loop().time()
        await link.send(event="started")
        parts = await asyncio.gather(
            *(play(client, mine, plan, start) for client, mine in zip(clients, sequences, strict=True))
        )
        return sorted(row for part in parts for row in part)
    finally:
        for client in clients:
            client.close()


def save(out: Path, rows: list[Row], cpu: float) -> None:
    """Write what came of the load, and the processor seconds this process spent on it."""
    out.write_text(json.dumps({"rows": rows, "cpu": cpu}), encoding="utf-8")


async def main(control: int, plan: Plan, out: Path) -> None:
    """Play the plan once the parent names the app's port, then keep the store up until the parent lets go."""
    link = await Link.to_parent(control)
    store = await upstream.serve(plan.digests)
    await link.send(event="store", port=store.sockets[0].getsockname()[1])
    go = await link.receive()
    if go is not None:
        parent_gone = asyncio.ensure_future(link.receive())
        cpu = time.process_time()
        load = asyncio.ensure_future(generate(go["port"], plan, link))
        await asyncio.wait({load, parent_gone}, return_when=asyncio.FIRST_COMPLETED)
        if load.done():
            save(out, load.result(), time.process_time() - cpu)
            await link.send(event="finished")
        await parent_gone
    store.close()


if __name__ == "__main__":
    parser = argparse.ArgumentParser(prog="python -m benchmarks.demo.load")
    parser.add_argument("--control", type=int, required=True)
    parser.add_argument("--plan", type=Path, required=True)
    parser.add_argument("--out", type=Path, required=True)
    options = parser.parse_args()
    asyncio.run(main(options.control, Plan.load(options.plan), options.out))
