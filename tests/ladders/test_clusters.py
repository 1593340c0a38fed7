"""A step by clusters of blocks: texts over the ways in which it divides its work."""

import pytest
import torch
from test_one_kernel import Division, Text, dims

from gpuless.compile import nvrtc
from gpuless.facts import limits
from rung.dtypes import dtype as named
from rung.models.gpt2.rungs import decode_rungs
from rung.rungs import catalogue
from rung.rungs.base import Rung

RUNG, EIGHT_BITS = (catalogue.find(f"decode/{name}") for name in ("clusters", "clusters_int8"))
DIVISIONS = {
    "a head each, from no keys on": Division(dims(64, 2), steps=3),
    "a cluster without a head": Division(dims(64, 1, L=1, V=37), start=27, steps=3),
    "two heads each, an odd number of layers": Division(dims(128, 4, L=3), start=5, steps=2),
    "more keys than a round has room for": Division(dims(64, 1, L=1, MAXT=240), start=207, steps=2),
    "fewer warps than tiles": Division(dims(128, 4, L=1), start=3, tuning={"STEP_WARPS": 6, "KEY_LOADS": 2}, steps=2),
    "GELU by erf, scores by layer": Division(dims(64, 2, L=3, act=1, by_layer=1), start=22, steps=2),
    "clusters of eight": Division(
        dims(512, 8, L=1, V=37, F=512, MAXT=70), start=60, tuning={"MOST_CLUSTERS": 4, "STEP_WARPS": 6}, steps=1
    ),
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


# A row, or a head, of 8 bits may end with half a chunk of 64 columns. Several tiles of the head per slot; tiles in slots that no
# layer's weights overlap, and in those that they do.
EIGHT = {
    **DIVISIONS,
    "rows that end with half a chunk": Division(dims(96, 3), start=11, steps=2),
    "several tiles per slot": Division(
        dims(64, 2, V=331), start=5, tuning={"HEAD_ROUNDS": 1, "STEP_WARPS": 6}, steps=2
    ),
    "two rounds of tiles, then the first slots again": Division(
        dims(64, 2, V=531), start=5, tuning={"HEAD_ROUNDS": 2, "STEP_WARPS": 6}, steps=1
    ),
    "tiles where a layer's weights were": Division(
        dims(512, 4, L=2, V=1733, F=512, MAXT=20), start=9, tuning={"MOST_CLUSTERS": 2, "HEAD_ROUNDS": 1}, steps=1
    ),
}
QUICK = ("a head each, from no keys on", "rows that end with half a chunk")


@pytest.mark.parametrize(
    ("name", "dtype"),
    [
        pytest.param(name, ("bf16", "f16")[i % 2], marks=() if name in QUICK else pytest.mark.slow)
        for i, name in enumerate(EIGHT)
    ],
)
def test_a_text_of_eight_bits_is_the_references_at_every_step(name: str, dtype: str) -> None:
    one = EIGHT[name]
    text = Text(one.values, named(dtype), one.start, one.steps, tuning=one.tuning, rung=EIGHT_BITS)
    assert text.prepared.launches[0][1].cluster == (8 if one.values["C"] >= 512 else 2, 1, 1)
    text.write().assert_right()


@pytest.mark.parametrize("rung", [RUNG, EIGHT_BITS], ids=lambda rung: rung.name)
@pytest.mark.parametrize("places", [("any",), ("any", "alone", "cuda")], ids=["emulator", "GPU"])
def test_the_step_in_clusters_takes_as_many_cases_as_it_refuses(places: tuple[str, ...], rung: Rung) -> None:
    for dtype in rung.dtypes:
        of = [c for c in rung.operation.cases if c.where in places and dtype in c.dtypes]
        values = [rung.operation.complete(c.values) for c in of]
        taken = [v for v in values if rung.refusal(v, named(dtype), device="emulator") is None]
        assert 2 * len(taken) >= len(values)


@pytest.mark.parametrize("shape", ["gpt2", "gpt2-medium"])
def test_eight_bits_are_compiled_without_a_stack(shape: str) -> None:
    values = RUNG.operation.complete(RUNG.operation.shapes[shape])
    used = nvrtc.compile_cubin(EIGHT_BITS.build(values, named("bf16"), {}), "sm_90").resources["step"]
    assert used.spill_stores == used.stack == 0
    ((_, config),) = EIGHT_BITS.launches(values, named("bf16"), {}, emulated=False)
    here = limits.limits("sm_90")
    assert used.registers * config.threads <= here.registers_block
    assert used.static_shared + config.shared <= here.shared_block


def test_the_engine_takes_the_clusters_of_its_format_where_they_are_tuned() -> None:
    for dtype, name in (("bfloat16", "clusters"), ("float16", "clusters"), ("int8", "clusters_int8")):
        assert decode_rungs(1, 768, dtype, lambda _: True)[0] == name
        assert name not in decode_rungs(1, 768, dtype, lambda _: False)
    assert not {"clusters", "clusters_int8"} & set(decode_rungs(1, 768, "float32", lambda _: True))


def test_a_case_of_so_many_cached_keys_leaves_room_for_one_more() -> None:
    operation = RUNG.operation
    for case in operation.cases:
        if change := case.change.get("lengths"):
            values = operation.complete({**case.values, "MAXT": 3})
            assert int(change(torch.zeros(1, dtype=torch.int32), values).max()) < 3
