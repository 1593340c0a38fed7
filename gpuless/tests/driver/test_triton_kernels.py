"""Kernels that Triton compiles, launched by NVIDIA's bindings."""

from __future__ import annotations

from pathlib import Path

import pytest
from test_driver import check

pytest.importorskip("triton")

KERNEL = """
import triton
import triton.language as tl

@triton.jit
def sums(x, out, N: tl.constexpr):
    rows = tl.arange(0, 32)
    columns = tl.arange(0, N)
    tile = tl.load(x + rows[:, None] * N + columns[None, :])
    tl.store(out + columns, tl.sum(tile, axis=0))
"""


def test_threads_of_a_tile_that_hold_the_same_element_do_not_race(tmp_path: Path) -> None:
    (tmp_path / "tiles.py").write_text(KERNEL)
    records = check(
        f"""
        import ctypes, sys
        sys.path.insert(0, {str(tmp_path)!r})
        import tiles, triton
        from triton.backends.compiler import GPUTarget
        source = triton.compiler.ASTSource(tiles.sums, {{"x": "*fp32", "out": "*fp32", "N": "constexpr"}}, {{"N": 128}})
        made = triton.compile(source, target=GPUTarget("cuda", 90, 32))
        ok(driver.cuInit(0)); ok(driver.cuCtxSetCurrent(ok(driver.cuDevicePrimaryCtxRetain(0))))
        f = ok(driver.cuModuleGetFunction(ok(driver.cuModuleLoadData(made.asm["cubin"])), b"sums"))
        host = np.random.default_rng(0).normal(size=(32, 128)).astype(np.float32)
        x, out = ok(driver.cuMemAlloc(host.nbytes)), ok(driver.cuMemAlloc(512))
        ok(driver.cuMemcpyHtoD(x, host.ctypes.data, host.nbytes))
        values = ((int(x), int(out), 0, 0), (ctypes.c_void_p,) * 4)
        ok(driver.cuLaunchKernel(f, 1, 1, 1, 128, 1, 1, made.metadata.shared, 0, values, 0))
        got = np.zeros(128, np.float32)
        ok(driver.cuMemcpyDtoH(got.ctypes.data, out, 512))
        assert np.allclose(got, host.sum(0), atol=1e-5)
        """,
        tmp_path,
    )
    assert not [one for one in records if one["record"] == "fault"]
