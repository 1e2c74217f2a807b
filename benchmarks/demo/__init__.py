"""What a server gains by it, end to end: the same requests to FastAPI servers with and without ebbpool.

The app has plain ``def`` endpoints that sleep, compute and query a database through SQLAlchemy's 15 connections, and a
sync health check, as most apps have them. Three servers run it: stock, where anyio lets forty calls run at once; with
256 tokens, the usual remedy; and with one line, ``ebbpool.anyio.install()``. They live side by side, and bear one load
at a time: many clients ask at once, and a prober asks for the health check every 20 ms until the last has its answer.

A busy machine is to harm none of them more than the others: they take turns in an order that rotates, each is warmed up
before its turn, and the figures are medians over the rounds. The clients are one process with one selector, which does
nothing else. Latencies count from when a request was due, even if its client still waited for an answer. Every answer
is known beforehand and compared byte for byte. Each server says from its event loop how many threads it has beside that
loop, and is watched after the last answer for 12 s without a request: longer than the 10 s for which `AdaptiveExecutor`
keeps an idle thread.
"""
