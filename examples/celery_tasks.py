"""Celery tasks on a pool that grows while tasks wait.

The broker is a folder, so that it runs without a server::

    python -m pip install celery
    celery -A celery_tasks worker --concurrency 100
    python celery_tasks.py
"""

import time
from pathlib import Path

from celery import Celery, group

FOLDER = Path("celery-queue").absolute()
for name in ("queue", "results"):
    (FOLDER / name).mkdir(parents=True, exist_ok=True)

app = Celery("celery_tasks", broker="filesystem://", backend=f"file://{FOLDER / 'results'}")
app.conf.update(
    worker_pool="ebbpool.celery:TaskPool",
    broker_transport_options={
        "data_folder_in": str(FOLDER / "queue"),
        "data_folder_out": str(FOLDER / "queue"),
        "control_folder": str(FOLDER),
    },
)


@app.task
def fetch(url: str) -> str:
    """Ask another service, which takes a tenth of a second."""
    time.sleep(0.1)
    return f"answer of {url}"


if __name__ == "__main__":
    begun = time.monotonic()
    answers = group(fetch.s(f"https://example.com/{number}") for number in range(20))().get(timeout=60)
    print(f"{len(answers)} answers in {time.monotonic() - begun:.1f} s, the last {answers[-1]}")
