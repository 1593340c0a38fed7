"""Triton's kernels without a GPU: specialised and compiled as for one, and run as machine code."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest
import torch

import gpuless
from rung.cuda import triton as on_machine
from rung.cuda import triton_driver
from rung.errors import CompileError, RungError, TooLarge
from rung.rungs import python_module

HEAD = "import torch\nimport triton\nimport triton.language as tl\n\n\n"


def module(folder: Path, text: str):  # type: ignore[no-untyped-def]
    path = folder / "kernels.py"
    path.write_text(HEAD + text)
    return python_module.load(path, emulated=True)


def launched(folder: Path, text: str, grid: int, *args: object, **named: object) -> None:
    kernel = module(folder, f"@triton.jit\n{text}").kernel
    with on_machine.enabled():
        kernel[(grid,)](*args, **named)


def test_a_product_of_bfloat16_and_a_cast_are_a_gpus(tmp_path: Path) -> None:
    text = (
        "def kernel(a, b, out, low, N: tl.constexpr):\n    i = tl.arange(0, N)\n"
        "    at = i[:, None] * N + i[None, :]\n    c = tl.dot(tl.load(a + at), tl.load(b + at))\n"
        "    tl.store(out + at, c)\n    tl.store(low + at, c.to(tl.bfloat16))\n"
    )
    a, b = (torch.randn(64, 64, generator=torch.Generator().manual_seed(s)).bfloat16() for s in (1, 2))
    out, low = torch.empty(64, 64), torch.empty(64, 64, dtype=torch.bfloat16)
    launched(tmp_path, text, 1, a, b, out, low, 64)
    torch.testing.assert_close(out.double(), a.double() @ b.double(), rtol=1e-4, atol=1e-4)
    assert torch.equal(low, out.bfloat16())


@pytest.mark.parametrize(("precision", "exact"), [("tf32", False), ("ieee", True)])
def test_a_product_in_tf32_has_the_numbers_of_tf32(precision: str, exact: bool, tmp_path: Path) -> None:
    text = (
        "def kernel(x, out):\n    i = tl.arange(0, 16)[:, None] * 16 + tl.arange(0, 16)[None, :]\n"
        f"    tl.store(out + i, tl.dot(tl.load(x + i), tl.load(x + i), input_precision='{precision}'))\n"
    )
    x, out = torch.eye(16) * (1 + 2**-20), torch.zeros(16, 16)
    launched(tmp_path, text, 1, x, out)
    assert bool((out.diag() > 1).all()) == exact


def test_arguments_are_specialised_as_triton_does(tmp_path: Path) -> None:
    """One, a multiple of 16, another number, an aligned and an odd address: each has its own code, and is right."""
    text = (
        "def kernel(x, out, N, step, by, skip):\n    i = tl.program_id(0) * 32 + tl.arange(0, 32)\n"
        "    tl.store(out + i, tl.load(x + i * step, mask=i < N, other=0.0) * by, mask=i < N)\n"
    )
    numbers = torch.arange(200.0)
    for n, step, start in ((48, 1, 0), (48, 2, 1), (1, 1, 3), (37, 3, 0)):
        out = torch.full((n + 1,), -1.0)[:n]
        launched(tmp_path, text, 2, numbers[start:], out, n, step, 0.5, None)
        assert torch.equal(out, numbers[start::step][:n] * 0.5)


def test_a_compiled_kernel_is_given_its_constants_as_well(tmp_path: Path) -> None:
    text = (
        "@triton.jit\ndef copy(x, out, N: tl.constexpr):\n    i = tl.arange(0, N)\n    tl.store(out + i, tl.load(x + i))\n"
    )
    x, out = torch.randn(64), torch.zeros(64)
    kernel = module(tmp_path, text).copy
    with on_machine.enabled():
        compiled = kernel.warmup(x, out, N=64, grid=(1,))
        with pytest.raises(RungError, match="gives 2 arguments, and it takes 3") as told:
            compiled[(1, 1, 1)](x, out)
        assert not isinstance(told.value, CompileError)
        compiled[(1, 1, 1)](x, out, 64)
    assert torch.equal(x, out)


def test_programs_run_in_other_orders_too(tmp_path: Path) -> None:
    text = "def kernel(x, out):\n    tl.store(out, tl.program_id(0).to(tl.float32))\n"
    out, last = torch.zeros(1), {}
    for order in ("forward", "reverse", "shuffled"):
        with gpuless.under(order=order):
            launched(tmp_path, text, 64, out, out)
        last[order] = int(out)
    assert len(set(last.values())) > 1


TUNED = """
@triton.autotune([triton.Config({"BLOCK": b}, num_warps=w) for b in (64, 128) for w in (1, 2, 4)]
    + [triton.Config({"BLOCK": 1 << 16}, num_warps=4)], key=["N"], reset_to_zero=["count"])
@triton.heuristics({"EVEN": lambda args: args["N"] % args["BLOCK"] == 0})
@triton.jit
def kernel(x, out, count, N, BLOCK: tl.constexpr, EVEN: tl.constexpr):
    i = tl.program_id(0) * BLOCK + tl.arange(0, BLOCK)
    tl.atomic_add(count, 1)
    tl.static_assert(BLOCK < 1000)
    tl.store(out + i, tl.load(x + i, mask=None if EVEN else i < N) + 1, mask=None if EVEN else i < N)


def run(x, out, count):
    kernel[lambda meta: (triton.cdiv(x.numel(), meta["BLOCK"]),)](x, out, count, x.numel())
    return kernel.best_config
"""


def test_a_tuners_least_and_largest_configurations_are_run_in_turn(tmp_path: Path) -> None:
    made = module(tmp_path, TUNED)
    chosen, ran = [], []
    for n in range(200, 209):
        x, out, count = torch.randn(n), torch.zeros(n), torch.zeros(1, dtype=torch.int32)
        with on_machine.enabled(), gpuless.current().recorded() as launches, gpuless.under(counters=True):
            best = made.run(x, out, count)
        assert torch.equal(out, x + 1)
        assert int(count) == -(-n // best.kwargs["BLOCK"])
        chosen.append((best.kwargs["BLOCK"], best.num_warps))
        ran += [kernel.config.block[0] for kernel in launches]
    assert {(64, 1), (128, 4)} == {*chosen}  # and none that does not compile
    assert {32, 128} == {*ran}
    assert [(one.tried, one.of) for one in triton_driver.tuned() if "BLOCK=" in one.configuration][-1:] == [(2, 7)]


WRAPPER = """
from triton.runtime import driver

DEVICE = driver.active.get_active_torch_device()
FACTS = driver.active.utils.get_device_properties(DEVICE.index)


@triton.jit
def double(x, out, N, BLOCK: tl.constexpr):
    for start in tl.range(tl.program_id(0) * BLOCK, N, tl.num_programs(0) * BLOCK):
        i = start + tl.arange(0, BLOCK)
        tl.store(out + i, tl.load(x + i, mask=i < N) * 2, mask=i < N)


def run(x):
    assert x.is_cuda and torch.cuda.is_available() and x.device == DEVICE
    assert torch.cuda.get_device_capability() == (9, 0)
    out = torch.empty(x.shape, device="cuda", dtype=x.dtype)
    compiled = double.warmup(x, out, x.numel(), BLOCK=128, grid=(1,))
    compiled._init_handles()
    blocks = FACTS["max_num_regs"] // (compiled.n_regs * FACTS["warpSize"] * compiled.metadata.num_warps)
    with torch.cuda.device(x.device.index or 0), torch.cuda.stream(torch.cuda.current_stream()):
        grid = (min(FACTS["multiprocessor_count"] * blocks, triton.cdiv(x.numel(), 128)), 1, 1)
        assert torch.cuda.get_device_properties(0).multi_processor_count == FACTS["multiprocessor_count"]
        double[grid](x, out, x.numel(), BLOCK=128)
    torch.cuda.synchronize()
    return out
"""


def test_host_code_sees_a_gpu_and_nothing_remains_of_it(tmp_path: Path) -> None:
    x = torch.randn(1000)
    made = module(tmp_path, WRAPPER)
    with on_machine.enabled():
        assert torch.equal(made.run(x), x * 2)
    assert not x.is_cuda and torch.cuda.is_available() == Path("/dev/nvidiactl").exists()


HOST_MAPS = """
from triton.tools.tensor_descriptor import TensorDescriptor


@triton.jit
def add(a, b, out, BLOCK: tl.constexpr):
    i, j = tl.program_id(0) * BLOCK, tl.program_id(1) * BLOCK
    out.store([i, j], a.load([i, j]) + b.load([i, j]))


def run(a, b, out):
    maps = [TensorDescriptor.from_tensor(t, [32, 32]) for t in (a, b, out)]
    add[triton.cdiv(a.shape[0], 32), triton.cdiv(a.shape[1], 32)](*maps, BLOCK=32)
"""
OWN_MAPS = """
@triton.jit
def add(a, b, out, rows, cols, BLOCK: tl.constexpr):
    m = tl.make_tensor_descriptor(a, shape=[rows, cols], strides=[cols, 1], block_shape=[BLOCK, BLOCK])
    n = tl.make_tensor_descriptor(b, shape=[rows, cols], strides=[cols, 1], block_shape=[BLOCK, BLOCK])
    o = tl.make_tensor_descriptor(out, shape=[rows, cols], strides=[cols, 1], block_shape=[BLOCK, BLOCK])
    i, j = tl.program_id(0) * BLOCK, tl.program_id(1) * BLOCK
    o.store([i, j], m.load([i, j]) + n.load([i, j]))


def run(a, b, out):
    add[triton.cdiv(a.shape[0], 32), triton.cdiv(a.shape[1], 32)](a, b, out, *a.shape, BLOCK=32)
"""
ALLOCATES = 'triton.set_allocator(lambda size, alignment, stream: torch.empty(size, dtype=torch.int8, device="cuda"))\n'


@pytest.mark.parametrize("text", [HOST_MAPS, ALLOCATES + OWN_MAPS], ids=["of the host", "of the kernel"])
@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
def test_tensor_maps_of_the_host_and_of_the_kernel_itself(text: str, dtype: torch.dtype, tmp_path: Path) -> None:
    a, b = (torch.randn(40, 72, generator=torch.Generator().manual_seed(s)).to(dtype) for s in (1, 2))
    out = torch.full_like(a, float("nan"))
    made = module(tmp_path, text)
    with on_machine.enabled():
        made.run(a, b, out)
    assert torch.equal(out, a + b)


def test_a_kernel_that_needs_memory_of_its_own_needs_an_allocator(tmp_path: Path) -> None:
    made = module(tmp_path, "from triton.runtime._allocation import NullAllocator\n" + OWN_MAPS)
    made.triton.set_allocator(made.NullAllocator())
    with on_machine.enabled(), pytest.raises(RuntimeError, match="allocator"):
        made.run(torch.zeros(32, 32), torch.zeros(32, 32), torch.zeros(32, 32))


@pytest.mark.parametrize(
    ("body", "options", "message"),
    [
        ("for p in (x, out):\n        tl.store(p + i, 0.0)\n        break", {}, r"line \d+: .*"),
        ("tl.store(out + i, tl.load(x + i))", {"num_warps": 77}, "kernels.py|power of 2"),
        ("tl.store(out + i, tl.load(x + i))", {"num_warps": 64}, "[Tt]hreads|Error"),
        ("tl.store(out + i, tl.load(x + i))", {"nonsense": 3}, "nonsense"),
        ("a = tl.load(x + i[:, None] * 256 + i[None, :])\n    tl.store(out + i, tl.sum(tl.dot(a, a), 0))", {}, "shared"),
    ],
    ids=["a break", "77 warps", "64 warps", "an unknown option", "shared memory"],
)
def test_a_kernel_that_no_gpu_runs_is_refused(
    body: str, options: dict[str, int], message: str, tmp_path: Path
) -> None:
    text = f"def kernel(x, out):\n    i = tl.arange(0, 256)\n    {body}\n"
    with pytest.raises((CompileError, TooLarge), match=message):
        launched(tmp_path, text, 1, torch.zeros(1 << 16), torch.zeros(4096), **options)


def test_a_launch_is_counted_by_the_lines_of_its_file(tmp_path: Path) -> None:
    text = (
        "def kernel(x, out):\n    i = tl.program_id(0) * 128 + tl.arange(0, 128)\n"
        "    a = tl.load(x + 2 * i)\n    tl.store(out + i, a)\n"
    )
    with gpuless.current().recorded() as launches, gpuless.under(counters=True):
        launched(tmp_path, text, 4, torch.zeros(2048), torch.zeros(1024))
    (one,) = launches
    found = {access.line: (access.direction, n.requests, n.sectors) for access, n in one.accesses.items() if n.requests}
    assert found == {9: ("read", 16, 128), 10: ("write", 4, 64)} or found == {9: ("read", 16, 128), 10: ("write", 16, 64)}
    assert one.config.block == (128, 1, 1) and one.config.grid == (4, 1, 1)


def test_a_kernel_of_a_process_that_interprets_is_compiled_all_the_same(tmp_path: Path) -> None:
    path = tmp_path / "largest.py"
    path.write_text(
        HEAD + "@triton.jit\ndef largest(x, out, N: tl.constexpr):\n"
        "    tl.store(out, tl.max(tl.load(x + tl.arange(0, N)), 0) + tl.cdiv(N, 3))\n"
    )
    code = (
        "import torch; from pathlib import Path; from rung.cuda import triton as machine\n"
        f"from rung.rungs import python_module; kernel = python_module.load(Path({str(path)!r}), emulated=True).largest\n"
        "x, out = torch.arange(8.0), torch.zeros(1)\n"
        "with machine.enabled(): kernel[(1,)](x, out, 8)\n"
        "assert float(out) == 10.0"
    )
    environment = os.environ | {"TRITON_INTERPRET": "1"}
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, env=environment)
    assert done.returncode == 0, done.stderr


def test_an_error_of_the_compiler_is_told_where_triton_keeps_no_list_of_functions(monkeypatch: pytest.MonkeyPatch) -> None:
    from rung.cuda.triton import _line

    monkeypatch.delattr("triton.runtime.jit._triton_jit_function_registry", raising=False)  # as Triton 3.6
    assert _line(ValueError("out of resource"), "triton") == ""
