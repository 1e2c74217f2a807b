"""The users of the lab: ``python load.py freeze``, ``slow`` or ``burn``."""

import asyncio
import re
import sys
import time
from collections import Counter
from typing import Any

HOST, PORT = "127.0.0.1", 8000


async def ask(path: str, patience: float = 60.0, connection: Any = None) -> str:
    """Return the whole answer, or nothing if it does not come within `patience` seconds."""
    reader, writer = connection or await asyncio.open_connection(HOST, PORT)
    try:
        async with asyncio.timeout(patience):
            writer.write(f"GET {path} HTTP/1.0\r\n\r\n".encode())
            return (await reader.read()).decode()
    except TimeoutError:
        return ""
    finally:
        writer.close()


async def at_once(clients: int, path: str, patience: float = 60.0) -> list[str]:
    """Send all clients at the same moment."""
    connections = [await asyncio.open_connection(HOST, PORT) for _ in range(clients)]
    return await asyncio.gather(*(ask(path, patience, one) for one in connections))


def told(answers: list[str]) -> str:
    """Count answers by their status."""
    counts = Counter(answer[9:12] or "gave up" for answer in answers)
    return ", ".join(f"{count} x {what}" for what, count in sorted(counts.items()))


async def freeze() -> None:
    """Sixty clients at once ask for items."""
    begun = time.monotonic()
    print(f"{told(await at_once(60, '/items'))}, in {time.monotonic() - begun:.1f} s")


async def slow() -> None:
    """Eighty clients a second ask for a report, and leave after two seconds."""
    begun, clients = time.monotonic(), []
    for number in range(4 * 80):
        await asyncio.sleep(begun + number / 80 - time.monotonic())
        clients.append(asyncio.create_task(ask("/report", patience=2.0)))
    answers = await asyncio.gather(*clients)
    for second in range(4):
        print(f"second {second + 1}: {told(answers[80 * second :][:80])}")


async def burn() -> None:
    """Thirty clients ask for an export, and leave after half a second."""
    await at_once(30, "/export", patience=0.5)
    begun = now = time.monotonic()
    burnt = 0.0
    while busy := int(re.findall(r'state="busy"} (\d+)', await ask("/metrics"))[0]):
        before, now = now, time.monotonic()
        burnt += busy * (now - before)
        await asyncio.sleep(0.1)
    print(f"all left; their threads ran on for {now - begun:.1f} s, {burnt:.0f} s in all")


for name in sys.argv[1:]:
    asyncio.run({"freeze": freeze, "slow": slow, "burn": burn}[name]())
