"""What servers say of troubles that come again and again, and how long they wait after each."""

from __future__ import annotations

import errno
import logging

import pytest
from support.httpserver import Clock

from ebbpool._servers.accepting import Shortage
from ebbpool._servers.complaints import Complaint

ERROR = OSError(errno.EMFILE, "too many")


@pytest.fixture
def clock() -> Clock:
    return Clock()


def test_a_complaint_is_made_once_a_second_and_says_how_often(clock: Clock, caplog: pytest.LogCaptureFixture) -> None:
    complaint = Complaint(logging.ERROR, "no %s", clock)
    said = []
    for tick in range(35):
        clock.now = 1000.0 + tick / 10
        said.append(complaint.make("luck"))
    assert [tick for tick, logged in enumerate(said) if logged] == [0, 10, 20, 30]
    clock.now += 3600
    assert complaint.make("fun")
    clock.now += 1
    assert complaint.make("end")
    often = "no luck (10 times since this was last logged)"
    assert caplog.messages == ["no luck", often, often, often, "no fun (5 times since this was last logged)", "no end"]
    assert {(record.name, record.levelname) for record in caplog.records} == {("ebbpool.socketserver", "ERROR")}


def test_the_pause_grows_to_a_second_and_begins_anew_with_each_success(clock: Clock) -> None:
    shortage = Shortage(clock)
    pauses = [shortage.met(ERROR, False) for _ in range(10)]
    assert pauses == pytest.approx([0.01, 0.02, 0.04, 0.08, 0.16, 0.32, 0.64, 1.0, 1.0, 1.0])
    assert shortage.met(ERROR, True) == shortage.pause == pytest.approx(0.01)
    assert shortage.met(ERROR, False) == pytest.approx(0.02)
    shortage.over()
    assert shortage.pause == 0
    assert shortage.met(ERROR, False) == pytest.approx(0.01)


def test_a_shortage_that_comes_and_goes_is_told_once_a_second(clock: Clock, caplog: pytest.LogCaptureFixture) -> None:
    shortage = Shortage(clock)
    with caplog.at_level(logging.INFO, "ebbpool.socketserver"):
        for _ in range(100):
            clock.now += 0.01
            for _ in range(3):
                shortage.met(ERROR, False)
            shortage.over()
            shortage.over()
        clock.now += 1
        shortage.met(ERROR, False)
        shortage.over()
    begin = "cannot accept connections for now; new ones have to wait: [Errno 24] too many"
    again = "connections are accepted again"
    assert caplog.messages == [begin, again, f"{begin} (100 times since this was last logged)", again]
