"""The bench's figures against another's, and what exactly it times of a library call."""

from __future__ import annotations

import json
import os
import statistics
from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from itertools import pairwise
from pathlib import Path
from typing import Any

import pytest
import torch

from rung.arrays import dtype_of
from rung.bench import race, timing
from rung.dtypes import dtype as dtype_named
from rung.results import machine
from rung.rungs import catalogue
from rung.rungs.base import Device, Prepared

CALLS = (
    ("layernorm/torch", "f32", {"B": 64, "T": 1024, "C": 768}),
    ("matmul/torch", "f32", {"B": 4, "T": 1024, "C": 768, "OC": 3072}),
    ("attention/sdpa_flash", "bf16", {"B": 1, "T": 8192, "C": 1024, "NH": 16}),
)
# The tensor cores draw so much power that the GPU lowers its clock after some milliseconds: only what runs at the
# same moment can be compared.
POWER_BOUND = (
    ("matmul/torch", "bf16", {"B": 4, "T": 1024, "C": 768, "OC": 3072}, "cupti"),  # do_bench would time its launches
    ("matmul/torch", "bf16", {"B": 4, "T": 1024, "C": 768, "OC": 50304}, "do_bench"),
)
ROUNDS, SAMPLES = 40, 3


def prepare(name: str, dtype: str, values: dict[str, int], device: Device) -> tuple[Prepared, torch.Tensor]:
    """A library call bound to random operands, and its output, filled with sevens."""
    rung, real = catalogue.find(name), dtype_named(dtype)
    where = "cuda" if device == "cuda" else "cpu"
    whole = rung.operation.complete(values)
    tensors = rung.operation.inputs(
        whole,
        real,
        1,
        empty=lambda _, shape, kind: torch.full(shape, 7, dtype=dtype_of(kind, torch), device=where),
        names=rung.operand_names,
        device=where,
    )
    return rung.prepare(tensors, whole, real, device=device), tensors["out"]


def test_the_copy_of_a_librarys_result_into_the_operand_is_not_timed_but_made_afterwards() -> None:
    call, out = prepare("layernorm/torch", "f32", {"B": 1, "T": 3, "C": 5}, "cpu")
    assert call.bare is not None
    call.bare()
    assert bool((out == 7).all())
    call.copy_back()
    assert not bool((out == 7).any())
    settled = out.clone()
    out.fill_(7)
    call.run()
    assert torch.equal(out, settled)


def clocks_under_load(calls: Callable[[], None]) -> dict[str, Any]:
    """The state of the GPU while it does this without a pause."""
    with ThreadPoolExecutor(1) as pool:
        state = pool.submit(machine.state)
        while not state.done():
            calls()
            torch.cuda.synchronize()
    return state.result()


def agree(
    name: str,
    dtype: str,
    values: dict[str, int],
    ours: Sequence[float],
    theirs: Sequence[float],
    calls: Callable[[], None],
) -> None:
    """Keep the record (microseconds) under $OUT, and compare the medians."""
    ratio = statistics.median(ours) / statistics.median(theirs)
    seen = {
        "call": name, "dtype": dtype, "values": values, "ours_us": list(ours), "their_us": list(theirs),
        "ratio": ratio, "under_load": clocks_under_load(calls), "gpu": machine.facts().get("gpu"),
    }  # fmt: skip
    if "OUT" in os.environ:
        with (Path(os.environ["OUT"]) / "agreement.jsonl").open("a") as file:
            file.write(json.dumps(seen) + "\n")
    assert abs(ratio - 1) < 0.03, seen


@pytest.mark.gpu
@pytest.mark.alone
@pytest.mark.parametrize(("name", "dtype", "values"), CALLS)
def test_figures_agree_with_tritons_bench_within_three_per_cent(name: str, dtype: str, values: dict[str, int]) -> None:
    from triton.testing import do_bench

    call, _ = prepare(name, dtype, values, "cuda")
    assert call.bare is not None

    def theirs() -> float:
        return float(do_bench(call.bare, warmup=50, rep=150, return_mode="median")) * 1e3

    before = theirs()
    (row,) = race.bench([catalogue.find(name)], shape="agreement", values=values, dtype=dtype, seconds=0.5, warm=False)
    after = theirs()
    assert row.verdict == "ok" and row.cold_us is not None, row.reason
    agree(name, dtype, values, [row.cold_us], [before, after], call.bare)


@pytest.mark.gpu
@pytest.mark.alone
@pytest.mark.parametrize(("name", "dtype", "values", "by"), POWER_BOUND)
def test_samples_agree_with_anothers_taken_between_them_within_three_per_cent(
    name: str, dtype: str, values: dict[str, int], by: str
) -> None:
    from torch.profiler import ProfilerActivity, profile
    from triton.testing import do_bench

    rung = catalogue.find(name)
    size = rung.operation.cost(rung.operation.complete(values), dtype_named(dtype).size).bytes
    prepared = [prepare(name, dtype, values, "cuda")[0] for _ in range(timing.sets_needed(int(size)))]
    calls = [p.bare for p in prepared if p.bare is not None]
    contestant = timing.Contestant(name, calls)
    contestant.get_ready()
    assert not contestant.notes

    def all_sets() -> None:  # the same operands in turn, so that neither side finds more of them in the L2
        for call in calls:
            call()

    def theirs_us() -> tuple[float, float]:
        """Of a call, without and with the gap between its launches, which the profiler makes longer."""
        if by == "do_bench":
            time = float(do_bench(all_sets, warmup=0, rep=3, return_mode="median")) * 1e3 / len(calls)
            return time, time
        with profile(activities=[ProfilerActivity.CUDA]) as seen:
            contestant.sample()
        contestant.cold.pop()  # the profiler is in its time
        kernels: dict[str, list[Any]] = {}
        for event in seen.events():
            if event.device_type.name == "CUDA":
                kernels.setdefault(event.name, []).append(event.time_range)
        count = max(map(len, kernels.values()))
        each = [times for times in kernels.values() if len(times) == count]  # a call may clear memory, too
        own = sum(statistics.median(time.elapsed_us() for time in times) for times in each)
        starts = sorted(time.start for time in each[0])
        return own, statistics.median(after - before for before, after in pairwise(starts))

    theirs = []
    for _ in range(ROUNDS):  # a few samples each: the GPU's clock sinks within milliseconds of such work
        theirs.append(theirs_us())
        for _ in range(SAMPLES):
            contestant.sample()
    ours = [s * 1e6 for s in contestant.cold]
    least, most = (statistics.median(times) for times in zip(*theirs, strict=True))
    agree(name, dtype, values, ours, [min(max(statistics.median(ours), least), most)], all_sets)
