"""Compiles what a Python rung would launch with Triton for a GPU that is not present."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from types import SimpleNamespace
from typing import Any

import torch

from rung.cuda.launch import LaunchConfig
from rung.cuda.limits import WARP, limits, refusal
from rung.errors import CompileError, first_line

CAPABILITY = 90


def available() -> bool:
    """Whether Triton and its compiler for NVIDIA GPUs are installed."""
    try:
        from triton.backends import backends
        from triton.backends.nvidia.compiler import get_ptxas

        return "nvidia" in backends and bool(get_ptxas(CAPABILITY).path)
    except Exception:  # not installed, or of another version
        return False


def compiles(run: Callable[[], object]) -> None:
    """Raises a CompileError if a kernel that this call launches is refused, or does not fit that GPU."""
    most = limits(f"sm_{CAPABILITY}")
    with pretending(CAPABILITY) as launched:
        try:
            run()
        except Exception as problem:  # any error of Triton's compiler, ptxas or the rung's own Python code
            raise CompileError(f"does not compile for sm_{CAPABILITY}: {_reason(problem)}") from problem
    for kernel in launched:
        block = (WARP * int(kernel.metadata.num_warps), 1, 1)
        if reason := refusal(most, LaunchConfig((1, 1, 1), block, int(kernel.metadata.shared))):
            raise CompileError(f"a kernel cannot be launched: {reason}")


def _reason(problem: BaseException) -> str:
    """The last line of a compiler's report, which says what is wrong where the first shows the place."""
    lines = [line.strip() for line in str(problem).splitlines() if line.strip(" ^")]
    return first_line(lines[-1] if lines else problem)


def _compiled_only(call: Callable[[], object], **_: object) -> list[float]:
    """In place of the times of an autotuned kernel's configuration: each is compiled, and the first is chosen."""
    call()
    return [1.0, 1.0, 1.0]


@contextmanager
def pretending(capability: int) -> Iterator[list[Any]]:
    """Makes Triton compile for a GPU of this capability, without launching; yields the compiled kernels."""
    from triton.backends.compiler import GPUTarget
    from triton.runtime import driver
    from triton.runtime.jit import JITFunction

    launched: list[Any] = []
    stand_in = SimpleNamespace(
        get_current_device=lambda: capability,  # Triton keeps compiled kernels by device number
        get_current_stream=lambda device: 0,
        get_current_target=lambda: GPUTarget("cuda", capability, 32),
        get_active_torch_device=lambda: torch.device("meta"),
        get_benchmarker=lambda: _compiled_only,
        utils=SimpleNamespace(get_device_properties=lambda device: {"max_shared_mem": 1 << 30}),
    )
    original, active = JITFunction.run, driver._active

    def run(self: Any, *args: Any, grid: Any, warmup: bool, **named: Any) -> Any:
        kernel = original(self, *args, grid=grid, warmup=True, **named)
        launched.append(kernel)
        return kernel

    JITFunction.run = run
    driver.set_active(stand_in)
    try:
        yield launched
    finally:
        JITFunction.run = original
        driver._active = active
