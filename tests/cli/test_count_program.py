"""`rung count PROGRAM.cu`: the program's output, what its kernels ask of memory, and what is refused."""

from __future__ import annotations

import json
import subprocess
import sys
from importlib.resources import files
from pathlib import Path

import jsonschema
import pytest

from emulation import needs_compiler
from gpuless import machine

pytestmark = [needs_compiler, pytest.mark.skipif(bool(machine.unavailable()), reason=machine.unavailable())]
FOLDER = Path(__file__).parents[2] / "gpuless/tests/programs"
SCHEMA = json.loads((files("rung") / "show/document.schema.json").read_text())
RIGHT = sorted((FOLDER / "right").glob("*.cu"))
TIMES = {"layernorm_forward"}  # programs that print times

MIXED = """
#include <cassert>
#include <cstdio>
typedef float (*Op)(float);
__device__ float twice(float x) { return 2 * x; }
__device__ float square(float x) { return x * x; }
__device__ Op ops[2] = {twice, square};
__device__ int launches = 5;
__managed__ int shared_count = 1;
__constant__ float weights[4] = {1, 2, 3, 4};
struct Shape { __device__ virtual float area() const = 0; };
struct Square : Shape { float s; __device__ Square(float s) : s(s) {} __device__ float area() const override { return s * s; } };
struct Line : Shape { __device__ float area() const override { return 0; } };
struct Big { float a[10]; int n; };

__global__ void strided(float* out, const float* in, int stride) { out[threadIdx.x] = in[threadIdx.x * stride]; }
__global__ void mixed(float* out, Op given, Big big)
{
    Shape* shape = threadIdx.x % 3 ? (Shape*)new Square(threadIdx.x) : new Line;
    const float table[] = {1, 5, 9, 13, 2, 8, 4, 3};
    out[threadIdx.x] = ops[threadIdx.x % 2](weights[threadIdx.x % 4]) + given(big.a[threadIdx.x % big.n]) + shape->area() + table[threadIdx.x % 8];
    delete shape;
    if (threadIdx.x == 0) launches++, shared_count++;
    if (threadIdx.x < 2) printf("%s %d|%-5d|%08.3f|%lld|%c%%|%*d\\n", "lane", threadIdx.x, 42, 3.14159, 1234567890123ll, 'q', 5, 7);
}
__global__ void bounded(int n) { assert(n < 4); }

int main(int argc, char** argv)
{
    float *in, *out, h[32], sum = 0, w[2] = {30, 40};
    Op given;
    int count;
    cudaMalloc(&in, 4096), cudaMalloc(&out, 128), cudaMemset(in, 0, 4096);
    strided<<<1, 32>>>(out, in, 1);
    strided<<<1, 32>>>(out, in, 1);
    strided<<<1, 32>>>(out, in, atoi(argv[1]));
    cudaMemcpyFromSymbol(&given, ops, sizeof given, sizeof given);
    cudaMemcpyToSymbol(weights, w, sizeof w, 8);
    mixed<<<1, 32>>>(out, given, Big{{1, 2, 3, 4, 5, 6, 7, 8, 9, 10}, 10});
    cudaMemcpy(h, out, sizeof h, cudaMemcpyDeviceToHost);
    for (float v : h) sum += v;
    cudaMemcpyFromSymbol(&count, launches, sizeof count);
    printf("%g %d %d %s\\n", sum, count, shared_count, cudaGetErrorString(cudaGetLastError()));
    cudaFree(in), cudaFree(out);
    if (argc > 2) bounded<<<1, 1>>>(4), cudaDeviceSynchronize();
}
"""


def rung(*words: object) -> subprocess.CompletedProcess[str]:
    command = [sys.executable, "-m", "rung", *map(str, words)]
    return subprocess.run(command, capture_output=True, text=True)


@pytest.fixture(scope="module")
def mixed(tmp_path_factory: pytest.TempPathFactory) -> Path:
    source = tmp_path_factory.mktemp("program") / "mixed.cu"
    source.write_text(MIXED)
    return source


def test_the_output_is_the_emulators_and_each_launch_is_counted(mixed: Path) -> None:
    emulated, counted = rung("run", mixed, "--no-races", "-q", "--", 32), rung("count", mixed, "--json", "--", 32)
    assert emulated.returncode == 0 and emulated.stdout.endswith("6 2 no error\n"), emulated.stderr
    found = json.loads(counted.stdout)
    jsonschema.Draft202012Validator(SCHEMA).validate(found)
    assert (found["verdict"], found["output"]) == ("ok", emulated.stdout)
    strided, other = found["results"][0]["kernels"]
    assert (strided["kernel"], strided["launches"], other["kernel"]) == ("strided", 3, "mixed")
    assert strided["figures"]["global_read_requests"] == 3
    assert strided["figures"]["global_read_bytes"] == 32 * (4 + 4 + 32)
    line = next(n for n, text in enumerate(MIXED.splitlines(), 1) if "void strided" in text)
    assert {(one["file"], one["line"]) for one in strided["lines"]} == {("mixed.cu", line)}


def test_tables_lines_and_goals_stand_behind_the_output(mixed: Path) -> None:
    shown = rung("count", mixed, "--", 1)
    assert shown.returncode == 0, shown.stderr
    assert shown.stdout.startswith("lane 0") and "launches, summed" in shown.stdout
    shown = rung("count", mixed, "--lines", "--goal", "sectors_per_request(ld) <= 1", "--", 32)
    assert shown.returncode == 1 and "missed: sectors_per_request(ld) <= 1" in shown.stdout
    assert "ld global 3 x 13.33" in shown.stdout


def test_a_fault_of_a_kernel_ends_the_program_at_its_line(mixed: Path) -> None:
    found = json.loads(rung("count", mixed, "--json", "--", 1, "fault").stdout)
    line = next(n for n, text in enumerate(MIXED.splitlines(), 1) if "assert(" in text)
    (fault,) = found["findings"]
    assert (found["exit"], fault["kind"], fault["place"]["line"]) == (101, "trap", line)
    assert "n < 4" in fault["text"]


def test_what_is_not_counted_is_refused_with_the_reason(tmp_path: Path) -> None:
    (tmp_path / "kernel.cu").write_text("__global__ void f(float* x) { *x = 1; }\n")
    for words, reason in (
        ((tmp_path / "kernel.cu",), "has no main"),
        ((FOLDER / "right/vector_add.cu", "--shape", "n=3"), "--shape is of rungs"),
        (("gelu/1", "a.cu", "b.cu"), "one file"),
    ):
        ended = rung("count", *words)
        assert ended.returncode == 2 and reason in ended.stderr, ended.stderr


@pytest.mark.slow
@pytest.mark.parametrize("program", RIGHT, ids=lambda path: path.stem)
def test_right_programs_say_the_same_as_on_the_emulator(program: Path) -> None:
    emulated, counted = rung("run", program, "--no-races", "-q"), rung("count", program, "--json")
    found = json.loads(counted.stdout)
    assert found["exit"] == emulated.returncode == 0, counted.stdout
    assert found["output"] == emulated.stdout or program.stem in TIMES
    assert found["results"][0]["kernels"] or program.stem == "blas_vectors"
