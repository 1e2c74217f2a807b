"""Flask under gunicorn, with a thread for each request that waits, and none while it is quiet.

Start it with::

    python -m pip install flask gunicorn
    gunicorn --worker-class flask_gunicorn.Worker flask_gunicorn:app
"""

import time
from typing import Any, ClassVar

from flask import Flask

import ebbpool
from ebbpool.gunicorn import AdaptiveThreadWorker


class Worker(AdaptiveThreadWorker):
    """Answer 503 to requests that have waited for a thread for 5 seconds, and log what runs for 30."""

    settings: ClassVar[dict[str, Any]] = {"thread_name_prefix": "web", "max_wait": 5.0, "warn_after": 30.0}


app = Flask(__name__)


@app.get("/report")
def report() -> dict[str, str]:
    """Ask another service, which takes a tenth of a second."""
    time.sleep(0.1)
    return {"status": "done"}


@app.get("/threads")
def threads() -> dict[str, int]:
    """Return how many threads each pool of this process has."""
    return {pool.name: pool.stats().workers for pool in ebbpool.pools()}
