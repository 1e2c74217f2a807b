"""Who is to be started, stopped and killed: every rule of the watchdog, on a clock in the test's hand."""

from __future__ import annotations

import logging
import math

import pytest
from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, precondition, rule
from support.prefork import LIMIT, World, watchdog


def test_a_child_that_served_is_replaced_at_once_every_time() -> None:
    world = World(1).serving()
    for killed in range(1, 31):
        world.gone(killed)
        assert world.running == {killed + 1: 0}, "replaced in the same moment"
        world.later(0.1).ready(killed + 1).later(watchdog.SETTLE)
    assert "restart_delayed" not in world.events()


@pytest.mark.parametrize("told", [[], ["ready"], ["ready", "leaving"]])
def test_a_crash_at_start_is_followed_by_growing_delays(told: list[str]) -> None:
    world = World(2).serving()
    delays = []
    for _ in range(12):
        (serial,) = world.of(0)
        for event in told if delays else []:
            world.tell(event, serial)
        world.gone(serial, 0 if "leaving" in told else 1)
        began = world.now
        while not world.of(0):
            world.later(0.01, [2])
        delays.append(world.now - began)
    assert delays[0] == pytest.approx(0, abs=0.02), "that one had served"
    assert delays[1:5] == [pytest.approx(expected, abs=0.02) for expected in (0.1, 0.2, 0.4, 0.8)]
    assert max(delays) <= watchdog.LONGEST_DELAY + 0.02
    assert delays[-1] == pytest.approx(watchdog.LONGEST_DELAY, abs=0.02)
    assert world.of(1) == [2], "its neighbour is left alone"
    world.ready(*world.of(0)).later(watchdog.SETTLE).gone(*world.of(0))
    assert world.of(0), "having served for a while makes up for it"
    world.gone(*world.of(0), 1)
    assert world.last("restart_delayed").fields["failures"] == 1


def test_if_no_first_child_ever_gets_ready_that_is_the_end() -> None:
    world = World(2).begin().gone(1, 1)
    assert world.dog.status is None, "the other one may get ready yet"
    world.later(0.1)
    (again,) = world.of(0)
    world.gone(2, 1)
    assert world.killed == [again] and "gave_up" in world.events()
    assert world.gone(again).dog.status == watchdog.NEVER_STARTED
    assert not world.running


def test_a_process_that_the_system_refuses_counts_as_a_crash_at_start() -> None:
    world = World(1).serving().gone(1)
    del world.running[2]
    world.tell("gone", 2, BlockingIOError(11, "no more processes"))
    assert not world.running and "no more processes" in str(world.last("start_failed").fields["error"])
    assert world.later(0.1).running == {3: 0}


@pytest.mark.parametrize("silent", [False, True])
def test_a_child_that_takes_too_long_is_killed_and_replaced(silent: bool) -> None:
    world = World(2).begin().ready(1, *[2] * silent).later(LIMIT - 1, [1])
    assert not world.killed
    world.later(1, [1])
    assert world.killed == [2]
    told = world.last("child_unresponsive" if silent else "child_not_ready")
    assert told.fields == {"number": 1, "seconds": LIMIT} and told.level == logging.ERROR
    world.later(0 if silent else 0.1)
    assert world.running == {1: 0, 2: 1, 3: 1}, "nobody waits until the dead one is gone"
    world.ready(3).tell("beat", 2).tell("ready", 2).tell("leaving", 2).later(2 * LIMIT, [1, 3])
    assert world.killed == [2] and world.running == {1: 0, 2: 1, 3: 1}, "a late word of it changes nothing"
    world.gone(2)
    assert world.live() == [0, 1] and 2 not in world.dog.lives
    assert world.last("child_exited").fields["exitcode"] == -9


def test_an_infinite_limit_is_never_due() -> None:
    world = World(1)
    dog = world.dog = watchdog.Watchdog(world, 1, watchdog.Limits(math.inf, math.inf, math.inf))
    for event, serial in (("tick", None), ("ready", 1), ("stop", None)):
        assert world.tell(event, serial).dog is dog and dog.due() == math.inf


def test_when_the_parent_itself_was_stopped_no_child_is_to_blame() -> None:
    world = World(3).begin().ready(1, 2)
    world.tell("reload").later(watchdog.SETTLE, [1, 2]).ready(4).later(watchdog.SETTLE, [1, 2, 4])
    phases = [life.phase.value for life in world.dog.lives.values()]
    assert phases == ["stopping", "serving", "starting", "serving", "starting"]
    world.now += 3600
    world.tell("tick")
    assert not world.killed and "overslept" in world.events()
    world.later(LIMIT - 1)
    assert not world.killed
    world.later(1)
    assert sorted(world.killed) == [1, 2, 3, 4, 5], "everybody has had all of its time anew"


def test_a_child_that_leaves_by_itself_is_replaced_while_it_finishes() -> None:
    world = World(1).serving()
    world.tell("leaving", 1)
    assert world.running == {1: 0, 2: 0} and not world.asked
    world.ready(2).later(LIMIT - 1, [2])
    assert not world.killed
    world.later(1)
    assert world.killed == [1], "it has no more than the graceful time either"
    assert world.gone(1).live() == [0]


@pytest.mark.parametrize(
    ("requests", "exitcodes", "after", "killed", "status"),
    [
        (["stop"], (0, -15), LIMIT - 0.1, [], watchdog.STOPPED),
        (["stop"], (0, -9), LIMIT, [2], watchdog.UNFINISHED),
        (["stop"], (1, 0), 1, [], watchdog.UNFINISHED),
        (["stop", "stop", "stop"], (-9, -9), 0, [1, 2], watchdog.UNFINISHED),
        (["abort"], (-9, -9), 0, [1, 2], watchdog.UNFINISHED),
    ],
)
def test_a_request_to_stop(
    requests: list[str], exitcodes: tuple[int, int], after: float, killed: list[int], status: int
) -> None:
    world = World(2).serving()
    for request in requests:
        world.tell(request)
    assert world.asked == ([] if requests == ["abort"] else [1, 2]) and world.killed == (killed if not after else [])
    world.gone(1, exitcodes[0])
    assert world.dog.status is None
    assert world.later(after).killed == killed
    world.gone(2, exitcodes[1])
    assert world.dog.status == status and not world.running and world.dog.due() == math.inf
    assert world.last("stopped").fields == {"status": status}


class TestReplacing:
    def test_children_are_replaced_one_by_one_and_the_new_one_comes_first(self) -> None:
        world = World(3).serving()
        world.tell("reload")
        for number in range(3):
            assert world.starting() == [4 + number] and world.running[4 + number] == number
            assert number + 1 not in world.asked
            world.ready(4 + number).later(watchdog.SETTLE / 2)
            assert number + 1 not in world.asked, "not before the new one has proved itself"
            world.later(watchdog.SETTLE / 2)
            assert world.asked[-1] == number + 1
        assert "reload_done" in world.events()
        for old in (1, 2, 3):
            world.gone(old, 0)
        assert world.live() == [0, 1, 2] and not world.killed

    @pytest.mark.parametrize("ready", [False, True])
    def test_if_the_new_ones_fail_the_old_ones_stay(self, ready: bool) -> None:
        world = World(2).serving()
        world.tell("reload")
        for _ in range(watchdog.RELOAD_TRIES):
            (new,) = world.starting()
            world.ready(*[new] * ready).later(watchdog.SETTLE / 2).gone(new, 1).later(1, [1, 2])
        assert "reload_failed" in world.events() and "reload_done" not in world.events()
        assert world.running == {1: 0, 2: 1} and not world.asked and not world.killed
        assert world.later(10 * LIMIT, [1, 2]).running == {1: 0, 2: 1}

    def test_asking_again_begins_anew(self) -> None:
        world = World(2).serving()
        world.tell("reload")
        world.ready(3).later(watchdog.SETTLE)
        world.tell("reload")
        for _ in range(3):
            world.ready(*world.starting()).later(watchdog.SETTLE)
        assert sorted(world.asked) == [1, 2, 3, 4], "the one that was on its way is not new enough"
        for old in list(world.asked):
            world.gone(old, 0)
        assert world.live() == [0, 1] and set(world.running) == {5, 6}

    def test_a_reload_ends_the_wait_of_a_crashing_child_which_does_not_hold_it_up(self) -> None:
        world = World(2).serving().gone(1).gone(3, 1)
        assert not world.of(0)
        world.tell("reload")
        world.gone(*world.of(0), 1)
        (new,) = world.starting()
        assert world.running[new] == 1


class AnyWorld(RuleBasedStateMachine):
    """Whatever happens, in whatever order."""

    @initialize(processes=st.integers(1, 4))
    def begin(self, processes: int) -> None:
        self.world = World(processes).begin()
        self.stopped = False

    def some(self, data: st.DataObject) -> int:
        return data.draw(st.sampled_from(sorted(self.world.running)))

    @precondition(lambda self: self.world.running)
    @rule(data=st.data(), event=st.sampled_from(["ready", "beat", "leaving"]))
    def hear(self, data: st.DataObject, event: str) -> None:
        self.world.tell(event, self.some(data))

    @precondition(lambda self: self.world.running)
    @rule(data=st.data(), exitcode=st.sampled_from([0, 1, -9, -15, -11]))
    def die(self, data: st.DataObject, exitcode: int) -> None:
        self.world.gone(self.some(data), exitcode)

    @rule(seconds=st.sampled_from([0.0, 0.01, 0.1, watchdog.SETTLE, 1.0, 7.0, LIMIT, 100.0]))
    def wait(self, seconds: float) -> None:
        self.world.later(seconds)

    @rule(seconds=st.floats(1.0, 1e6))
    def sleep(self, seconds: float) -> None:
        killed = len(self.world.killed)
        self.world.now += seconds
        due = self.world.dog.due()
        self.world.tell("tick")
        assert len(self.world.killed) == killed or due >= self.world.now - watchdog.LATE

    @rule()
    def reload(self) -> None:
        self.world.tell("reload")

    @rule(name=st.sampled_from(["stop", "abort"]), really=st.integers(0, 7))
    def stop(self, name: str, really: int) -> None:
        if not really:
            self.world.tell(name)
            self.stopped = True

    @invariant()
    def it_agrees_with_the_world(self) -> None:
        dog = self.world.dog
        assert set(dog.lives) == set(self.world.running)
        for serial, life in dog.lives.items():
            assert (life.phase is watchdog.Phase.KILLED) == (serial in self.world.killed)
            if life.phase in (watchdog.Phase.STARTING, watchdog.Phase.SERVING):
                assert serial not in self.world.asked
        if dog.status is not None:
            assert not self.world.running

    @invariant()
    def no_number_has_more_than_a_child_and_its_replacement(self) -> None:
        for number in set(self.world.live()):
            assert self.world.live().count(number) <= 2
        pairs = [number for number in set(self.world.live()) if self.world.live().count(number) == 2]
        assert len(pairs) <= 1, "one by one"
        assert all(number < self.world.dog.processes for number in self.world.live())

    @invariant()
    def nothing_is_due_that_was_not_done(self) -> None:
        due = self.world.dog.due()
        self.world.tell("tick")
        again = self.world.dog.due()
        assert again > self.world.now and again >= min(due, self.world.now)

    @invariant()
    def nobody_is_started_once_it_stops(self) -> None:
        assert not (self.stopped or self.gave_up()) or not self.world.live()

    def gave_up(self) -> bool:
        return "gave_up" in self.world.events()

    def teardown(self) -> None:
        """If every child behaves from now on, everything comes to rest."""
        if not hasattr(self, "world"):
            return
        world = self.world
        for _ in range(60):
            for serial in list(world.running):
                if serial in world.running and (serial in world.asked or serial in world.killed):
                    world.gone(serial, 0)
            world.ready(*world.starting()).later(1.0)
            for serial in list(world.running):
                world.tell("beat", serial)
        if self.stopped or self.gave_up():
            assert world.dog.status is not None and not world.running
        else:
            left = [life for life in world.dog.lives.values() if life.phase is not watchdog.Phase.STOPPING]
            assert sorted(life.number for life in left) == list(range(world.dog.processes))
            assert all(life.phase is watchdog.Phase.SERVING for life in left)
            assert "reload_started" not in world.events() or {"reload_done", "reload_failed"} & set(world.events())


TestAnyWorld = AnyWorld.TestCase
TestAnyWorld.settings = settings(max_examples=60, stateful_step_count=40, deadline=None)
