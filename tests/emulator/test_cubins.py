"""Kernels of a cubin, as any compiler makes it: counted and checked by themselves, and judged as a rung."""

from __future__ import annotations

import contextlib
import io
import json
from pathlib import Path
from typing import Any

import pytest

from gpuless.compile import elf, nvrtc
from gpuless.launch import Build
from rung.cli import main

SOURCE = r"""
extern "C" __global__ void add(const float* a, const float* b, float* out, int n)
{
    int i = blockIdx.x * blockDim.x + threadIdx.x;
    if (i < n) out[i] = a[i] + b[i];
}
extern "C" __global__ void one_further(const float* a, const float* b, float* out, int n)
{
    int i = blockIdx.x * blockDim.x + threadIdx.x;
    if (i <= n) out[i] = a[i] + b[i];
}
extern "C" __global__ void last_one(float* out)
{
    if (threadIdx.x == 0) out[0] = float(blockIdx.x);
}
extern "C" __global__ void shared(const short* x, double* out, long long n, unsigned char flag)
{
    extern __shared__ double tile[];
    __shared__ int more[32];
    tile[threadIdx.x] = x[threadIdx.x] * (flag ? 2.0 : 1.0);
    more[threadIdx.x] = 1;
    __syncthreads();
    if (threadIdx.x < n) out[threadIdx.x] = tile[blockDim.x - 1 - threadIdx.x] + more[0];
}
"""
ARRAYS = "a:f32[100] b:f32[10,10] out:f32[100]=unset"


@pytest.fixture(scope="module")
def cubin(tmp_path_factory: pytest.TempPathFactory) -> Path:
    kernels = ("add", "one_further", "last_one", "shared")
    made = nvrtc.compile_cubin(Build(SOURCE, "mine.cu", kernels, ()).with_lines, "sm_90a")
    path = tmp_path_factory.mktemp("cubins") / "mine.cubin"
    path.write_bytes(made.path.read_bytes())
    return path


def ran(*words: object) -> tuple[int, str]:
    """The exit code of a command line, and what it prints."""
    out = io.StringIO()
    with contextlib.redirect_stdout(out), contextlib.redirect_stderr(out), pytest.raises(SystemExit) as ended:
        main([str(word) for word in words])
    return int(ended.value.code or 0), out.getvalue()


def told(*words: object) -> dict[str, Any]:
    found: dict[str, Any] = json.loads(ran(*words, "--json")[1])
    return found


def test_a_cubin_tells_its_kernels_and_what_they_need(cubin: Path) -> None:
    data = cubin.read_bytes()
    assert sorted(elf.kernels(data)) == ["add", "last_one", "one_further", "shared"]
    found = elf.resources(data, "shared")
    assert found.static_shared == 128 and 8 <= found.registers <= 64 and found.spill_stores == 0


def test_a_launch_of_a_cubin_is_counted(cubin: Path) -> None:
    words = ("count", cubin, "--kernel", "add", "--grid", 1, "--block", 128, "--args", f"{ARRAYS} n:i32=100")
    figures = told(*words)["results"][0]["kernels"][0]["figures"]
    assert (figures["global_loads"], figures["global_read_bytes"], figures["global_write_bytes"]) == (8, 832, 416)
    assert ran(*words, "--goal", "requests(st) <= 3")[0] == 1
    predicted = told(*words, "--time", "NVIDIA H200")["results"][0]
    assert predicted["source"] == "predicted" and 1 < predicted["us"] < 5


@pytest.mark.parametrize("arch", ["sm_80", "sm_90a"])
def test_types_shared_memory_and_sizes_of_blocks_are_taken(arch: str, tmp_path: Path) -> None:
    cubin = tmp_path / "mine.cubin"
    made = nvrtc.compile_cubin(Build(SOURCE, "mine.cu", ("shared",), ()).with_lines, arch)
    cubin.write_bytes(made.path.read_bytes())
    args = "x:i16[32]=3 out:f64[32]=unset i64=32 u8=1"
    words = ("check", cubin, "--kernel", "shared", "--grid", "1,1,1", "--block", "32x1", "--shared", 256, "--args", args)
    assert ran(*words)[0] == 0


@pytest.mark.parametrize(
    ("kernel", "args", "kind"),
    [("one_further", f"{ARRAYS} n:i32=100", "bounds"), ("last_one", "out:f32[4]", "race")],
)
def test_a_fault_of_a_cubins_kernel_is_found_without_a_reference(
    kernel: str, args: str, kind: str, cubin: Path
) -> None:
    found = told("check", cubin, "--kernel", kernel, "--grid", 8, "--block", 32, "--args", args)
    assert (found["verdict"], [one["kind"] for one in found["findings"]]) == ("failed", [kind])
    assert found["findings"][0]["repeat"].startswith(f"rung check {cubin}")


@pytest.mark.parametrize(
    ("words", "why"),
    [
        (("--kernel", "add"), "--grid"),
        (("--grid", 1, "--block", 32), "name one kernel"),
        (("--kernel", "add", "--grid", 1, "--block", 32, "--args", "f32[4]"), "parameters"),
        (("--kernel", "add", "--grid", 1, "--block", 32, "--args", "f99[4]"), "f99"),
        (("--kernel", "add", "--grid", 1, "--block", 2048, "--args", f"{ARRAYS} i32=1"), "threads"),
    ],
)
def test_a_launch_that_cannot_be_is_refused(words: tuple[object, ...], why: str, cubin: Path) -> None:
    code, text = ran("check", cubin, *words)
    assert code == 2 and why in text


def description(cubin: Path, kernel: str, **changes: str) -> Path:
    keys = {"grid": "ceil_div(B * T * C, 128)", "block": "128", "args": '["a", "b", "out", "i32 = B * T * C"]'} | changes
    path = cubin.with_name(f"{kernel}.toml")
    launch = "\n".join(f"{name} = {value if value.startswith('[') else repr(value)}" for name, value in keys.items())
    path.write_text(f'cubin = "{cubin.name}"\ndtypes = ["f32"]\n[[launch]]\nkernel = "{kernel}"\n{launch}\n')
    return path


@pytest.mark.slow
def test_a_described_cubin_is_judged_as_a_rung(cubin: Path) -> None:
    assert ran("check", "residual", description(cubin, "add"))[0] == 0
    code, text = ran("check", "residual", description(cubin, "one_further"))
    assert code == 1 and "past the end" in text


def test_a_description_that_says_nonsense_is_refused(cubin: Path) -> None:
    for changes, why in (({"args": '["a", "b", "oout", "i32 = C"]'}, "oout"), ({"gird": "1"}, "gird")):
        code, text = ran("check", "residual", description(cubin, "add", **changes), "--quick")
        assert code and why in text
