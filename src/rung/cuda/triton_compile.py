"""Compiles what a Python rung would launch with Triton for a GPU that is not present."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any
from unittest import mock

from rung.cuda import pretended

CAPABILITY = 90


def available() -> bool:
    """Whether Triton and its compiler for NVIDIA GPUs are installed."""
    try:
        from triton.backends import backends
        from triton.backends.nvidia.compiler import get_ptxas

        return "nvidia" in backends and bool(get_ptxas(CAPABILITY).path)
    except Exception:  # not installed, or of another version
        return False


def _compiled_only(call: Callable[[], object], **_: object) -> list[float]:
    """In place of the times of an autotuned kernel's configuration: each is compiled, and the first is chosen."""
    call()
    return [1.0, 1.0, 1.0]


@contextmanager
def pretending(capability: int) -> Iterator[list[Any]]:
    """Makes Triton compile for a GPU of this capability, without launching; yields the compiled kernels."""
    from triton.runtime.jit import JITFunction

    launched: list[Any] = []
    original = JITFunction.run

    def run(self: Any, *args: Any, grid: Any, warmup: bool, **named: Any) -> Any:
        kernel = original(self, *args, grid=grid, warmup=True, **named)
        launched.append(kernel)
        return kernel

    none = pretended.gpu(lambda _: None, capability=capability, device="meta", trials=_compiled_only)
    with mock.patch.object(JITFunction, "run", run), none:
        yield launched
