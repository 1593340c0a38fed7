"""How many calls a timed graph holds, and which sets of operands they take."""

import pytest

from rung.lab import machine
from rung.lab.timing import CALLS, FULL, MAX_CALLS, Contestant, rounds


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
    sheet = machine.DATASHEET["NVIDIA H200"]
    assert machine.rate_limit(sheet, "f32") == pytest.approx(494.5e12 / 3)
    assert machine.rate_limit(sheet, "bf16") == sheet["bf16"]
    assert machine.rate_limit({"f32": 10e12, "tf32": 20e12}, "f32") == 10e12
    assert machine.rate_limit({}, "f32") is None


def test_the_look_at_the_outputs_runs_only_what_makes_them() -> None:
    ran: list[str] = []
    one = Contestant("slow", [], settle=lambda: ran.append("settle"))
    one._units = [(lambda: ran.append("first"), 1), (lambda: ran.append("second"), 1)]
    one.replay()
    assert ran == ["first", "settle"]
