"""Checks many rungs, in several processes, and yields the reports as they come."""

from __future__ import annotations

import contextlib
import ctypes
import itertools
import os
import sys
import threading
from collections.abc import Iterator, Mapping, Sequence
from contextlib import nullcontext
from operator import attrgetter

from gpuless.base.processors import processors
from rung.apart import work_through
from rung.check.child import reused
from rung.check.judge import report_on
from rung.check.report import CheckRequest, Report
from rung.dtypes import dtype as dtype_named
from rung.precision import one_thread
from rung.rungs import catalogue
from rung.rungs.base import Rung
from rung.rungs.compile_ahead import Compilers
from rung.rungs.cuda import CudaRung

SECONDS = 900.0  # for one rung and dtype
PORTION = 6  # tasks at most that stay together
GPU_JOBS = 10  # processes at most that share a GPU: with more, each waits longer for it
PRELOADED = ("rung.check.judge",)


def report_on_all(
    work: Sequence[CheckRequest],
    jobs: int | None = None,
    rungs: Mapping[str, Rung] | None = None,
) -> Iterator[Report]:
    """Reports in the order of completion; a process that dies fails only its own rung. `rungs` are those that the
    caller has, by their names: launchers have no other way here."""
    if not work:
        return
    cores = processors()
    device = work[0].device
    if jobs is None:
        jobs = max(1, min(GPU_JOBS, cores // 2)) if device == "cuda" else cores
    rungs = rungs or {}
    if len(work) < 4 or jobs <= 1 or any(rung.kind == "launcher" for rung in rungs.values()):
        with reused():
            yield from _check_in_turn(work, rungs)
        return
    portions = _portions(work, jobs)
    ahead = (
        _compiling([t for portion in portions for t in portion], cores - jobs) if device == "cuda" else nullcontext()
    )
    with ahead:
        yield from work_through(portions, report_on, _lost, PRELOADED, jobs=jobs, seconds=SECONDS)


def _check_in_turn(work: Sequence[CheckRequest], rungs: Mapping[str, Rung]) -> Iterator[Report]:
    for asked in work:
        # Emulated operands are small, and threads on a busy machine would mostly wait for each other.
        with _printing_to_stderr(), one_thread() if asked.device == "emulator" else nullcontext():
            report = report_on(asked, rungs.get(asked.rung))
        yield report
        if report.verdict == "stopped":
            return


@contextlib.contextmanager
def _compiling(work: Sequence[CheckRequest], cores: int) -> Iterator[None]:
    """While the tasks run, compiles their kernels ahead, on the cores that they leave free."""
    stopped = threading.Event()
    with Compilers(max(1, cores)) as compilers:

        def submit() -> None:
            submitted = set()
            for task in work:
                rung = None if task.file or stopped.is_set() else catalogue.find(task.rung)
                if not isinstance(rung, CudaRung):
                    continue
                real = dtype_named(task.dtype)
                for case, values in rung.cases(real, device="cuda"):
                    build = rung.build(values, real)
                    if case.where != "file" and build not in submitted and not stopped.is_set():
                        submitted.add(build)
                        compilers.submit(task.rung, values, task.dtype, None)

        thread = threading.Thread(target=submit, daemon=True)
        thread.start()
        try:
            yield
        finally:
            stopped.set()
            thread.join()


def _portions(work: Sequence[CheckRequest], jobs: int) -> list[list[CheckRequest]]:
    """Groups of tasks with the same operands and references, few enough to balance the load; those with most cases
    first."""
    most = max(1, min(PORTION, len(work) // (4 * jobs)))
    operands = attrgetter("operation", "dtype")
    alike = [[*some] for _, some in itertools.groupby(sorted(work, key=operands), operands)]
    portions = [some[n : n + most] for some in alike for n in range(0, len(some), most)]
    return sorted(portions, key=lambda some: -len(some) * len(catalogue.operation(some[0].operation).cases))


@contextlib.contextmanager
def _printing_to_stderr() -> Iterator[None]:
    """Separates a kernel's output from the command's."""
    sys.stdout.flush()
    saved = os.dup(1)
    os.dup2(2, 1)
    try:
        yield
    finally:
        sys.stdout.flush()
        ctypes.CDLL(None).fflush(None)
        os.dup2(saved, 1)
        os.close(saved)


def _lost(task: CheckRequest, why: str) -> Report:
    return Report(task.rung, task.dtype, task.device, "failed", f"{why}.")
