"""What a server gains by it, end to end: the same requests to servers with and without ebbpool.

Every server and the load come from processes of their own. Latencies count from when a request was due (in the
rounds: from when it was sent). Every answer is known beforehand and compared byte for byte; one wrong or missing answer
makes the demo fail. Threads are counted from outside (``/proc``) where the system allows it: all that the process has
beside its event loop's own, so ebbpool's timekeeper counts as one.

**FastAPI** (`fastapi_case.py`): plain ``def`` endpoints that block, as most apps have them. anyio lets forty of them
run at once. Three servers: stock; with the tokens raised by hand to ebbpool's ceiling, the usual remedy; and with one
more line, ``ebbpool.anyio.install()``.

1. *Rounds* (`drills.py`), all servers being up, each taking its turn in every order: 200 clients ask at once for
   something that sleeps for 100 ms, the first time on servers that have answered nothing yet; 64 clients ask for
   something trivial, and for something that sleeps for 5 ms, again as soon as they are answered, for 0.4 s.
2. *A slow upstream* (`trouble.py`), a fresh server each: 150 requests/s for 8 s, one in five a health check, three in
   five a call of an upstream that takes 50 to 300 ms (16 threads are busy on average), and for 3 s more than 1 s (90
   threads would be).

**asyncio** (`asyncio_case.py`): a Starlette app that answers from an SQLite full-text index of the running
interpreter's own standard library, and hands all its work to ``loop.run_in_executor(None, ...)``:

- ``/search?q=`` (quick): one FTS5 query; well under a millisecond of work.
- ``/digest?q=`` (middling): a query, then SHA-256 over up to 40 of the files found.
- ``/verify?n=&path=`` (slow): SHA-256 of one file, compared with the digest that a slow store hands out
  over TCP. The worker sits in ``recv`` for 50 to 300 ms, as it would in front of any slow neighbour.

The load (`load.py`): 300 clients, one keep-alive connection each, requests at random times drawn once from a seed. The
times do not depend on the answers, so all servers are offered the very same load, and a request's latency counts from
the moment it was due, even if its client still waited for an answer. A client pauses for at least 0.4 s between two
requests, longer than the slowest takes by itself: what waits does so because of the server.

1. *Steady*, 8 s at 200 requests/s: 79 % search, 6 % digest, 15 % verify. The slow ones alone keep 5.3
   threads busy on average (200/s x 0.15 x 175 ms). ``ThreadPoolExecutor()`` can just carry that on two
   processors (6 threads), but quick requests begin to queue behind slow ones while the processors are
   mostly idle; on eight processors (12 threads) it has room to spare.
2. *Quiet*, 3 s without a request (a pool that is behind catches up).
3. *Burst*: every client asks once, all at the same moment: 45 % search, 5 % digest, 50 % verify.

The server goes through that in a fresh process for each of ``ThreadPoolExecutor()``, ``AdaptiveExecutor()``
and a ``ThreadPoolExecutor`` of the same ceiling. Its answers are worked out by `answers.py`, which scans the files in
plain Python, without SQLite.

In both cases a server is watched after its last answer for 12 s without a request and without a call to its pool:
longer than the 10 s for which `AdaptiveExecutor` keeps an idle thread. Connections are opened before the clock starts;
nothing else is warmed up. The next server starts as soon as the one before has only its idle threads to be watched.
"""
