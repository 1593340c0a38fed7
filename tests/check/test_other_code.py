"""Code that only one of the two compilers sees, and code that gets round the emulator's checks."""

import pytest

from rung.check.gpu_limits import differs

KERNEL = '#include "rung.cuh"\nextern "C" __global__ void k(float* x) {{ {} x[threadIdx.x] = 1.0f; }}\n'


@pytest.mark.parametrize(
    "code",
    [
        "if (__CUDA_ARCH__ >= 800) return;",
        "float rung_of_mine = 2.0f; x[0] = rung_of_mine;",
        "// rung_fault(...), no_sanitize and __tsan_read4 are only named here\n",
        "#pragma unroll 4\n for (int i = 0; i < 8; i++) x[i] = 0.0f;",
        '#ifdef __CUDA_ARCH__\n#include "mma.h"\n#endif\n',
    ],
)
def test_the_same_code_for_both(code: str) -> None:
    assert not differs(KERNEL.format(code))


@pytest.mark.parametrize(
    "code",
    [
        "\n#ifdef RUNG_EMULATOR\n x[1] = 1.0f;\n#endif\n",
        "\n#ifdef __GNUC__\n x[1] = 1.0f;\n#endif\n",
        'rung_poll(x, 0);',
        "__tsan_write4(x);",
        "\n#pragma GCC optimize (\"O0\")\n",
        '_Pragma("GCC diagnostic ignored") ',
        "struct __attribute__((no_sanitize(\"thread\"))) S {}; ",
        "__attribute__((no_sanitize_thread)) auto f = [] {};",
        "__attribute__((constructor)) static void before();",
        "sizeof(long double);",
    ],
)
def test_other_code_for_the_emulator(code: str) -> None:
    assert differs(KERNEL.format(code))
