"""The machine code computes what the source says: constants and variables, calls, jump tables, local and shared memory,
rungs of every kind; faults name the kernel and the line."""

from __future__ import annotations

import contextlib
import time
from typing import Any

import pytest
import torch

import gpuless
from emulation import load, needs_compiler, run
from gpuless import machine
from gpuless.compile import sass
from gpuless.counts.counters_explained import figures
from gpuless.launch import LaunchConfig
from rung.check.operands import Operands
from rung.dtypes import DTYPES
from rung.errors import EmulatorFault, RungError
from rung.rungs import catalogue

pytestmark = [needs_compiler, pytest.mark.skipif(bool(machine.unavailable()), reason=machine.unavailable())]
COUNTING = {"counters": True}
WARP = LaunchConfig((1, 1, 1), (32, 1, 1))


def ran(source: str, *args: Any, **launch: Any) -> None:
    run(source, *args, settings=COUNTING, **launch)


def test_constants_and_variables_keep_their_values_between_launches() -> None:
    source = """
__constant__ float scale[2] = {2.0f, 3.0f};
__device__ int launches = 5;
__device__ float sums[32];
__global__ void f(float* out, int which) {
    sums[threadIdx.x] += scale[which];
    out[threadIdx.x] = sums[threadIdx.x] + 100 * launches;
    __syncwarp();
    if (threadIdx.x == 0) launches++;
}
"""
    module, out = load(source, settings=gpuless.Settings(counters=True)), torch.zeros(32)
    for which, expected in ((0, 502), (1, 605)):
        module.launch("f", WARP, [("pointer", out), ("i32", which)])
        assert out.tolist() == [expected] * 32
    module.set_constant("scale", torch.tensor([10.0, 20.0]))
    module.launch("f", WARP, [("pointer", out), ("i32", 1)])
    assert out.tolist() == [725] * 32


def test_parameters_of_all_sizes_lie_where_the_compiler_expects_them() -> None:
    source = "__global__ void f(bool a, double b, int c, long long d, double* x) { x[threadIdx.x] = a + b + c + d; }"
    out = torch.zeros(32, dtype=torch.float64)
    ran(source, True, 0.5, 7, 1 << 40, out)
    assert out.tolist() == [1 + 0.5 + 7 + (1 << 40)] * 32


def test_jump_tables_calls_and_local_memory() -> None:
    source = """
__device__ __noinline__ int fibonacci(int n) { return n < 2 ? n : fibonacci(n - 1) + fibonacci(n - 2); }
__global__ void f(int* x) {
    int a[16], v;
    for (int i = 0; i < 16; i++) a[i] = i * x[threadIdx.x];
    switch (x[threadIdx.x]) {
    case 0: v = 10; break;
    case 1: v = a[x[1]] + 1; break;
    case 2: v = fibonacci(x[3] * 2); break;
    case 3: v = a[x[5]] * x[7]; break;
    case 4: v = __popc(x[9]); break;
    case 5: v = -x[11]; break;
    default: v = a[x[threadIdx.x] & 15];
    }
    __syncwarp();
    x[threadIdx.x] = v;
}
"""
    x = torch.arange(32, dtype=torch.int32)
    ran(source, x)
    assert x.tolist() == [10, 2, 8, 105, 2, -11, *((n & 15) * n for n in range(6, 32))]


def test_static_and_dynamic_shared_memory() -> None:
    source = """
__global__ void f(float* x) {
    __shared__ float first[32];
    extern __shared__ float second[];
    first[threadIdx.x] = x[threadIdx.x];
    second[threadIdx.x] = 10 * x[threadIdx.x];
    __syncthreads();
    x[threadIdx.x] = first[31 - threadIdx.x] + second[threadIdx.x ^ 1];
}
"""
    for arch in (machine.ARCH, "sm_80"):  # shared memory begins elsewhere
        x = torch.arange(32.0)
        run(source, x, settings={"counters": True, "arch": arch}, shared=128)
        assert x.tolist() == [31 - t + 10 * (t ^ 1) for t in range(32)]


@pytest.mark.parametrize("function", ["expf", "sinf", "logf", "tanhf", "rsqrtf", "erff", "cbrtf", "__expf", "exp2f"])
def test_functions_agree_with_those_of_torch(function: str) -> None:
    named = {"expf": "exp", "sinf": "sin", "logf": "log", "tanhf": "tanh", "rsqrtf": "rsqrt", "erff": "erf",
             "__expf": "exp", "exp2f": "exp2"}  # fmt: skip
    x = torch.linspace(0.01, 30, 32)
    exact = x.double() ** (1 / 3) if function == "cbrtf" else getattr(torch, named[function])(x.double())
    ran(f"__global__ void f(float* x) {{ x[threadIdx.x] = {function}(x[threadIdx.x]); }}", x)
    torch.testing.assert_close(x.double(), exact, rtol=4e-6 if function.startswith("__") else 3e-7, atol=1e-9)


@pytest.mark.parametrize(
    ("body", "kind"),
    [
        ("x[1 << 30] = 1;", "bounds"),
        ("__trap();", "trap"),
        ("while (((volatile float*)x)[0] == 0) {}", "deadlock"),
        ("extern __shared__ float s[]; s[threadIdx.x + n] = 1; x[0] = s[n];", "bounds"),
    ],
)
def test_faults_name_the_kernel_and_the_line(body: str, kind: str) -> None:
    source = f"""
__global__ void f(float* x, int n) {{
    {body}
}}
"""
    with pytest.raises(EmulatorFault, match="kernel 'f'") as raised:
        run(source, torch.zeros(32), 4096, settings=COUNTING | {"seconds": 1.0})
    assert raised.value.kind == kind and raised.value.place["line"] == 3
    x = torch.zeros(32)
    ran("__global__ void f(float* x) { x[threadIdx.x] = 1; }", x)  # later launches are unharmed
    assert x.sum() == 32


@pytest.mark.parametrize("limit", [{"seconds": 0.5}, {"steps": 1_000_000}])
@pytest.mark.parametrize(("endless", "kind"), [(-1, "unfinished"), (3, "deadlock")])
def test_a_limit_tells_long_work_from_work_without_an_end(endless: int, kind: str, limit: dict[str, Any]) -> None:
    source = """
__global__ void f(float* x, int n, int endless) {
    float sum = 0;
    for (int i = 0; i < n || blockIdx.x == endless; i++) sum = sum * 0.5f + x[i & 31];
    x[32 + threadIdx.x] = sum;
}
"""
    arguments = (torch.zeros(64), 500, endless)
    with pytest.raises(EmulatorFault) as raised:
        run(source, *arguments, grid=(200_000, 1, 1), settings=COUNTING | limit)
    assert raised.value.kind == kind



def test_an_unknown_instruction_and_a_missing_disassembler_are_named(monkeypatch: pytest.MonkeyPatch) -> None:
    source = f"__global__ void f(float* x) {{ x[0] = {time.time()}f; }}"  # never disassembled before
    with monkeypatch.context() as here, pytest.raises(RungError, match="nvdisasm"):
        here.setattr(sass, "disassembler", lambda: None)
        ran(source, torch.zeros(32))
    unknown = sass.Instruction(0, "FROB R1, R2", (("test.cu", 7),))
    monkeypatch.setattr(machine, "_instructions", lambda build, arch: {"f": [unknown]})
    with pytest.raises(RungError, match="kernel 'f', line 7: the instruction FROB R1, R2 is not executed here"):
        ran(source, torch.zeros(32))


def test_a_launch_with_pdl_must_wait() -> None:
    with pytest.raises(EmulatorFault, match="programmatic dependent launch"):
        ran("__global__ void f(float* x) { x[threadIdx.x] = 1; }", torch.zeros(32), pdl=True)


RUNGS = (
    "transpose/2", "reduce/8", "softmax/6", "layernorm/10", "layernorm/13", "gelu/2", "matmul/5", "matmul/13", "matmul/19",
    "attention/13", "attention/30", "sample/2", "decode/4", "matmul_low/1", "token_logprob/2",
)  # fmt: skip


@pytest.mark.slow
@pytest.mark.parametrize("name", RUNGS)
def test_a_counting_run_computes_what_the_rung_should(name: str) -> None:
    counted_and_compared(name, machine.ARCH)


@pytest.mark.parametrize("arch", ["sm_75", "sm_80", "sm_89"])
@pytest.mark.parametrize("name", ["softmax/2", "attention/18", "layernorm/9"])
def test_the_code_for_earlier_architectures_computes_the_same(name: str, arch: str) -> None:
    counted_and_compared(name, arch)


def counted_and_compared(name: str, arch: str) -> None:
    """Counted at the smallest case of its operation that it takes, with the reference's outputs."""
    rung = catalogue.find(name)
    dtype = DTYPES[rung.dtypes[0]]
    every = [rung.operation.complete(case.values) for case in rung.operation.cases if dtype.name in case.dtypes]
    legal = [values for values in every if rung.refused_by_needs(values, dtype) is None]
    values = min(legal, key=lambda v: rung.operation.cost(v, dtype.size).flops)
    operands = Operands(rung.operation, values, dtype, rung.operand_names, 1, device="cpu")
    with contextlib.ExitStack() as here:
        launches = here.enter_context(gpuless.current().recorded())
        here.enter_context(gpuless.under(counters=True, poison=False, seconds=60.0, arch=arch))
        prepared = rung.prepare(operands.tensors, values, dtype, device="emulator")
        operands.keep()
        reference = operands.reference()
        operands.restore()
        operands.poison()
        prepared.run()
    assert launches and all(figures(kernel)["instructions"] > 0 for kernel in launches)
    operands.half_arithmetic = dtype.size == 2
    assert all(deviation.ok for deviation in operands.deviations(reference))
