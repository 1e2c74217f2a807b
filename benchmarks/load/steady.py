"""HTTP clients at a bounded rate that survive the deaths of those who serve them: who was refused, what was lost?"""

from __future__ import annotations

import asyncio
import time
from dataclasses import dataclass, field

from benchmarks.load.http import BadResponse, Connection, request


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
        self._text, self._port, self._kept, self._tally = request(target, kept), port, kept, tally
        self._connection: Connection | None = None

    async def ask(self, due: float) -> None:
        """Send a request that was due at a moment of `time.perf_counter`, and judge the answer: a number."""
        keep = False
        try:
            # What the server ended while nobody asked is no loss.
            if self._connection is None or self._connection.ended:
                self.close()
                self._connection = await Connection.open(self._port)
            status, body = await self._connection.get(self._text)
            if status != 200 or not body.isdigit():
                raise BadResponse(f"{status} {body!r}")
            self._tally.latencies.append(time.perf_counter() - due)
            keep = self._kept
        except ConnectionRefusedError:
            self._tally.refused += 1
        except OSError:
            self._tally.lost.append(time.time())
        except BadResponse:
            self._tally.wrong += 1
        finally:
            if not keep:
                self.close()

    def close(self) -> None:
        if self._connection is not None:
            self._connection.close()
            self._connection = None


def ask_steadily(
    port: int, target: str, *, fresh: float, kept: int, kept_rate: float, seconds: float, patience: float
) -> Tally:
    """Ask at a steady rate, whatever becomes of the answers.

    `fresh` requests a second come from new connections, `kept_rate` from each of so many that are kept, unless it waits
    for an answer. What is under way after so many seconds is waited for a while (`patience`, in seconds).
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
                asking = asyncio.create_task(client.ask(due))
                asked.add(asking)
                await asyncio.wait({asking})
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
