"""How fast ebbpool is beside its rivals: one file per question, `python -m benchmarks` runs them.

- `submit_collect.py`, `offload.py`, `waiting.py` and so on each hold one `QUESTION`: what is measured, of whom, how,
  and which figures are to be reached.
- `engine/` makes cells of a question and its peers, and measures each in a fresh process, the peers in turn.
- `peers/` has the rivals: `table.py` names each once, `pools.py` and `ways.py` give them one face.
- `servers/` has the programs that are loaded, each in a process of its own, and `serving.py`, which starts and watches
  them.
- `load/` has the clients, every answer of which is looked at, and what `sizing` gives a pool to do.
- `report/` makes tables, verdicts and pictures of the samples.
- `demo/` is a programme of its own: whole servers with and without ebbpool, `python -m benchmarks.demo`.

It is run from the root of the repository and is no part of the installed package.
"""
