"""The bench's figures against another's, and what exactly it times of a library call."""

from __future__ import annotations

import json
import os
from pathlib import Path

import pytest
import torch

from rung import catalogue
from rung.dtypes import dtype as dtype_named
from rung.kernel import Device, Prepared
from rung.lab import bench, machine

CALLS = (
    ("layernorm/torch", "f32", {"B": 64, "T": 1024, "C": 768}),
    ("matmul/torch", "bf16", {"B": 8, "T": 1024, "C": 8192, "OC": 8192}),
    ("attention/sdpa_flash", "bf16", {"B": 1, "T": 8192, "C": 1024, "NH": 16}),
)


def prepare(name: str, dtype: str, values: dict[str, int], device: Device) -> tuple[Prepared, torch.Tensor]:
    """A library call bound to random operands, and its output, filled with sevens."""
    rung, real = catalogue.find(name), dtype_named(dtype)
    where = "cuda" if device == "cuda" else "cpu"
    whole = rung.operation.complete(values)
    tensors = rung.operation.inputs(
        whole,
        real,
        1,
        empty=lambda _, shape, kind: torch.full(shape, 7, dtype=kind, device=where),
        names=[o.name for o in rung.operation.operands if not o.optional or o.name in rung.binds],
        device=where,
    )
    return rung.prepare(tensors, whole, real, device=device), tensors["out"]


def test_the_copy_of_a_librarys_result_into_the_operand_is_not_timed_but_made_afterwards() -> None:
    call, out = prepare("layernorm/torch", "f32", {"B": 1, "T": 3, "C": 5}, "cpu")
    assert call.bare is not None
    call.bare()
    assert bool((out == 7).all())
    call.settle()
    assert not bool((out == 7).any())
    settled = out.clone()
    out.fill_(7)
    call.run()
    assert torch.equal(out, settled)


@pytest.mark.gpu
@pytest.mark.parametrize(("name", "dtype", "values"), CALLS)
def test_figures_agree_with_tritons_bench_within_three_per_cent(name: str, dtype: str, values: dict[str, int]) -> None:
    from triton.testing import do_bench

    call, _ = prepare(name, dtype, values, "cuda")
    assert call.bare is not None

    def theirs() -> float:
        return float(do_bench(call.bare, warmup=50, rep=150, return_mode="median")) * 1e3

    before = theirs()
    (row,) = bench.bench([catalogue.find(name)], shape="agreement", values=values, dtype=dtype, seconds=0.5, warm=False)
    after = theirs()
    assert row.verdict == "ok" and row.cold_us is not None, row.reason
    ratio = row.cold_us / ((before + after) / 2)
    seen = {
        "call": name, "dtype": dtype, "values": values, "ours_us": row.cold_us,
        "do_bench_us": [before, after], "ratio": ratio, "gpu": machine.facts().get("gpu"),
    }  # fmt: skip
    if "OUT" in os.environ:
        with (Path(os.environ["OUT"]) / "agreement.jsonl").open("a") as file:
            file.write(json.dumps(seen) + "\n")
    assert abs(ratio - 1) < 0.03, seen
