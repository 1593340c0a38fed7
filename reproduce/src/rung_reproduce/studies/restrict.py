"""`__restrict__` on every pointer of the baseline's kernels, and nothing else changed: code, registers and times.

The report lists times of 18 kernels without their names. These are 18 kernels, the baseline's and those of later
products, each compiled from the text of its rung, with and without the keyword; comparing machine code needs no GPU.
"""

from __future__ import annotations

import re
import tempfile
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path

from gpuless.compile import nvrtc
from rung.dtypes import dtype as dtype_named
from rung.rungs import catalogue, identity
from rung.rungs.cuda import CudaRung
from rung_reproduce.show.charts import Found
from rung_reproduce.studies.common import Runner, shown

# The forward pass's kernels, and those of the products that replaced its first one.
RUNGS: tuple[tuple[str, str], ...] = (
    ("attention/02_five_kernels", "f32"),
    ("layernorm/01_naive", "f32"),
    ("softmax/01_naive", "f32"),
    ("embedding/01_naive", "f32"),
    ("residual/01_naive", "f32"),
    ("gelu/01_naive", "f32"),
    ("bias/01_naive", "f32"),
    ("bias_gelu/01_naive", "f32"),
    ("matmul/01_naive", "f32"),
    ("matmul/32_one_operand_shared", "f32"),
    ("matmul/33_wmma_bias_after", "tf32"),
    ("matmul/10_wmma_f16", "tf32"),
)
SHAPE, ARCH = "b4t64", "sm_90"
_KERNEL = re.compile(r"(__global__[^{;]*?\w+\()([^)]*)(\))")


def restricted(source: str) -> str:
    """The same text with `__restrict__` on every pointer parameter of its kernels."""

    def parameters(found: re.Match[str]) -> str:
        return found[1] + re.sub(r"\*\s*(?:__restrict__\s*)?(?=\w)", "* __restrict__ ", found[2]) + found[3]

    return _KERNEL.sub(parameters, source)


@dataclass(frozen=True)
class Kernel:
    """One kernel of a rung, without and with the keyword."""

    rung: str
    name: str
    registers: tuple[int, int]
    same: bool  # machine code


def pair(name: str, folder: Path) -> tuple[CudaRung, CudaRung]:
    """A rung and its restricted version."""
    rung = catalogue.find(name)
    assert isinstance(rung, CudaRung) and rung.path is not None
    path = folder / f"{name.replace('/', '-')}.cu"
    path.write_text(restricted(rung.path.read_text(encoding="utf-8")), encoding="utf-8")
    other = catalogue.rung_from_file(rung.operation, path)
    assert isinstance(other, CudaRung)
    return rung, other


def compared(rungs: tuple[CudaRung, CudaRung], dtype: str) -> Iterator[Kernel]:
    """Every kernel of a pair, compiled for a Hopper GPU."""
    values = rungs[0].operation.complete(rungs[0].operation.shapes[SHAPE])
    builds = [rung.build(values, dtype_named(dtype)) for rung in rungs]
    cubins = [nvrtc.compile_cubin(build, ARCH) for build in builds]
    codes = [identity.machine_code(cubin.path.read_bytes()) for cubin in cubins]
    for kernel in dict.fromkeys(entry.kernel for entry in rungs[0].header.launches):
        registers = tuple(cubin.resources[kernel].registers for cubin in cubins)
        same = codes[0][f".text.{kernel}"] == codes[1][f".text.{kernel}"]
        yield Kernel(rungs[0].full_name, kernel, (registers[0], registers[1]), same)


def run(runner: Runner) -> Found:
    """Machine code everywhere; times of whole rungs on a GPU, where both run in one race."""
    with tempfile.TemporaryDirectory() as folder:
        kernels: list[Kernel] = []
        times: dict[str, tuple[float | None, float | None]] = {}
        for name, dtype in RUNGS:
            rungs = pair(name, Path(folder))
            kernels += compared(rungs, dtype)
            if runner.gpu:
                times[name] = _raced(runner, rungs, dtype)
    return report(kernels, times)


def _raced(runner: Runner, rungs: tuple[CudaRung, CudaRung], dtype: str) -> tuple[float | None, float | None]:
    values = rungs[0].operation.shapes[SHAPE]
    found = runner.race(rungs, values, dtype, 0.3)
    return found[rungs[0].full_name].us, found[rungs[1].full_name].us


def report(kernels: list[Kernel], times: Mapping[str, tuple[float | None, float | None]]) -> Found:
    """A line for each kernel, the rung's times at each."""
    lines = []
    for k in kernels:
        before, after = times.get(k.rung, (None, None))
        change = f"{after / before - 1:+.1%}" if before and after else ""
        lines.append((k.name, k.rung, *k.registers, "yes" if k.same else "no", shown(before), shown(after), change))
    same = sum(k.same for k in kernels)
    ratios = [after / before - 1 for before, after in times.values() if before and after]
    found = Found(
        f"__restrict__ on {len(kernels)} kernels: the baseline's, and those of later products",
        ("kernel", "rung", "registers", "with", "same code", "rung, us", "rung with, us", "change"),
        lines,
        f"{same} of {len(kernels)} kernels have the same machine code"
        + (f"; the times of the rungs change by {min(ratios):+.1%} to {max(ratios):+.1%}." if ratios else "."),
    )
    found.texts = {name: identity.text(catalogue.find(name)) for name, _ in RUNGS}
    return found
