"""Registers, occupancy and reasons, for GPUs that are not there."""

import json
import subprocess
import sys
from pathlib import Path

import pytest

from gpuless.compile import sass
from gpuless.facts.limits import occupancy
from rung.errors import RungError
from rung.profile.inspect import inspect
from rung.profile.resources import Compiled
from rung.rungs import catalogue
from rung.rungs.base import Rung
from verbs import rung

HEADER = """/*---
idea = "A test."
{keys}
[tune]
BLOCK = [64, 128]
[[launch]]
kernel = "k"
grid = "ceil_div(B * T * C, BLOCK)"
block = "BLOCK"
{launch}
---*/
#include "rung.cuh"
extern "C" __global__ void k(const Real* a, const Real* b, Real* out) {{ {body} }}
"""
ADD = "int i = blockIdx.x * BLOCK + threadIdx.x; out[i] = a[i] + b[i];"


@pytest.fixture(autouse=True)
def own_cache(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("RUNG_CACHE", str(tmp_path / "cache"))


def custom(folder: Path, body: str = ADD, keys: str = 'dtypes = ["f32", "bf16"]', launch: str = "") -> Rung:
    path = folder / "mine.cu"
    path.write_text(HEADER.format(keys=keys, launch=launch, body=body))
    return catalogue.rung_from_file(catalogue.operation("residual"), path)


def only(rows: object) -> Compiled:
    (row,) = rows  # type: ignore[misc]
    assert isinstance(row, Compiled)
    return row


def test_a_row_for_each_architecture_with_the_occupancy_that_follows(tmp_path: Path) -> None:
    archs = ["sm_75", "sm_90", "sm_120"]
    rows = list(inspect([custom(tmp_path)], archs))
    assert [r.arch for r in rows] == archs
    for row in rows:
        assert (row.state, row.kernel, row.dtype, row.block) == ("ok", "k", "f32", (64, 1, 1))
        assert (row.static_shared, row.dynamic_shared, row.spills) == (0, 0, False)
        assert row.registers is not None and row.registers > 0
        found = occupancy(row.arch, 64, row.registers, 0)
        assert (row.occupancy, row.limiter) == (found.fraction, found.limiter)


def test_tuning_dtype_and_dynamic_shared_memory_are_those_asked_for(tmp_path: Path) -> None:
    rung = custom(tmp_path, launch='shared = "BLOCK * sizeof_real"')
    row = only(inspect([rung], ["sm_90"], dtype="bf16", tuning={"BLOCK": 128}))
    assert (row.dtype, row.block, row.dynamic_shared) == ("bf16", (128, 1, 1), 256)


def test_what_a_rung_is_not_made_for_is_a_row_with_its_reason(tmp_path: Path) -> None:
    rung = custom(tmp_path, keys='dtypes = ["f32"]\nneeds = "sm >= 90"')
    old, new = inspect([rung], ["sm_89", "sm_90"])
    assert (old.state, old.reason) == ("skipped", "needs sm >= 90")
    assert new.state == "ok"
    assert "has no f16 version" in only(inspect([rung], ["sm_90"], dtype="f16")).reason


def test_code_for_newer_gpus_is_skipped_with_the_gpu_it_needs(tmp_path: Path) -> None:
    body = 'asm volatile("cp.async.wait_all;"); out[0] = a[0];'
    old, new = inspect([custom(tmp_path, body)], ["sm_75", "sm_80"])
    assert (old.state, old.reason) == ("skipped", "its code needs sm_80 or later")
    assert new.state == "ok"


def test_a_shape_that_a_rung_refuses_is_replaced_by_one_that_it_accepts(tmp_path: Path) -> None:
    rung = custom(tmp_path, keys='dtypes = ["f32"]\nneeds = "B * T * C < 100"')
    row = only(inspect([rung], ["sm_90"]))
    assert row.state == "ok"
    assert row.shape in {case.name for case in rung.operation.cases}
    given = ("large", {"B": 8, "T": 1024, "C": 768})
    assert only(inspect([rung], ["sm_90"], shape=given)).reason == "needs B * T * C < 100"


@pytest.mark.slow
def test_a_block_is_as_large_as_on_a_gpu_also_where_the_emulators_is_smaller() -> None:
    rung = catalogue.find("decode/pacing")
    row = only(inspect([rung], ["sm_90"], shape=("gpt2-xl", rung.operation.shapes["gpt2-xl"]), dtype="bf16"))
    assert row.block[0] % 32 == 0 and row.block[0] // 32 == rung.tune["STEP_WARPS"][0] + 1
    assert row.stack == 0, "what is spilled would wait for L2"


def test_what_does_not_compile_or_could_not_launch_has_failed(tmp_path: Path) -> None:
    row = only(inspect([custom(tmp_path, "nonsense;")], ["sm_90"]))
    assert row.state == "failed"
    assert 'identifier "nonsense" is undefined' in row.reason
    rung = custom(tmp_path, launch="shared = 102400")
    large, fits = inspect([rung], ["sm_86", "sm_90"])
    assert (large.state, large.limiter) == ("failed", "does not fit")
    assert "102400 bytes of shared memory" in large.reason
    assert fits.state == "ok"


def test_spills_are_reported(tmp_path: Path) -> None:
    body = (
        "Real h[64]; for (int i = 0; i < 64; i++) h[i] = a[i];"
        "for (int i = 0; i < 64; i++) out[(int)h[i]] = h[63 - i];"
    )
    keys = 'dtypes = ["f32"]\noptions = ["--maxrregcount=32"]'
    assert only(inspect([custom(tmp_path, body, keys)], ["sm_90"])).spills


def test_the_instruction_mix_is_there_when_a_disassembler_is(tmp_path: Path) -> None:
    if sass.disassembler() is None:
        pytest.skip("no nvdisasm is at hand")
    row = only(inspect([custom(tmp_path)], ["sm_90"]))
    assert (row.mix["LDG"], row.mix["STG"]) == (2, 1)
    assert only(inspect([custom(tmp_path)], ["sm_90"], mix=False)).mix == {}


@pytest.mark.slow
@pytest.mark.parametrize("arch", ["sm_80", "sm_90"])
def test_triton_rungs_are_compiled_without_a_gpu(arch: str) -> None:
    # In a process of its own, as for a user.
    words = [sys.executable, "-m", "rung", "inspect", "residual/triton", "--arch", arch, "--json"]
    done = subprocess.run(words, capture_output=True, text=True, timeout=120, check=True)
    (row,) = json.loads(done.stdout)["results"]
    assert row["state"] == "ok", row["reason"]
    assert 8 <= row["registers"] <= 128
    assert row["block"][0] % 32 == 0
    if row["mix"]:
        assert row["mix"]["LDG"] >= 2 <= 2 * row["mix"]["STG"]


def test_triton_works_as_before_after_a_pretended_gpu() -> None:
    from triton.runtime import driver
    from triton.runtime.jit import JITFunction

    run, active = JITFunction.run, driver._active
    only(inspect([catalogue.find("residual/triton")], ["sm_90"], mix=False))
    assert JITFunction.run is run
    assert driver._active is active


def test_a_rung_of_triton_and_cuda_shows_the_kernels_of_both() -> None:
    rung = catalogue.find("decode/library_products")
    case = next(c for c in rung.operation.cases if c.name == "two layers")
    rows = list(inspect([rung], ["sm_90"], dtype="f16", shape=(case.name, case.values), mix=False))
    assert {row.kernel for row in rows} == {"embed", "attend", "add_norm", "pick", "head"}
    assert all(row.state == "ok" and row.registers for row in rows)


def test_a_library_call_has_nothing_to_inspect() -> None:
    row = only(inspect([catalogue.find("residual/torch")], ["sm_90"]))
    assert (row.state, row.reason) == ("skipped", "a library rung has no kernel of its own to compile")


def test_an_architecture_without_known_limits_is_a_mistake(tmp_path: Path) -> None:
    with pytest.raises(RungError, match="limits of 'sm_60' are not known"):
        list(inspect([custom(tmp_path)], ["sm_60"]))


# ---- the verb ----


def rung_inspect(*words: str) -> int:

    return rung("inspect", *words)


def test_the_verb_prints_a_plain_table_in_a_pipe(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    path, archs = custom(tmp_path).path, ("sm_75", "sm_90")
    assert rung_inspect("residual", str(path), "--arch", archs[0], "--arch", archs[1]) == 0
    lines = capsys.readouterr().out.splitlines()
    assert lines[0].split()[:5] == ["rung", "kernel", "arch", "dtype", "registers"]
    assert [line.split()[:3] for line in lines[1:3]] == [
        ["residual/mine", "k", a] for a in ("sm_75", "sm_90")
    ]
    assert "\x1b" not in "".join(lines)


def test_the_verb_prints_json_for_programs(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    path = custom(tmp_path).path
    assert rung_inspect("residual", str(path), "--arch", "sm_90", "--json") == 0
    (row,) = json.loads(capsys.readouterr().out)["results"]
    assert row["kernel"] == "k"
    assert row["registers"] > 0


def test_the_verb_warns_of_spills_and_fails_on_what_cannot_run(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    path = custom(tmp_path, "nonsense;").path
    assert rung_inspect("residual", str(path), "--arch", "sm_90") == 1
    captured = capsys.readouterr()
    assert "failed: does not compile (see its reason)" in captured.out
    assert "mine.cu:" in captured.err and 'identifier "nonsense" is undefined' in captured.err
    keys = 'dtypes = ["f32"]\noptions = ["--maxrregcount=32"]'
    body = (
        "Real h[64]; for (int i = 0; i < 64; i++) h[i] = a[i];"
        "for (int i = 0; i < 64; i++) out[(int)h[i]] = h[63 - i];"
    )
    assert rung_inspect("residual", str(custom(tmp_path, body, keys).path), "--arch", "sm_90") == 0
    assert "warning: registers spill to local memory in residual/mine (k) on sm_90" in capsys.readouterr().err


@pytest.mark.parametrize(
    ("words", "output"),
    [
        (["residual", "--arch", "sm_1"], "limits of 'sm_1' are not known"),
        (["residual", "--dtype", "f8"], "dtype 'f8' is not known"),
        (["residual", "--shape", "nowhere"], "has no shape 'nowhere'"),
        (["nothing"], "no operation 'nothing'"),
    ],
)
def test_a_mistake_is_one_sentence(words: list[str], output: str, capsys: pytest.CaptureFixture[str]) -> None:
    assert rung_inspect(*words) == 2
    errors = capsys.readouterr().err
    assert output in errors
    assert "Traceback" not in errors
