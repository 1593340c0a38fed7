"""What runs on the emulator must also launch on a GPU of sm_90."""

from __future__ import annotations

from pathlib import Path

import pytest

from gpuless.compile.elf import sections
from rung.check.gpu_limits import unfit, unlaunchable
from rung.dtypes import dtype
from rung.rungs import catalogue
from rung.rungs.cuda import CudaRung

ADD = """/*---
idea   = "One thread per element."
dtypes = ["f32"]
[[launch]]
kernel = "add"
grid   = {grid}
block  = {block}
---*/
#include "rung.cuh"
extern "C" __global__ void {bounds} add(const Real* a, const Real* b, Real* out, int B, int T, int C)
{{
    {body}
    const int i = blockIdx.x * blockDim.x + threadIdx.x;
    if (i < B * T * C) out[i] = a[i] + b[i];
}}
"""
MANY_REGISTERS = """
    float kept[100];
    for (int i = 0; i < 100; i++) kept[i] = a[i * threadIdx.x % C];
    float sum = 0.0f;
#pragma unroll
    for (int round = 0; round < 2; round++)
#pragma unroll
        for (int i = 0; i < 100; i++) sum = sum * kept[i] + kept[99 - i];
    if (sum == 1.25e20f) out[0] = sum;
"""
GRID, BLOCK = '"ceil_div(B * T * C, 256)"', "256"


def rung(folder: Path, *, grid: str = GRID, block: str = BLOCK, bounds: str = "", body: str = "") -> CudaRung:
    path = folder / "own.cu"
    path.write_text(ADD.format(grid=grid, block=block, bounds=bounds, body=body))
    found = catalogue.rung_from_file(catalogue.operation("residual"), path)
    assert isinstance(found, CudaRung)
    return found


def reason(one: CudaRung) -> str:
    said, planned = unlaunchable(one, dtype("f32"), None)
    return said or unfit(one, planned)


def test_a_rung_that_fits_is_launchable(tmp_path: Path) -> None:
    assert reason(rung(tmp_path)) == ""
    assert reason(rung(tmp_path, bounds="__launch_bounds__(256)")) == ""


def test_a_block_larger_than_launch_bounds_is_refused(tmp_path: Path) -> None:
    said = reason(rung(tmp_path, bounds="__launch_bounds__(128)"))
    assert "its block has 256 threads" in said and "allows 128" in said


def test_more_registers_than_a_multiprocessor_has_are_refused(tmp_path: Path) -> None:
    said = reason(rung(tmp_path, grid='"ceil_div(B * T * C, 1024)"', block="1024", body=MANY_REGISTERS))
    assert "1024 threads of" in said


def test_a_grid_beyond_the_limit_at_a_shape_of_the_model_is_refused(tmp_path: Path) -> None:
    said = reason(rung(tmp_path, grid='[1, "ceil_div(B * T * C, 64)"]', block="64"))
    assert "blocks along y, but 1 to 65535 are allowed" in said and "`needs`" in said


def test_code_that_no_gpu_compiler_takes_is_refused(tmp_path: Path) -> None:
    said = reason(rung(tmp_path, body="int lanes = __builtin_popcountl(threadIdx.x); if (lanes > 64) return;"))
    assert "does not compile" in said


def test_a_block_with_more_shared_memory_than_a_multiprocessor_has_is_refused(tmp_path: Path) -> None:
    said = reason(rung(tmp_path, block="256\nshared = '4 * B * T * C'"))
    assert "bytes of shared memory" in said and "`needs`" in said


@pytest.mark.slow
def test_every_rung_of_the_ladders_fits_at_all_shapes_that_it_admits() -> None:
    """Its launches, that is; tests/rungs/test_every_rung_compiles.py compiles the kernels."""
    for one in [r for name in catalogue.operations() for r in catalogue.rungs(name)]:
        if isinstance(one, CudaRung):
            assert [unlaunchable(one, dtype(name), None)[0] for name in one.dtypes] == [""] * len(one.dtypes)


def test_what_is_no_elf_file_has_no_sections() -> None:
    with pytest.raises(ValueError, match="ELF"):
        sections(b"#!/bin/sh\n" + bytes(80))
