"""The dashboard for Grafana: it fits Grafana's schema, and asks for metrics that there are."""

from __future__ import annotations

import importlib
import itertools
import json
import re
import shutil
import subprocess
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from support.pages import ROOT

DASHBOARD: dict[str, Any] = json.loads((ROOT / "docs/grafana/ebbpool.json").read_text(encoding="utf-8"))
LABELS = {"job", "instance", "pool", "lane", "loop", "state", "outcome", "le"}


def panels(inside: list[dict[str, Any]]) -> Iterator[dict[str, Any]]:
    for panel in inside:
        yield panel
        yield from panels(panel.get("panels", []))


PANELS = list(panels(DASHBOARD["panels"]))
TARGETS = [target for panel in PANELS for target in panel.get("targets", [])]
QUERIES = [target["expr"] for target in TARGETS]


def shared(theirs: Any, ours: Any) -> Any:
    """Return `theirs` without the keys that are not in `ours`."""
    if isinstance(theirs, dict) and isinstance(ours, dict):
        return {key: shared(value, ours[key]) for key, value in theirs.items() if key in ours}
    if isinstance(theirs, list) and isinstance(ours, list) and len(theirs) == len(ours):
        return list(map(shared, theirs, ours))
    return theirs


def test_the_dashboard_fits_the_schema() -> None:
    dashboard = pytest.importorskip("grafana_foundation_sdk.models.dashboard")
    encoder = importlib.import_module("grafana_foundation_sdk.cog.encoder")
    # Grafana's own classes for the options of panels, which leave out what the schema does not have.
    importlib.import_module("grafana_foundation_sdk.cog.plugins").register_default_plugins()
    read = json.loads(encoder.JSONEncoder().encode(dashboard.Dashboard.from_json(DASHBOARD)))
    assert shared(read, DASHBOARD) == DASHBOARD


def test_the_dashboard_asks_for_metrics_that_there_are() -> None:
    pytest.importorskip("prometheus_client")
    collector = importlib.import_module("ebbpool.prometheus").PoolCollector(sample=0.5)
    suffixes = {"counter": "_total", "histogram": "_bucket"}
    names = {family.name + suffixes.get(family.type, "") for family in collector.describe()}
    collector.close()
    asked = {name for query in QUERIES for name in re.findall(r"\bebbpool_\w+", query)}
    assert asked == names


def test_the_dashboard_knows_the_labels() -> None:
    used = {label for query in QUERIES for label in re.findall(r"[{,]\s*(\w+)=~?\"", query)}
    used |= {name for query in QUERIES for names in re.findall(r"by \(([^)]*)\)", query) for name in names.split(", ")}
    shown = {name for target in TARGETS for name in re.findall(r"{{(\w+)}}", target["legendFormat"])}
    assert used | shown == LABELS


def test_prometheus_can_read_the_queries(tmp_path: Path) -> None:
    promtool = shutil.which("promtool")
    if promtool is None:
        pytest.skip("promtool is not installed here")
    rules = [
        {"record": f"query:{number}", "expr": re.sub(r"\$\w+", ".*", query.replace("$__rate_interval", "1m"))}
        for number, query in enumerate(QUERIES)
    ]
    # JSON is YAML, too.
    file = tmp_path / "rules.json"
    file.write_text(json.dumps({"groups": [{"name": "dashboard", "rules": rules}]}), encoding="utf-8")
    done = subprocess.run([promtool, "check", "rules", str(file)], capture_output=True, text=True, timeout=50)
    assert done.returncode == 0, done.stdout + done.stderr


def test_panels_have_numbers_and_places_of_their_own() -> None:
    numbers = [panel["id"] for panel in PANELS]
    assert len(numbers) == len(set(numbers))
    taken: set[tuple[int, int]] = set()
    for panel in PANELS:
        place = panel["gridPos"]
        left, top = place["x"], place["y"]
        assert left + place["w"] <= 24
        cells = {*itertools.product(range(left, left + place["w"]), range(top, top + place["h"]))}
        assert not cells & taken, panel["title"]
        taken |= cells
