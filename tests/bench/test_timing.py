"""How many calls a timed graph holds, and which sets of operands they take."""

from collections.abc import Callable
from functools import partial

import pytest

from gpuless.facts import gpus
from rung.bench import race, timing
from rung.bench.timing import CALLS, FULL, MAX_CALLS, Contestant, rounds
from rung.dtypes import DTYPES
from rung.results import machine
from rung.results.current import Limits
from rung.rungs import catalogue


@pytest.mark.parametrize("sets", [1, 2, 7, 60, 256])
@pytest.mark.parametrize("estimate", [1e-6, 15e-6, 50e-6, 390e-6, 2e-3, 3.0])
def test_every_set_is_used_and_a_sample_is_long_enough(sets: int, estimate: float) -> None:
    turns = rounds(sets, estimate)
    assert {i for turn in turns for i in turn} == set(range(sets))
    assert len({len(turn) for turn in turns}) == 1
    calls = len(turns[0])
    assert calls <= MAX_CALLS
    assert calls * estimate >= FULL or calls == MAX_CALLS
    assert calls >= CALLS or estimate >= 20e-6


def test_the_sets_rotate_across_graphs() -> None:
    turns = rounds(5, 150e-6)  # three calls make a sample
    assert turns == [[0, 1, 2], [3, 4, 0]]


def test_a_long_call_is_a_graph_of_its_own() -> None:
    assert rounds(4, 5e-3) == [[0], [1], [2], [3]]


def test_three_products_of_tf32_may_be_faster_than_float32_itself() -> None:
    sheet = gpus.rates("NVIDIA H200")
    assert machine.rate_limit(sheet, "f32") == pytest.approx(989e12 / 3)
    assert machine.rate_limit(sheet, "bf16") == sheet["bf16"]
    assert machine.rate_limit({"f32": 10e12, "tf32": 20e12}, "f32") == 10e12
    assert machine.rate_limit({}, "f32") is None


def concluded(name: str, seconds: float) -> race.Timed:
    """A rung's figures at 4096 x 4096 x 4096, in bf16 on an H200."""
    rung = catalogue.find(f"matmul_low/{name}")
    values = rung.operation.complete(dict(M=4096, OC=4096, C=4096))
    one = race._Race(rung.operation, "n4096", values, DTYPES["bf16"])
    row = one._row(rung, None)
    contestant = Contestant(name, [lambda: None])
    contestant.cold = [seconds] * 10
    one._conclude(rung, row, contestant, {}, [rung], race.Ceilings(4.2e12, {"bf16": 788e12}))
    return row


@pytest.mark.parametrize(
    ("name", "most"),
    [("3", 989e12), ("4", 1979e12), ("5", 1979e12), ("7", 1978e12), ("8", 1979e12), ("scaled_mm", 1979e12)],
)
def test_a_time_is_held_to_the_rate_of_the_format_that_is_multiplied(
    monkeypatch: pytest.MonkeyPatch, name: str, most: float
) -> None:
    """An H200 multiplied e4m3 at 1.35 times the rate that its data sheet has for bf16, and the rows failed."""
    monkeypatch.setattr(machine, "datasheet", lambda: gpus.rates("NVIDIA H200"))
    flops = 2 * 4096**3
    right = concluded(name, flops / most / 0.7)
    assert (right.verdict, right.of_datasheet) == ("ok", pytest.approx(0.7))
    assert concluded(name, flops / most / 1.1).verdict == "failed"


def test_the_measured_ceiling_is_of_the_format_that_is_multiplied() -> None:
    dense, sparse, eight = (concluded(name, 200e-6).of_rate for name in ("3", "7", "8"))
    assert dense is not None and sparse == pytest.approx(dense / 2) and eight is None, "nothing measures e4m3"
    limits = Limits("NVIDIA H200", 4.2e12, {"bf16": 788e12}, gpus.rates("NVIDIA H200"))
    assert [limits.rate("bf16", p) for p in ("", "2:4", "e4m3")] == [788e12, 2 * 788e12, 1979e12]
    assert limits.rate("f16") is None


def test_the_look_at_the_outputs_runs_all_that_makes_them_and_nothing_else(monkeypatch: pytest.MonkeyPatch) -> None:
    """As on a GPU: a recorded call writes to the place that its recording allocated, and a library's name for its
    result is that of the last recording."""
    named = {}  # set -> (place, recording)
    written: list[tuple[int, int]] = []
    recordings = []

    def call(index: int) -> None:
        named[index] = (index, len(recordings))

    def record(calls: list[Callable[[], None]]) -> Callable[[], None]:
        for one in calls:
            one()
        places = [named[index] for index in {calls_of[one] for one in calls}]
        recordings.append(places)
        return lambda: written.extend(places)

    calls = [partial(call, index) for index in range(30)]
    calls_of = {one: index for index, one in enumerate(calls)}
    monkeypatch.setattr(timing, "_graph", record)
    monkeypatch.setattr(timing, "_estimate", lambda _: 30e-6)
    monkeypatch.setattr(timing, "seconds", lambda work: work() or 20 * 30e-6)
    monkeypatch.setattr(timing.torch.cuda, "synchronize", lambda: None)
    one = Contestant("library", calls, copy_back=lambda: written.append((-1, -1)))
    one.get_ready()
    assert len(one._units) == 3, "14 calls of 30 us are a sample, and the third goes through the first again"
    written.clear()
    one.replay()
    assert named[0] in written, "what copy_back copies has been computed anew"
    assert written[-1] == (-1, -1)
    assert {place for place, _ in written} < set(range(-1, 30)), "not everything"


@pytest.mark.parametrize(("took", "expected"), [((0.1, 3e-5), 3e-5), ((0.1, 0.1), 0.1), ((3.0,), 3.0)])
def test_what_a_first_call_loads_is_no_part_of_its_time(
    monkeypatch: pytest.MonkeyPatch, took: tuple[float, ...], expected: float
) -> None:
    times = iter(took)
    last = took[-1]
    monkeypatch.setattr(timing, "seconds", lambda work: next(times, 20 * last))  # then of twenty calls, or five
    monkeypatch.setattr(timing.torch.cuda, "synchronize", lambda: None)
    assert timing._estimate(lambda: None) == pytest.approx(expected, rel=3)
