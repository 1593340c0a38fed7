"""The sizes of WMMA's fragments, as the compiler takes them."""

from __future__ import annotations

import pytest

from gpuless.compile import nvrtc
from gpuless.launch import Build
from rung.errors import RungError

ARCH = "sm_86"
SIXTEEN = [(16, 16, 16), (32, 8, 16), (8, 32, 16)]
SIZES = {
    ("__half", "float"): SIXTEEN,
    ("__nv_bfloat16", "float"): SIXTEEN,
    ("signed char", "int"): SIXTEEN,
    ("nvcuda::wmma::precision::tf32", "float"): [(16, 16, 8)],
    ("double", "double"): [(8, 8, 4)],
}
KERNEL = """
#include <cuda_bf16.h>
#include <cuda_fp16.h>
#include <mma.h>
using namespace nvcuda::wmma;
extern "C" __global__ void multiply(const {of}* x, {sum}* out)
{{
    fragment<matrix_a, {m}, {n}, {k}, {of}, row_major> a;
    fragment<matrix_b, {m}, {n}, {k}, {of}, col_major> b;
    fragment<accumulator, {m}, {n}, {k}, {sum}> c;
    fill_fragment(a, a.x[0]);
    fill_fragment(b, b.x[0]);
    fill_fragment(c, {sum}(0));
    mma_sync(c, a, b, c);
    store_matrix_sync(out, c, {n}, mem_row_major);
}}
"""


def compiles(kinds: tuple[str, str], size: tuple[int, int, int]) -> bool:
    of, total = kinds
    m, n, k = size
    source = KERNEL.format(of=of, sum=total, m=m, n=n, k=k)
    try:
        nvrtc.compile_cubin(Build(source, "fragments.cu", ("multiply",), (), (), (), False), ARCH)
    except RungError as error:
        assert "incomplete type" in str(error) or "fragment" in str(error), error
        return False
    return True


@pytest.mark.parametrize("kinds", SIZES)
def test_fragments_of_these_sizes_compile_and_no_others(kinds: tuple[str, str]) -> None:
    for size in {*SIZES[kinds], (16, 16, 8), (8, 8, 4), (16, 8, 16)}:
        assert compiles(kinds, size) == (size in SIZES[kinds]), size
