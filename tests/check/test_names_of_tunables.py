"""Any name that people take for a tunable compiles beside rung's headers."""

from pathlib import Path

from gpuless import machine
from gpuless.compile import nvrtc
from rung.dtypes import dtype
from rung.rungs import catalogue
from rung.rungs.cuda import CudaRung

NAMES = ("THREADS", "N", "A", "SIZE", "COUNT", "WARPS", "WIDTH", "ROWS", "K", "M", "STAGES", "BLOCK", "TILE", "GROUP")


def test_names_of_tunables_do_not_clash_with_the_headers(tmp_path: Path) -> None:
    tunables = "".join(f"{name} = [32]\n" for name in NAMES)
    (tmp_path / "own.cu").write_text(
        f'/*---\nidea = "Names."\ndtypes = ["f32"]\n[tune]\n{tunables}[[launch]]\nkernel = "residual"\n'
        'grid = "ceil_div(B * T * C, THREADS)"\nblock = "THREADS"\n---*/\n#include "rung.cuh"\n#include "ptx.cuh"\n'
        'extern "C" __global__ void residual(const float* a, const float* b, float* out, int B, int T, int C)\n'
        "{\n    const int i = blockIdx.x * THREADS + threadIdx.x;\n    if (i < B * T * C) out[i] = a[i] + b[i];\n}\n"
    )
    of = catalogue.operation("residual")
    rung = CudaRung(of, tmp_path / "own.cu")
    build = rung.build(of.complete({"B": 1, "T": 2, "C": 3}), dtype("f32"))
    assert nvrtc.compile_cubin(build, machine.ARCH).path.stat().st_size
