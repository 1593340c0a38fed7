"""Kernels of the ladders with one mistake in their asynchronous parts: each is refused without a GPU, for the right reason."""

from __future__ import annotations

from pathlib import Path

import pytest

from emulation import needs_compiler
from rung.check.judge import check
from rung.check.report import Report
from rung.operation import LADDERS
from rung.rungs import catalogue

pytestmark = needs_compiler
LADDER = Path(LADDERS) / "matmul"

# file, what stands there, what stands there instead, and what the refusal says (one of these)
MISTAKES = {
    "one stage too many": (
        "19_wgmma.cu", "constexpr int BEHIND = STAGES - 2;", "constexpr int BEHIND = STAGES - 1;",
        ["no thread can go on"],
    ),
    "no wait for the stage": (
        "19_wgmma.cu", "byte_barrier_wait(full + all_steps % STAGES, all_steps / STAGES % 2);", "", ["with no barrier between"],
    ),
    "the wrong phase of the full barrier": (
        "19_wgmma.cu", "byte_barrier_wait(full + all_steps % STAGES, all_steps / STAGES % 2);",
        "byte_barrier_wait(full + all_steps % STAGES, (all_steps / STAGES + 1) % 2);", ["with no barrier between"],
    ),
    "no fence before the tensor cores read": (
        "19_wgmma.cu", "cp_async_wait<BEHIND>(), wgmma::publish();", "cp_async_wait<BEHIND>();",
        ["with no fence.proxy.async between"],
    ),
    "an arrival before the copies are there": (
        "19_wgmma.cu", "cp_async_wait<BEHIND>(), wgmma::publish();", "wgmma::publish();", ["with no"],
    ),
    "too few arrivals": (
        "19_wgmma.cu", "byte_barrier_init(full + threadIdx.x, wgmma::THREADS)", "byte_barrier_init(full + threadIdx.x, 2 * wgmma::THREADS)",
        ["no thread can go on", "lacks 128 of 256 arrivals"],
    ),
    "too many arrivals": (
        "19_wgmma.cu", "byte_barrier_init(full + threadIdx.x, wgmma::THREADS)", "byte_barrier_init(full + threadIdx.x, 96)",
        ["with no"],
    ),
    "a stage is let go before its product is done": (
        "19_wgmma.cu", "            wgmma::await<1>(sums);\n            if (step > 0 && lane_id() == 0) byte_barrier_arrive(empty + (all_steps - 1) % STAGES);",
        "            if (lane_id() == 0) byte_barrier_arrive(empty + all_steps % STAGES);", ["one arrival too many", "with no", "values are"],
    ),
    "too many bytes expected": (
        "21_warp_roles.cu", "byte_barrier_expect(barrier, STAGE_BYTES);", "byte_barrier_expect(barrier, STAGE_BYTES + 16);",
        ["no thread can go on", "lacks 16 bytes"],
    ),
    "too few bytes expected": (
        "21_warp_roles.cu", "byte_barrier_expect(barrier, STAGE_BYTES);", "byte_barrier_expect(barrier, STAGE_BYTES - 128);",
        ["that nobody expects", "announcement", "with no barrier between", "no thread can go on"],
    ),
    "stages that overlap": (
        "21_warp_roles.cu", "tensor_load(stage + A_BYTES, &weight_map", "tensor_load(stage + A_BYTES - 1024, &weight_map",
        ["with no barrier between", "values are"],
    ),
    "the block ends before its stores have read": (
        "23_tensor_stores.cu", "        tensor_store_wait<0>();\n", "", ["wait_group"],
    ),
}  # fmt: skip

# What ptxas puts back: a wait for products, the end of their group, a fence. The machine code has no mistake.
COMPLETED = ("        wgmma::await<0>(sums);\n", "    wgmma::commit();\n", "    wgmma::begin();\n")


def judged(name: str, before: str, after: str, folder: Path) -> Report:
    source = (LADDER / name).read_text()
    assert before in source, f"{name} no longer has this line: {before}"
    for shared in LADDER.glob("*.cuh"):
        (folder / shared.name).write_text(shared.read_text())
    file = folder / name
    file.write_text(source.replace(before, after))
    case = "aligned" if name.startswith("23") else "GPT-2 XL's depth"
    rung = catalogue.rung_from_file(catalogue.operation("matmul"), file)
    return check(rung, "bf16", device="emulator", case=case, quick=True)


@pytest.mark.slow
@pytest.mark.parametrize("mistake", MISTAKES)
def test_a_mistake_is_refused(mistake: str, tmp_path: Path) -> None:
    name, before, after, words = MISTAKES[mistake]
    report = judged(name, before, after, tmp_path)
    assert report.verdict == "failed" and any(word in report.reason for word in words), report.reason


@pytest.mark.slow
@pytest.mark.parametrize("line", COMPLETED)
def test_what_the_compiler_completes_is_no_mistake(line: str, tmp_path: Path) -> None:
    assert judged("19_wgmma.cu", line, "", tmp_path).verdict == "ok"
