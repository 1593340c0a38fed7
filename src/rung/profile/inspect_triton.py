"""Compiles a Triton rung for a GPU that is not present, to read its registers, spills and shared memory.

The rung's own `run` is called on tensors without storage, with a substitute for Triton's driver: each kernel that it
would launch is compiled for the given architecture, and none is launched. CUDA kernels that it also prepares are
recorded and compiled, too.
"""

from __future__ import annotations

import re
import subprocess
import tempfile
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path
from typing import Any

from gpuless.compile import nvrtc, sass
from gpuless.compile.nvrtc import ptxas_resources
from gpuless.launch import Build, LaunchConfig
from rung.cuda.triton_compile import pretending
from rung.dtypes import Dtype, element
from rung.errors import RungError, first_line
from rung.lazy import torch
from rung.operation import Tensors, Values
from rung.profile.resources import Compiled, filled, mixes_of
from rung.rungs.python import PythonRung

Prepared = dict[Build, dict[str, LaunchConfig]]


def rows(
    rung: PythonRung, row: Compiled, values: Values, dtype: Dtype, tuning: Mapping[str, int] | None, mix: bool
) -> Iterator[Compiled]:
    """A row for each Triton kernel that a call at this shape launches."""
    kernels, prepared = _compiled(rung, row.arch, values, dtype, tuning)
    for build, launches in prepared.items():
        cubin = nvrtc.compile_cubin(build, row.arch)
        mixes = mixes_of(cubin) if mix else {}
        for name, config in launches.items():
            yield filled(replace(row, kernel=name, mix=mixes.get(name, {})), cubin.resources[name], config)
    for kernel in kernels:
        ptx = str(kernel.asm["ptx"])
        name = str(kernel.metadata.name)
        log, counted = _assembled(ptx, row.arch, mix)
        block = re.search(r"\.(?:req|max)ntid\s+(\d+)", ptx)
        threads = int(block.group(1)) if block else 32 * int(kernel.metadata.num_warps)
        config = LaunchConfig((1, 1, 1), (threads, 1, 1), shared=int(kernel.metadata.shared))
        made = replace(row, kernel=name, mix=counted.get(name, {}))
        yield filled(made, ptxas_resources(log, name), config)


def _compiled(
    rung: PythonRung, arch: str, values: Values, dtype: Dtype, tuning: Mapping[str, int] | None
) -> tuple[list[Any], Prepared]:
    """Triton's compiled kernels of one call, each once, in the order of their launches; and the CUDA kernels."""
    try:
        with pretending(int(re.sub(r"\D", "", arch))) as launched, _noting() as prepared:
            compile_call(rung, values, dtype, tuning)
    except RungError:
        raise
    except Exception as problem:  # any error of Triton's compiler or the rung's own Python code
        reason = first_line(problem)
        raise RungError(f"{rung.full_name} cannot be compiled without its GPU: {reason}") from problem
    return list({id(kernel): kernel for kernel in launched}.values()), prepared


def compile_call(rung: PythonRung, values: Values, dtype: Dtype, tuning: Mapping[str, int] | None) -> None:
    """Calls the rung on operands without storage."""
    call = rung.call(_operands(rung, values, dtype), values, dtype, "emulator", tuning)
    rung.bound(replace(call, device="cuda")).run()


def _operands(rung: PythonRung, values: Values, dtype: Dtype) -> Tensors:
    tensors: Tensors = {}
    for operand in rung.operation.operands:
        if operand.view is not None and operand.view_of in tensors:
            tensors[operand.name] = operand.view(tensors[operand.view_of], values)
        else:
            kind = element(operand.dtype, dtype)
            tensors[operand.name] = torch.empty(operand.size(values), dtype=kind, device="meta")
    return {name: tensor for name, tensor in tensors.items() if name in rung.binds}


@contextmanager
def _noting() -> Iterator[Prepared]:
    """With tensors without storage, CUDA modules are not loaded; their launches are recorded."""
    import gpuless

    prepared: Prepared = {}

    class Noted:
        def __init__(self, build: Build) -> None:
            self._build = build

        def prepare(self, kernel: str, config: LaunchConfig) -> None:
            prepared.setdefault(self._build, {}).setdefault(kernel, config)

        def bind(self, kernel: str, config: LaunchConfig, args: object) -> Callable[[], None]:
            self.prepare(kernel, config)
            return lambda: None

    original = gpuless.load
    gpuless.load = lambda build, **_: Noted(build)  # type: ignore[assignment]
    try:
        yield prepared
    finally:
        gpuless.load = original


def _assembled(ptx: str, arch: str, mix: bool) -> tuple[str, dict[str, dict[str, int]]]:
    """The report of Triton's own ptxas, and the instruction mix."""
    from triton.backends.nvidia.compiler import get_ptxas

    target = re.search(r"^\.target\s+(\w+)", ptx, re.MULTILINE)
    name = target.group(1) if target else arch
    with tempfile.TemporaryDirectory() as folder:
        source, cubin = Path(folder) / "kernel.ptx", Path(folder) / "kernel.cubin"
        source.write_text(ptx)
        tool = get_ptxas(int(re.sub(r"\D", "", name))).path
        command = [tool, "-v", f"--gpu-name={name}", source, "-o", cubin]
        done = subprocess.run(command, capture_output=True, text=True, timeout=120, check=False)
        if done.returncode:
            raise RungError(f"Triton's ptxas fails for {name}: {first_line(done.stderr)}")
        try:
            counted = sass.mix_of_file(cubin) if mix else {}
        except RungError:
            counted = {}
    return done.stdout + done.stderr, counted
