"""Broken and cheating kernels: each must be caught, and for the right reason."""

import itertools
import os
import re
import signal
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch

from rung.apart import work_through
from rung.check import processes, sandbox, schedule
from rung.check.judge import check, report_on
from rung.check.report import LADDER, QUICK, THOROUGH, TIME, CheckRequest, Report, exit_code
from rung.rungs import catalogue

BROKEN = Path(__file__).parents[1] / "broken"


def verdict_on(name: str, device: str = "emulator") -> Report:
    rung = catalogue.rung_from_file(catalogue.operation("residual"), BROKEN / name)
    return check(rung, "f32", device=device)  # type: ignore[arg-type]


@pytest.mark.parametrize(
    ("name", "reason"),
    [
        ("partial_work.cu", "never written"),
        ("one_turn.cu", "never written"),
        ("many_blocks.cu", "never written"),
        ("nan.cu", "NaN"),
        ("mutated_input.cu", "'a', which is an input"),
        ("out_of_bounds_write.cu", "out"),
        ("out_of_bounds_read.cu", "a"),
        ("stray_copy.cu", "past the end"),
        ("writes_before.cu", "'out' before the start"),
        ("race.cu", "barrier between"),
        ("named_atomic.cu", "with no barrier between"),
        ("unwritten_buffer.cu", "values are off"),
        ("unwritten_register.cu", "values are off"),
        ("divergent_barrier.cu", "__syncthreads"),
        ("too_coarse.cu", "values are off"),
        ("stale_output.py", "never written"),
        ("cached_replay.py", "values are off"),
    ],
)
def test_is_caught_on_the_emulator(name: str, reason: str) -> None:
    report = verdict_on(name)
    assert report.verdict == "failed"
    assert reason in report.reason


COARSE = """/*---
idea = "GELU by the special function unit's tanh, which is off by up to one part in 2048."
dtypes = ["f32", "f16"]
[[launch]]
kernel = "gelu"
grid = "ceil_div(B * T * C, 128)"
block = 128
---*/
#include "rung.cuh"

extern "C" __global__ void gelu(const Real* x, Real* out, int B, int T, int C)
{
    const int64_t i = blockIdx.x * 128ll + threadIdx.x;
    if (i >= int64_t(B) * T * C) return;
    const float v = to_float(x[i]), u = 0.7978845608f * (v + 0.044715f * v * v * v);
    out[i] = from_float<Real>(0.5f * v * (1.0f + TANH));
}
"""
TANH = {
    "intrinsic": "__tanhf(u)",
    "header": "tanh_approx(u)",
    "instruction": '[&] { float t; asm("tanh.approx.f32 %0, %1;" : "=f"(t) : "f"(u)); return t; }()',
}


@pytest.mark.parametrize("how", TANH)
def test_the_special_function_units_tanh_is_too_coarse_for_float32_and_not_for_16_bits(how: str, tmp_path: Path) -> None:
    (tmp_path / "coarse.cu").write_text(COARSE.replace("TANH", TANH[how]))
    rung = catalogue.rung_from_file(catalogue.operation("gelu"), tmp_path / "coarse.cu")
    found = check(rung, "f32", device="emulator", effort=LADDER)
    assert found.verdict == "failed" and ("values are off" in found.reason or "over the cap" in found.reason)
    assert check(rung, "f16", device="emulator", case="gpt2", effort=LADDER).verdict == "ok"  # but not in the tails


def test_a_rung_that_inherits_its_grid_is_tried_with_few_multiprocessors_too() -> None:
    heir = catalogue.find("matmul/23_tensor_stores")
    assert "sms" not in heir.source and schedule.grid_depends_on_gpu(heir)
    assert not schedule.grid_depends_on_gpu(catalogue.find("gelu/01_naive"))


@pytest.mark.gpu
@pytest.mark.parametrize(
    ("name", "reason"),
    [
        ("partial_work.cu", "never written"),
        ("nan.cu", "NaN"),
        ("mutated_input.cu", "changed its input a"),
        ("out_of_bounds_write.cu", "past the end of out"),
        ("stray_copy.cu", "past the end of out"),
        ("writes_before.cu", "before the start of out"),
        ("too_coarse.cu", "values are off"),
        ("stale_output.py", "never written"),
        ("cached_replay.py", "values are off"),
        ("side_stream.py", "never written|current stream"),  # by which of the two depends on what the GPU does first
        ("side_stream_waits.py", "current stream"),
    ],
)
def test_is_caught_on_a_gpu(name: str, reason: str) -> None:
    report = verdict_on(name, "cuda")
    assert report.verdict == "failed", report
    assert re.search(reason, report.reason)
    torch.cuda.synchronize()


def task_on(name: str, **more: Any) -> CheckRequest:
    quick = more.pop("quick", False)
    asked = CheckRequest(f"residual/{name.partition('.')[0]}", "f32", file=str(BROKEN / name), **more)
    return replace(asked, effort=QUICK if quick else THOROUGH)


@pytest.mark.parametrize(
    ("name", "reason"),
    [
        pytest.param("clamps.cu", "up to float", marks=pytest.mark.slow),
        pytest.param("short_index.cu", "three batches: out", marks=pytest.mark.slow),
        pytest.param("second_batch.cu", "values are off", marks=pytest.mark.slow),
        pytest.param("only_default_tuning.cu", "with ROWS=2", marks=pytest.mark.slow),
        ("far_before.cu", "before the start"),
        pytest.param("reads_one_more.cu", "past the end", marks=pytest.mark.slow),
        pytest.param("later_runs.cu", " runs: ", marks=pytest.mark.slow),
        pytest.param("static_cache.cu", "values are off", marks=pytest.mark.slow),
        pytest.param("damages_in_reverse.cu", "before the start", marks=pytest.mark.slow),
        ("missing_barrier.cu", "no barrier between"),
        pytest.param("lost_update.cu", "shared variable", marks=pytest.mark.slow),
        ("exits.cu", "does not compile for sm_90"),
        ("aborts.cu", "does not compile for sm_90"),
        pytest.param("reads_a_vector_past.cu", "'a' past the end", marks=pytest.mark.slow),
        pytest.param("reads_far_before.cu", "'a' before the start", marks=pytest.mark.slow),
        pytest.param("borrows_an_input.cu", "writes to parameter 'a', which is an input", marks=pytest.mark.slow),
        pytest.param("right_on_the_emulator.cu", "values are off", marks=pytest.mark.slow),
        pytest.param("other_compiler.cu", "values are off", marks=pytest.mark.slow),
        pytest.param("three_tunables.cu", "with BLOCK=32, A=1, D=2", marks=pytest.mark.slow),
        pytest.param("few_batches.cu", "values are off", marks=pytest.mark.slow),
        ("kills_the_judge.cu", "does not compile for sm_90"),
        ("empties_its_inputs.cu", "does not compile for sm_90"),
        pytest.param("at_one_size.py", "with C=700", marks=pytest.mark.slow),
        pytest.param("two_programs.py", "line 15: ", marks=pytest.mark.slow),
        pytest.param("one_further.py", "", marks=pytest.mark.slow),
    ],
)
def test_a_file_is_caught_in_a_process_of_its_own(name: str, reason: str) -> None:
    report = report_on(task_on(name))
    assert report.verdict == "failed", report
    assert reason in f"{report.case}: {report.reason}"


@pytest.mark.parametrize(
    ("name", "verdict"),
    [
        ("few_cases.cu", "few cases"),
        pytest.param("untrue_emulate.cu", "compiled", marks=pytest.mark.slow),
    ],
)
def test_what_was_not_judged_is_not_ok(name: str, verdict: str) -> None:
    report = report_on(task_on(name))
    assert report.verdict == verdict, report
    assert report.reason
    assert exit_code([report], set()) == 3


PYTHON = [
    "exits_at_import.py",
    "exits_in_run.py",
    "patches_the_judge.py",
    "takes_the_reference.py",
    "swaps_storage.py",
    "forges_answers.py",
    "kills_at_import.py",
    "reads_the_judge.py",
    "cuts_memory_off.py",
    "steals_the_files.py",
    "beside_own_memory.py",
    "calls_the_reference.py",
    "calls_numpy.py",
    "hides_numpy.py",
    "in_a_thread.py",
    "by_addresses.py",
    "beside_numpy.py",
    "beside_dlpack.py",
    "beside_items.py",
    "beside_copies.py",
    "helper_in_kernel.py",
    "arrays_in_kernel.py",
    "computes_the_grid.py",
    "own_operator.py",
]


@pytest.mark.slow
@pytest.mark.parametrize("name", PYTHON)
def test_python_that_computes_or_reaches_its_judge_is_not_right(name: str) -> None:
    report = report_on(task_on(name))
    assert report.verdict in ("failed", "calls the library", "not judged"), report
    assert report.reason
    assert exit_code([report], set()) in (1, 3)


@pytest.mark.slow
def test_numbers_that_only_move_must_be_moved_by_a_kernel() -> None:
    report = report_on(replace(task_on("only_moves.py"), rung="copy/only_moves"))
    assert report.verdict == "calls the library" and "without its kernels" in report.reason, report


SUM = """/*---
idea = "Wrong where it says."
dtypes = ["f32"]
[[launch]]
kernel = "residual"
grid = "ceil_div(B * T * C, 256)"
block = 256
---*/
#include "rung.cuh"

extern "C" __global__ void residual(const Real* a, const Real* b, Real* out, int B, int T, int C)
{
    const int64_t i = blockIdx.x * 256ll + threadIdx.x;
    if (i >= int64_t(B) * T * C) return;
    out[i] = SUM;
}
"""
BY_ADDRESS = [
    pytest.param("C == 768 && out > a", id="order of operands"),
    pytest.param("B * T * C == 1031 && b > a", id="order of inputs", marks=pytest.mark.slow),
    pytest.param("C == 768 && (size_t(a) / 4096 + size_t(out) / 4096) % 2 == 0", id="parity of pages", marks=pytest.mark.slow),
    pytest.param("C % 256 == 0 && (size_t(out) & 255) != 0", id="odd addresses"),
    pytest.param("C % 2 == 1 && size_t(a) % 4096 == 0", id="multiple of pages", marks=pytest.mark.slow),
    pytest.param("B * T * C == 2304 && size_t(b) % 16 != 0", id="not a vector", marks=pytest.mark.slow),
    pytest.param("(out > a ? size_t(out) - size_t(a) : size_t(a) - size_t(out)) > (1ull << 32)", id="far apart", marks=pytest.mark.slow),
]  # fmt: skip


def verdict_on_a_sum(what: str, folder: Path) -> Report:
    """A residual that computes this, judged as a file in a process of its own."""
    path = folder / "sum.cu"
    path.write_text(SUM.replace("SUM", what))
    return report_on(CheckRequest("residual/sum", "f32", file=str(path), effort=THOROUGH))


@pytest.mark.slow
@pytest.mark.parametrize(("share", "verdict"), [("1.0f", "ok"), ("(C == 77 ? 0.5f : 1.0f)", "failed")])
def test_sizes_that_a_file_names_are_tried_in_its_own_process(tmp_path: Path, share: str, verdict: str) -> None:
    report = verdict_on_a_sum(f"T == 4001 ? a[i] + b[i] : a[i] + {share} * b[i]", tmp_path)
    assert report.verdict == verdict and ("with C=77" in report.case) == (verdict == "failed"), report


@pytest.mark.slow
@pytest.mark.parametrize("condition", BY_ADDRESS)
def test_a_result_must_not_depend_on_addresses(tmp_path: Path, condition: str) -> None:
    report = verdict_on_a_sum(f"{condition} ? 0.0f : a[i] + b[i]", tmp_path)
    assert report.verdict == "failed", report
    assert "values are off" in report.reason or "is off" in report.reason


def test_further_settings_hold_every_three_values_that_go_together() -> None:
    tune = {"A": [1, 2, 3, 4], "B": [1, 2, 3], "C": [1, 2, 3], "D": [1, 2, 3], "E": [1, 2]}
    usable = lambda s: s["A"] * s["B"] < 12  # noqa: E731
    further = list(schedule.more(tune, "text", usable))
    assert all(usable(s) for s in further) and len(further) < 150
    seen = [{name: choices[0] for name, choices in tune.items()}, *schedule.settings(tune), *further]
    for three in itertools.combinations(tune, 3):
        for values in itertools.product(*(tune[n] for n in three)):
            chosen = dict(zip(three, values, strict=True))
            assert chosen.get("A", 1) * chosen.get("B", 1) >= 12 or any(chosen.items() <= s.items() for s in seen)
    assert further != list(schedule.more(tune, "another text", usable))


def test_few_settings_are_all_tried() -> None:
    tune = {"A": [1, 2, 3], "B": [1, 2, 3], "C": [1, 2], "D": [7]}
    found = [*schedule.settings(tune), *schedule.more(tune, "", lambda _: True)]
    assert len(found) == len({tuple(s.items()) for s in found}) == 17


def test_a_rung_that_never_ends_is_stopped(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sandbox, "RUN_SECONDS", {"emulator": 1.0})
    report = report_on(task_on("never_ends.py"))
    assert report.verdict == "not judged" and report.cause == TIME and "1 s" in report.reason


def test_what_a_kernel_prints_is_not_on_standard_output(capfd: pytest.CaptureFixture[str]) -> None:
    report = report_on(task_on("prints.cu", quick=True))
    output = capfd.readouterr()
    assert report.verdict == "ok", report
    assert "hello" not in output.out and "hello from the kernel" in output.err


@pytest.mark.slow
def test_operands_may_be_mirrored_into_the_memory_of_a_device() -> None:
    rung = catalogue.find("residual/01_naive")
    with sandbox.Sandbox("emulator", rung, mirrored=True) as host:
        report = check(rung, "f32", device="emulator", host=host, quick=True)
    assert report.verdict == "ok", report.reason
    broken = catalogue.rung_from_file(rung.operation, BROKEN / "mutated_input.cu")
    with sandbox.Sandbox("emulator", broken, mirrored=True) as host:
        assert check(broken, "f32", device="emulator", host=host).reason == "changed its input a"


@pytest.mark.slow
def test_a_process_that_dies_costs_one_verdict() -> None:
    groups = [["a", "die", "b"], ["c"]]
    found = list(work_through(groups, _die_or_not, lambda item, why: f"{item}: {why}", ("torch",), jobs=2))
    assert sorted(found) == ["a!", "b!", "c!", "die: its process was ended by SIGKILL"]


@pytest.mark.slow
def test_a_process_that_dies_before_it_begins_costs_no_verdict_unless_it_dies_again(tmp_path: Path) -> None:
    groups: list[list[Any]] = [["a", _Deadly(tmp_path / "once", 1), "b"], [_Deadly(tmp_path / "twice", 2), "c"]]
    found = list(work_through(groups, _die_or_not, lambda item, why: f"lost: {why}", ("torch",), jobs=1))
    assert sorted(found) == ["a!", "b!", "c!", "deadly!", "lost: its process was ended by SIGKILL"]


class _Deadly:
    """Ends the process that receives it, so many times."""

    def __init__(self, marks: Path, times: int) -> None:
        self.marks, self.times = marks, times

    def __reduce__(self) -> Any:
        return _received, (self.marks, self.times)


def _received(marks: Path, times: int) -> str:
    with marks.open("a") as file:
        file.write("x")
    if marks.stat().st_size <= times:
        os.kill(os.getpid(), signal.SIGKILL)
    return "deadly"


def _die_or_not(item: str) -> str:
    if item == "die":
        os.kill(os.getpid(), signal.SIGKILL)
    return f"{item}!"


@pytest.mark.slow
def test_the_same_checks_pass_an_honest_kernel() -> None:
    report = check(catalogue.find("residual/01_naive"), "f32", device="emulator", effort=LADDER)
    assert report.verdict == "ok", report.reason
    assert report.cases >= 6
    assert report.runs >= 2 * report.cases
    assert 0 < report.element < 1


def test_a_tree_without_barriers_is_reported_by_thread_and_line(tmp_path: Path) -> None:
    path = tmp_path / "no_barrier.cu"
    path.write_text(catalogue.find("layernorm/05").source.replace("__syncthreads();", ""))
    rung = catalogue.rung_from_file(catalogue.operation("layernorm"), path)
    report = check(rung, "f32", device="emulator")
    assert report.verdict == "failed"
    assert report.cause == "race" and "'partial'" in report.reason


def test_every_task_has_one_portion_and_the_longest_come_first() -> None:
    work = [
        CheckRequest(f"{of}/{name}", dtype, "cuda")
        for of, name in (("layernorm", "01_naive"), ("decode", "14_pacing"), ("layernorm", "02_unrolled"))
        for dtype in ("f32", "bf16")
    ]
    portions = processes._portions(work, jobs=2)
    assert sorted(t.rung + t.dtype for portion in portions for t in portion) == sorted(t.rung + t.dtype for t in work)
    assert [portions[0][0].operation, portions[-1][0].operation] == ["decode", "layernorm"]
    assert all(len({(t.operation, t.dtype) for t in portion}) == 1 for portion in portions)
