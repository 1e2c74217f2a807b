"""The main job, end to end: one Starlette app, one load, three thread pools.

The app (`app.py`) answers from an SQLite full-text index of the running interpreter's own standard library.
All it does blocks, so every endpoint hands its work to ``loop.run_in_executor(None, ...)``:

- ``/search?q=`` (quick): one FTS5 query; well under a millisecond of work.
- ``/digest?q=`` (middling): a query, then SHA-256 over up to 40 of the files found.
- ``/verify?n=&path=`` (slow): SHA-256 of one file, compared with the digest that a slow store hands out
  over TCP. The worker sits in ``recv`` for 50 to 300 ms, as it would in front of any slow neighbour.

The load (`load.py`) comes from another process: 300 clients, one keep-alive connection each, requests at
random times drawn once from a seed. The times do not depend on the answers, so all three pools are offered
the very same load, and a request's latency counts from the moment it was due, even if its client still
waited for an answer. A client pauses for at least 0.4 s between two requests, longer than the slowest takes
by itself: what waits does so because of the server.

1. *Steady*, 8 s at 200 requests/s: 79 % search, 6 % digest, 15 % verify. The slow ones alone keep 5.3
   threads busy on average (200/s x 0.15 x 175 ms). ``ThreadPoolExecutor()`` can just carry that on two
   processors (6 threads), but quick requests begin to queue behind slow ones while the processors are
   mostly idle; on eight processors (12 threads) it has room to spare.
2. *Quiet*, 3 s without a request (a pool that is behind catches up).
3. *Burst*: every client asks once, all at the same moment: 45 % search, 5 % digest, 50 % verify.
4. *After*: 12 s without a request and without a call to the pool: longer than the 10 s for which
   `AdaptiveExecutor` keeps an idle thread.

The server goes through that in a fresh process for each of ``ThreadPoolExecutor()``, ``AdaptiveExecutor()``
and a ``ThreadPoolExecutor`` of the same ceiling. Connections are opened before the clock starts; nothing
else is warmed up. Threads are counted from outside (``/proc``) where the system allows it: all that the
process has beside its event loop's own, so ebbpool's timekeeper counts as one.

The answers are known beforehand from `answers.py`, which scans the files in plain Python, without SQLite.
Every body is compared byte for byte; one wrong or missing answer makes the demo fail.
"""
