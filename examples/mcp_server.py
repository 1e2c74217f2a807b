"""An MCP server whose sync tools run on ebbpool's threads; it needs the package `mcp`."""

import asyncio
import sqlite3
import time
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager

from mcp.server import MCPServer
from mcp.server.mcpserver import Context

import ebbpool.anyio
from ebbpool import AdaptiveExecutor, Session

Database = tuple[Session, sqlite3.Connection]


@asynccontextmanager
async def lifespan(server: MCPServer[Database]) -> AsyncIterator[Database]:
    """Run sync tools on a pool, and lease one of its threads for the database."""
    async with AdaptiveExecutor(thread_name_prefix="tools") as pool:
        with ebbpool.anyio.install(pool), pool.session() as session:
            connection = await asyncio.wrap_future(session.submit(sqlite3.connect, ":memory:"))
            try:
                yield session, connection
            finally:
                session.submit(connection.close)


mcp = MCPServer("example", lifespan=lifespan)


@mcp.tool()
def report() -> str:
    """Ask another service, which takes a tenth of a second."""
    time.sleep(0.1)
    return "done"


@mcp.tool()
def add_up(numbers: int) -> int:
    """Add up so many numbers; give up if the client has left."""
    total = 0
    for number in range(numbers):
        if number % 1000 == 0 and ebbpool.cancelled():
            break
        total += number
    return total


@mcp.tool()
async def query(sql: str, context: Context[Database]) -> list[list[int | str]]:
    """Return the rows of a query."""
    session, connection = context.request_context.lifespan_context
    rows = session.submit(lambda: connection.execute(sql).fetchall())
    return [list(row) for row in await asyncio.wrap_future(rows)]


if __name__ == "__main__":
    mcp.run("streamable-http")
