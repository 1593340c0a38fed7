"""A slow host is not counted: what is timed is launched while the GPU still waits."""

from __future__ import annotations

from collections.abc import Callable

import pytest
import torch

from rung.bench import timing


class Machine:
    """A host and a GPU whose stream takes what it is given in turn."""

    def __init__(self) -> None:
        self.host = self.stream = 0.0

    def stall(self, cycles: int) -> None:
        self.enqueue(cycles / timing.CLOCK)

    def enqueue(self, seconds: float) -> None:
        self.stream = max(self.stream, self.host) + seconds

    def work(self, launching: float, took: float) -> Callable[[], None]:
        def launch() -> None:
            self.host += launching
            self.enqueue(took)

        return launch


@pytest.fixture
def machine(monkeypatch: pytest.MonkeyPatch) -> Machine:
    made = Machine()

    class Event:
        def __init__(self, enable_timing: bool) -> None:
            self.at = 0.0

        def record(self) -> None:
            self.at = max(made.stream, made.host)

        def synchronize(self) -> None:
            made.host = max(made.host, self.at)

        def elapsed_time(self, end: Event) -> float:
            return (end.at - self.at) * 1e3

    monkeypatch.setattr(torch.cuda, "Event", Event)
    monkeypatch.setattr(timing, "occupy_stream", made.stall)
    monkeypatch.setattr(timing.time, "perf_counter", lambda: made.host)
    return made


def replayed(work: Callable[[], None]) -> float:
    return timing.replayed(work, timing.HEAD_START)[0]


@pytest.mark.parametrize("launching", [10e-6, 90e-6, 190e-6, 0.3e-3, 2e-3])
def test_the_time_of_a_launch_is_not_that_of_the_work(machine: Machine, launching: float) -> None:
    for _ in range(3):
        assert replayed(machine.work(launching, 400e-6)) == pytest.approx(400e-6)


def test_a_head_start_that_had_to_grow_is_reused(machine: Machine) -> None:
    took, head_start = timing.replayed(machine.work(0.3e-3, 400e-6), timing.HEAD_START)
    before = machine.host
    again, same = timing.replayed(machine.work(0.3e-3, 400e-6), head_start)
    assert again == pytest.approx(took) and same == head_start > timing.HEAD_START
    assert machine.host - before < 2 * head_start


@pytest.mark.parametrize("launching", [10e-6, 0.3e-3, 2e-3, 0.5])
def test_work_with_effects_is_done_once(machine: Machine, launching: float) -> None:
    done = 0

    def work() -> None:
        nonlocal done
        done += 1
        machine.work(launching, 400e-6)()

    timing.seconds(work)
    assert done == 1


def test_work_whose_launching_cannot_be_hidden_is_timed_once(machine: Machine) -> None:
    assert replayed(machine.work(0.5, 400e-6)) > 0.4
    assert machine.host < 0.6


def test_long_work_is_not_done_again_for_a_launch_that_hardly_counts(machine: Machine) -> None:
    assert replayed(machine.work(0.4e-3, 2.0)) == pytest.approx(2.0, rel=1e-3)
    assert machine.host < 2.1


def test_work_that_waits_for_the_gpu_itself_comes_to_an_end(machine: Machine) -> None:
    launch = machine.work(20e-6, 300e-6)

    def and_wait() -> None:
        launch()
        machine.host = machine.stream

    assert replayed(and_wait) == pytest.approx(300e-6)
    assert machine.host < 0.05
