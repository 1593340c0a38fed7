"""Compiles kernels before they are needed, on all cores, into the cache of cubins."""

from __future__ import annotations

import multiprocessing
import os
from collections.abc import Iterable, Mapping
from concurrent.futures import Future, ProcessPoolExecutor
from concurrent.futures.process import BrokenProcessPool

from gpuless.base.expressions import Number
from gpuless.base.processors import processors
from gpuless.compile import nvrtc
from rung.dtypes import dtype as dtype_named
from rung.errors import RungError
from rung.rungs import base, catalogue

PRELOADED = ["torch", "rung.rungs.catalogue", "gpuless.compile.nvrtc"]


def _as_here(environment: dict[str, str]) -> None:
    """Update the environment: a process server that was started earlier has an older one."""
    os.environ.update(environment)


class Compilers:
    """A pool of processes; use it as a context."""

    def __init__(self, workers: int | None = None) -> None:
        context = multiprocessing.get_context("forkserver")
        context.set_forkserver_preload(PRELOADED)
        self._pool = ProcessPoolExecutor(
            workers or max(1, processors() - 1), context, initializer=_as_here, initargs=(dict(os.environ),)
        )
        self._arch = base.arch()

    def submit(
        self, rung: str, values: Mapping[str, Number], dtype: str, tuning: Mapping[str, int] | None
    ) -> Future[None]:
        """Compile a rung of the ladders for a shape."""
        return self._pool.submit(_compile, rung, dict(values), dtype, dict(tuning or {}), self._arch)

    def __enter__(self) -> Compilers:
        return self

    def __exit__(self, *_: object) -> None:
        self._pool.shutdown(cancel_futures=True)


def finish(waiting: Iterable[Future[None]]) -> int:
    """Wait for all, and count failures; the reason is reported when the kernel is used."""
    failed = 0
    for future in waiting:
        try:
            failed += future.exception() is not None
        except BrokenProcessPool:
            failed += 1
    return failed


def _compile(rung: str, values: dict[str, Number], dtype: str, tuning: dict[str, int], arch: str) -> None:
    from rung.rungs.cuda import CudaRung

    found = catalogue.find(rung)
    real = dtype_named(dtype)
    complete = found.operation.complete(values)
    if not isinstance(found, CudaRung):
        return
    if found.refusal(complete, real, tuning) is not None:
        raise RungError(f"{rung} does not take this shape.")
    nvrtc.compile_cubin(found.build(complete, real, tuning), arch)
