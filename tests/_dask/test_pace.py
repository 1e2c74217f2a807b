"""What short calls may share is decided from the times that calls have taken."""

from __future__ import annotations

from support.dask import pace as rule


def test_nothing_is_known_at_first() -> None:
    pace = rule.Pace()
    assert pace.time("f") is None
    assert pace.calls(4, 0.0) == 4


def test_short_calls_share() -> None:
    pace = rule.Pace()
    pace.expect("f", 0.0)
    pace.note("f", 0.001, 0.0)
    assert pace.time("f") == 0.001
    assert pace.calls(4, 0.0) == 4 * rule.SHARING
    assert pace.calls(100, 0.0) == rule.SHARERS
    assert pace.calls(1000, 0.0) == 1000


def test_a_longer_time_counts_at_once_and_is_forgotten_slowly() -> None:
    pace = rule.Pace()
    pace.note("f", 0.001, 0.0)
    pace.note("f", 1.0, 0.0)
    assert pace.time("f") is None and pace.calls(4, 0.0) == 4
    for _ in range(10):
        pace.note("f", 0.001, 0.0)
    assert pace.time("f") is None
    for _ in range(30):
        pace.note("f", 0.001, 0.0)
    assert pace.time("f") is not None


def test_a_call_that_is_not_known_to_be_short_keeps_others_from_sharing_for_a_moment() -> None:
    pace = rule.Pace()
    pace.note("short", 0.001, 0.0)
    pace.expect("unknown", 10.0)
    assert pace.calls(4, 10.0) == 4
    assert pace.calls(4, 10.0 + rule.CAUTION) > 4
    pace.note("long", 2 * rule.SHORT, 20.0)
    pace.note("short", 0.001, 20.0)
    pace.expect("long", 30.0)
    assert pace.calls(4, 30.0) == 4
    assert pace.calls(4, 30.0 + rule.CAUTION) > 4


def test_what_was_not_called_for_longest_is_forgotten_first() -> None:
    pace = rule.Pace()
    pace.note("old", 0.001, 0.0)
    pace.note("used", 0.001, 0.0)
    for number in range(rule.KNOWN - 1):
        pace.note("used", 0.001, 0.0)
        pace.note(str(number), 0.001, 0.0)
    assert pace.time("old") is None and pace.time("used") == 0.001


def test_functions_that_are_never_called_are_not_collected() -> None:
    pace = rule.Pace()
    for number in range(3 * rule.KNOWN):
        pace.expect(str(number), 0.0)
    assert len(pace._unknown) <= rule.KNOWN
