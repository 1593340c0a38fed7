"""Runs Triton kernels on the machine: each launch executes the code that Triton compiles for an sm_90."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager

from rung.cuda import pretended
from rung.emulator import cubins, module

MULTIPROCESSORS = 4


@contextmanager
def enabled(multiprocessors: int = MULTIPROCESSORS) -> Iterator[None]:
    """Inside, Triton's launches run on the machine, and programs see a GPU with so many multiprocessors."""
    if pretended.within():
        yield
        return
    with pretended.gpu(_launch, multiprocessors=multiprocessors):
        yield


def _launch(kernel: pretended.Kernel) -> None:
    if not module.launching():
        return
    loaded = cubins.loaded(kernel.cubin, kernel.file)
    parameters = [cubins.Argument(name, data, tensor) for name, data, tensor in kernel.parameters]
    loaded.launch(kernel.name, kernel.config, parameters)
