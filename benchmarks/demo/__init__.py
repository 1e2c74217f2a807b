"""What a server gains by it, end to end: the same requests to FastAPI servers with and without ebbpool.

Plain ``def`` endpoints that block, as most apps have them. anyio lets forty of them run at once. Three servers: stock;
with the tokens raised by hand to ebbpool's ceiling, the usual remedy; and with one line, ``ebbpool.anyio.install()``.
200 clients ask at once for something that sleeps for 100 ms, on a server that has answered nothing yet. Then come 150
requests/s for 8 s, two in five a health check, the others something that waits for an upstream, 50 to 300 ms (16
threads are busy on average), and for 3 s more than 1 s (90 threads would be).

Each server is a process of its own, and so is the load. Latencies count from when a request was due, even if its client
still waited for an answer. Every answer is known beforehand and compared byte for byte; one wrong or missing answer
makes the demo fail. Each server says, from its event loop, how many threads it has beside that loop; ebbpool's
timekeeper counts as one. It is watched after its last answer for 12 s without a request: longer than the 10 s for which
`AdaptiveExecutor` keeps an idle thread. The next server starts as soon as the one before has only its idle threads to
be watched.
"""
