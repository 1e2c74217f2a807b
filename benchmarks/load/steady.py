"""HTTP clients at a bounded rate that survive the deaths of those who serve them: who was refused, what was lost?"""

from __future__ import annotations

import asyncio
import time
from dataclasses import dataclass, field

from benchmarks.load.http import END_OF_HEAD, BadResponse, parse_head


@dataclass(slots=True)
class Tally:
    """What became of the requests.

    Attributes:
        latencies: Seconds that each request took that was answered right, from when it was due.
        refused: Connections that nobody took.
        lost: Moments (as of `time.time`) at which a connection ended with a request under way.
        wrong: Responses that were not what they ought to be.
        unanswered: Requests that had no answer at the end.
    """

    latencies: list[float] = field(default_factory=list)
    refused: int = 0
    lost: list[float] = field(default_factory=list)
    wrong: int = 0
    unanswered: int = 0


class _Client:
    """One client, which keeps its connection if the server does."""

    def __init__(self, port: int, target: str, kept: bool, tally: Tally) -> None:
        close = "" if kept else "connection: close\r\n"
        self._text = f"GET {target} HTTP/1.1\r\nhost: localhost\r\n{close}\r\n".encode("ascii")
        self._port, self._kept, self._tally = port, kept, tally
        self._streams: tuple[asyncio.StreamReader, asyncio.StreamWriter] | None = None

    async def ask(self, due: float) -> None:
        """Send a request that was due at a moment of `time.perf_counter`, and judge the answer: a number."""
        try:
            # What the server ended while nobody asked is no loss.
            if self._streams is None or self._streams[0].at_eof():
                self.close()
                self._streams = await asyncio.open_connection("127.0.0.1", self._port)
            reader, writer = self._streams
            writer.write(self._text)
            status, length = parse_head(await reader.readuntil(END_OF_HEAD))
            body = await reader.readexactly(length)
            if status != 200 or not body.isdigit():
                raise BadResponse(f"{status} {body!r}")
        except ConnectionRefusedError:
            self._tally.refused += 1
            self.close()
        except (OSError, asyncio.IncompleteReadError):
            self._tally.lost.append(time.time())
            self.close()
        except BadResponse:
            self._tally.wrong += 1
            self.close()
        except asyncio.CancelledError:
            self.close()
            raise
        else:
            self._tally.latencies.append(time.perf_counter() - due)
            if not self._kept:
                self.close()

    def close(self) -> None:
        if self._streams is not None:
            self._streams[1].transport.abort()
            self._streams = None


def ask_steadily(
    port: int, target: str, *, fresh: float, kept: int, kept_rate: float, seconds: float, patience: float
) -> Tally:
    """Ask at a steady rate, whatever becomes of the answers: from new connections, and from some that are kept.

    Args:
        port: Where the server listens.
        target: What to ask for.
        fresh: Requests a second from new connections.
        kept: How many connections are kept.
        kept_rate: Requests a second from each of them; one that waits for an answer asks later.
        seconds: For how long.
        patience: Seconds that what is still under way then is waited for.
    """
    tally = Tally()

    async def main() -> None:
        start = time.perf_counter()
        asked = set[asyncio.Task[None]]()

        async def ask_anew() -> None:
            for number in range(round(fresh * seconds)):
                due = start + number / fresh
                await asyncio.sleep(due - time.perf_counter())
                asked.add(asyncio.create_task(_Client(port, target, False, tally).ask(due)))

        async def ask_again(first: float) -> None:
            client, due = _Client(port, target, True, tally), start + first
            while due < start + seconds:
                await asyncio.sleep(due - time.perf_counter())
                request = asyncio.create_task(client.ask(due))
                asked.add(request)
                await asyncio.wait({request})
                due = max(due + 1 / kept_rate, time.perf_counter())
            client.close()

        clients = [asyncio.create_task(ask_again(number / kept / kept_rate)) for number in range(kept)]
        clients.append(asyncio.create_task(ask_anew()))
        await asyncio.wait(clients, timeout=seconds + patience)
        under_way = {task for task in asked if not task.done()}
        if under_way:
            await asyncio.wait(under_way, timeout=max(0.0, start + seconds + patience - time.perf_counter()))
        tally.unanswered = sum(not task.done() for task in asked)

    asyncio.run(main())
    return tally
