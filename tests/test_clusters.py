"""A step by clusters of blocks: texts over the ways in which it divides its work."""

import pytest

from rung.dtypes import dtype as named
from rung.rungs import catalogue
from test_one_kernel import Division, Text, dims

RUNG = catalogue.find("decode/23")
DIVISIONS = {
    "a head each, from no keys on": Division(dims(64, 2), steps=3),
    "a cluster without a head": Division(dims(64, 1, L=1, V=37), start=27, steps=3),
    "two heads each, an odd number of layers": Division(dims(128, 4, L=3), start=5, steps=2),
    "more keys than a round has room for": Division(dims(64, 1, L=1, MAXT=240), start=207, steps=2),
    "fewer warps than tiles": Division(dims(128, 4, L=1), start=3, tuning={"STEP_WARPS": 6, "KEY_LOADS": 2}, steps=2),
    "GELU by erf, scores by layer": Division(dims(64, 2, L=3, act=1, by_layer=1), start=22, steps=2),
    "clusters of eight": Division(dims(512, 8, L=1, V=37, F=512, MAXT=70), start=60, tuning={"MOST_CLUSTERS": 4, "STEP_WARPS": 6}, steps=1),
}


@pytest.mark.parametrize(
    ("name", "dtype"),
    [
        pytest.param(name, ("bf16", "f16")[i % 2], marks=() if i == 0 else pytest.mark.slow)
        for i, name in enumerate(DIVISIONS)
    ],
)
def test_a_text_is_the_references_at_every_step(name: str, dtype: str) -> None:
    one = DIVISIONS[name]
    text = Text(one.values, named(dtype), one.start, one.steps, tuning=one.tuning, rung=RUNG)
    assert text.prepared.launches[0][1].cluster == (8 if one.values["C"] >= 512 else 2, 1, 1)
    text.write().assert_right()


@pytest.mark.parametrize("places", [("any",), ("any", "alone", "cuda")], ids=["emulator", "GPU"])
def test_the_step_in_clusters_takes_as_many_cases_as_it_refuses(places: tuple[str, ...]) -> None:
    for dtype in RUNG.dtypes:
        of = [c for c in RUNG.operation.cases if c.where in places and dtype in c.dtypes]
        values = [RUNG.operation.complete(c.values) for c in of]
        taken = [v for v in values if RUNG.refusal(v, named(dtype), device="emulator") is None]
        assert 2 * len(taken) >= len(values)
