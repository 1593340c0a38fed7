"""Where numbers leave their range (`gpuless run --nan`), and what barriers wait for."""

from __future__ import annotations

import json
import re
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

pytestmark = pytest.mark.slow

SOFTMAX = """#include <cuda_fp16.h>
__global__ void softmax(const float* x, float* out)
{
    float sum = 0;
    for (int i = 0; i < 4; i++) sum += expf(x[i]);
    out[threadIdx.x] = expf(x[threadIdx.x]) / sum;  // infinity by infinity
}
__global__ void normalize(const float* x, float* out)
{
    float mean = 0, square = 0;
    for (int i = 0; i < 4; i++) mean += x[i] / 4, square += x[i] * x[i] / 4;
    out[threadIdx.x] = sqrtf(mean * mean - square);  // the wrong way round
}
__global__ void narrow(const float* x, __half* out)
{
    out[threadIdx.x] = __float2half(x[threadIdx.x] * 1000.0f);
}
"""
MAIN = """
int main()
{
    float host[4] = {VALUES}, *x;
    cudaMalloc(&x, 64);
    cudaMemcpy(x, host, 16, cudaMemcpyHostToDevice);
    CALL;
    cudaDeviceSynchronize();
}
"""


def findings(folder: Path, text: str, *options: str) -> list[dict[str, Any]]:
    (folder / "main.cu").write_text(text)
    command = [sys.executable, "-m", "gpuless", "run", "--json", *options, "main.cu"]
    done = subprocess.run(command, cwd=folder, capture_output=True, text=True)
    found: list[dict[str, Any]] = json.loads(done.stdout)["findings"]
    return found


def line_of(text: str, part: str) -> int:
    return next(n for n, line in enumerate(text.splitlines(), 1) if part in line)


@pytest.mark.parametrize(
    "values, call, kind, part",
    [
        ("90, 1, 2, 3", "softmax<<<1, 4>>>(x, x + 4)", "infinity", "sum += expf"),
        ("1, 2, 3, 4", "normalize<<<1, 4>>>(x, x + 4)", "nan", "sqrtf"),
        ("1, 2, 3, 400", "narrow<<<1, 4>>>(x, (__half*)(x + 4))", "overflow", "__float2half"),
    ],
    ids=["softmax", "variance", "half"],
)
def test_the_line_that_makes_the_first(tmp_path: Path, values: str, call: str, kind: str, part: str) -> None:
    text = SOFTMAX + MAIN.replace("VALUES", values).replace("CALL", call)
    assert findings(tmp_path, text) == []
    first = findings(tmp_path, text, "--nan")[0]
    assert (first["kind"], first["place"].get("line")) == (kind, line_of(text, part)), first


def test_what_is_in_range_or_was_none_before_is_no_finding(tmp_path: Path) -> None:
    text = SOFTMAX + MAIN.replace("VALUES", "1, NAN, -INFINITY, 4").replace("CALL", "softmax<<<1, 4>>>(x, x + 4)")
    assert findings(tmp_path, "#include <math.h>\n" + text, "--nan") == []
    text = SOFTMAX + MAIN.replace("VALUES", "1, 2, 3, 4").replace("CALL", "softmax<<<1, 4>>>(x, x + 4)")
    assert findings(tmp_path, text, "--nan") == []


def test_operands_and_thread_are_told(tmp_path: Path) -> None:
    call = "narrow<<<1, 4>>>(x, (__half*)(x + 4))"
    (one,) = findings(tmp_path, SOFTMAX + MAIN.replace("VALUES", "1, 2, 3, 400").replace("CALL", call), "--nan")
    assert one["place"]["thread"] == [3, 0, 0] and "400000" in one["text"]


def test_a_deadlock_names_who_is_missing(tmp_path: Path) -> None:
    text = """__global__ void halves(int* x)
{
    if (threadIdx.x < 32)
        asm volatile("bar.sync 1, 96;");
    else
        asm volatile("bar.sync 2, 64;");
    x[threadIdx.x] = 1;
}
int main()
{
    int* x;
    cudaMalloc(&x, 256);
    halves<<<1, 64>>>(x);
    cudaDeviceSynchronize();
}
"""
    (one,) = findings(tmp_path, text)
    assert one["kind"] in ("barrier", "deadlock")
    assert re.search(
        r"barrier 1 of block \(0, 0, 0\): 32 of 96 threads have arrived, without warp 1 at main.cu:6", one["text"]
    )
    assert re.search(
        r"barrier 2 of block \(0, 0, 0\): 32 of 64 threads have arrived, without warp 0 at main.cu:4", one["text"]
    )


def test_a_barrier_of_bytes_tells_what_is_missing(tmp_path: Path) -> None:
    text = """#include <cuda/barrier>
#include <cuda/ptx>
__global__ void waits(int* x)
{
    __shared__ alignas(8) cuda::std::uint64_t bar;
    if (threadIdx.x == 0) {
        cuda::ptx::mbarrier_init(&bar, 2);
        cuda::ptx::mbarrier_arrive_expect_tx(cuda::ptx::sem_release, cuda::ptx::scope_cta, cuda::ptx::space_shared, &bar, 256);
    }
    __syncthreads();
    while (!cuda::ptx::mbarrier_try_wait_parity(&bar, 0)) {}
    x[threadIdx.x] = 1;
}
int main()
{
    int* x;
    cudaMalloc(&x, 256);
    waits<<<1, 64>>>(x);
    cudaDeviceSynchronize();
}
"""
    (one,) = findings(tmp_path, text, "--gpu", "h100")
    assert one["kind"] == "deadlock"
    assert "mbarrier at byte 0 of shared memory, phase 0 (parity 0): 1 of 2 arrivals and 256 bytes are missing" in one["text"]
