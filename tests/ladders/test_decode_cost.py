"""What a step of decode must move, counted by hand: weights in the size that the rung reads, the cache once."""

from __future__ import annotations

from pathlib import Path

import pytest

from result_rows import CEILINGS, document, row
from rung.bench import race as bench
from rung.bench import timing
from rung.dtypes import DTYPES
from rung.profile import counters, roofline
from rung.results import current, store
from rung.rungs import catalogue
from rung.rungs.base import Subject

DECODE = catalogue.operation("decode")
# GPT-2: 12 layers of 768, their matrices 768 x (2304 + 768 + 3072) and 3072 x 768, and 50257 rows of vocabulary.
WEIGHTS = 12 * (768 * 2304 + 768 * 768 + 768 * 3072 + 3072 * 768) + 50257 * 768
ROWS = 12 * (2304 + 768 + 3072 + 768) + 50257  # each with a scale
CACHED = 12 * 512 * 768 * 2  # keys and values of half of 1024 positions
LOGITS = 4 * 50257
BY_HAND = [
    ("decode/05_dependent_launch_int8", "bf16", WEIGHTS + 4 * ROWS + 2 * CACHED + LOGITS),
    ("decode/05_dependent_launch_int8", "f32", WEIGHTS + 4 * ROWS + 4 * CACHED + LOGITS),
    ("decode/06_streamed_int8", "f16", WEIGHTS + 4 * ROWS + 2 * CACHED + LOGITS),
    ("decode/06_streamed", "bf16", 2 * WEIGHTS + 2 * CACHED + LOGITS),
    ("decode/09_eight_bit_cache", "bf16", 2 * WEIGHTS + CACHED + 4 * CACHED // 64 + LOGITS),
    ("decode/torch", "f32", 4 * WEIGHTS + 4 * CACHED + LOGITS),
]


@pytest.mark.parametrize(("name", "dtype", "size"), BY_HAND)
def test_a_step_is_charged_the_bytes_that_its_rung_must_move(name: str, dtype: str, size: int) -> None:
    rung = catalogue.find(name)
    values = DECODE.complete(DECODE.shapes["gpt2"])
    cost = DECODE.cost_with(values, DTYPES[dtype], rung.binds)
    assert cost.bytes == size
    assert cost.flops == 2 * WEIGHTS + 2 * CACHED  # whatever the weights are stored as
    assert counters.report(Subject(rung, "gpt2", values, DTYPES[dtype]), []).model_bytes == size


@pytest.mark.parametrize(("name", "dtype", "size"), BY_HAND)
def test_gigabytes_a_second_are_those_bytes_over_the_time(name: str, dtype: str, size: int) -> None:
    rung, values = catalogue.find(name), DECODE.complete(DECODE.shapes["gpt2"])
    race = bench._Race(DECODE, "gpt2", values, DTYPES[dtype])
    made = bench.Timed("decode", rung.full_name, rung.kind, dtype, "gpt2", values, {})
    contestant = timing.Contestant(rung.full_name, [])
    contestant.cold = [200e-6] * 10
    race._conclude(rung, made, contestant, {}, [rung], bench.Ceilings(bytes=4e12, flops={}))
    assert made.gbps == pytest.approx(size / 200e-6 / 1e9)
    assert made.of_bandwidth == pytest.approx(size / 200e-6 / 4e12)


@pytest.mark.parametrize(("name", "dtype", "size"), BY_HAND)
def test_shares_of_the_ceiling_and_the_roofline_go_by_the_same_bytes(
    tmp_path: Path, name: str, dtype: str, size: int
) -> None:
    found = current.of_gpu(
        store.load(document(tmp_path / "b.jsonl", [row(name, 200.0, dtype=dtype, shape="gpt2")])), None
    )
    figure = found.ladder("decode").get(catalogue.find(name).full_name, dtype, "gpt2")
    assert figure is not None
    assert figure.share == pytest.approx(size / 200e-6 / CEILINGS.metrics["copy_bytes_per_s"])
    (placed,) = roofline.place([figure])
    assert placed.bytes == size


def test_a_layernorm_that_adds_the_residual_first_reads_and_writes_that_too() -> None:
    rung = catalogue.find("layernorm/11_fused_residual")
    values = rung.operation.complete({"B": 2, "T": 3, "C": 5})
    cost = rung.operation.cost_with(values, DTYPES["f32"], rung.binds)
    assert cost.bytes == 4 * (4 * 2 * 3 * 5 + 2 * 5)
