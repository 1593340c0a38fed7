"""Checks many rungs, in several processes, and yields the reports as they come: if a process dies or takes too long,
only its rung fails."""

from __future__ import annotations

import atexit
import contextlib
import ctypes
import math
import multiprocessing
import os
import signal
import sys
import threading
import time
from collections import deque
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import nullcontext
from functools import cache
from multiprocessing.connection import Connection, wait
from typing import Any, Generic, TypeVar

from gpuless.base.processors import processors
from rung.apart import Apart, interrupts_ignored
from rung.check.child import reused
from rung.check.judge import report_on
from rung.check.report import CheckRequest, Report
from rung.dtypes import dtype as dtype_named
from rung.errors import RungError
from rung.precision import one_thread
from rung.rungs import catalogue, identity
from rung.rungs.base import Rung
from rung.rungs.compile_ahead import Compilers
from rung.rungs.cuda import CudaRung

SECONDS = 900.0  # for one rung and dtype
PORTION = 6  # tasks at most that stay together
GPU_JOBS = 10  # processes at most that share a GPU: with more, each waits longer for it
PRELOADED = ["torch", "rung.check.judge"]
BEGUN = "begun"  # what a process sends before an item's result
Item = TypeVar("Item")
Result = TypeVar("Result")


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
        yield from work_through(portions, report_on, _lost, jobs=jobs, seconds=SECONDS)


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
    """Groups tasks with the same operands and references, few enough to balance the load; the longest first."""
    weights = {task: 0 if task.file else _weight(task.rung) for task in work}
    most = sum(weights.values()) / (8 * jobs)
    found: list[list[CheckRequest]] = []
    for task in sorted(work, key=lambda t: (t.operation, t.dtype)):  # in a ladder's order
        last = found[-1] if found else []
        together = last and (last[0].operation, last[0].dtype) == (task.operation, task.dtype)
        if together and len(last) < PORTION and sum(weights[t] for t in last) + weights[task] <= most:
            last.append(task)
        else:
            found.append([task])
    return sorted(found, key=lambda tasks: -sum(weights[t] for t in tasks))


@cache
def _weight(name: str) -> int:
    """Estimate of a rung's duration: it is compiled for many of its cases, and longer sources take longer. Code for
    Triton and torch.compile is not compiled ahead."""
    rung = catalogue.find(name)
    if rung.path is not None and rung.kind == "cuda":
        size = sum(path.stat().st_size for path in [rung.path, *identity.files(rung)])
    else:
        size = 300_000 if rung.path is not None or "compile" in rung.name else 1_000
    return len(rung.operation.cases) * size


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


class _Worker(Apart, Generic[Item]):
    group: deque[Item]
    since: float
    begun: bool  # its process has begun with the first item of the group


def work_through(
    groups: Sequence[Sequence[Item]],
    work: Callable[[Item], Result],
    lost: Callable[[Item, str], Result],
    *,
    jobs: int,
    seconds: float = 600.0,
    niceness: int = 0,
    until: float = math.inf,
) -> Iterator[Result]:
    """Yields the result of every item as soon as it is known; one process handles a whole group, so that it can cache
    data. `lost` gives the result of an item whose process ended, or that took longer than `seconds`. It ends
    early at `until`, a time of time.monotonic.
    """
    waiting = deque(deque(group) for group in groups if group)
    multiprocessing.get_context("forkserver").set_forkserver_preload(PRELOADED)  # torch is imported once
    workers: list[_Worker[Item]] = []
    second_try: set[int] = set()  # ids of items that a process ended before it had begun with

    def start() -> None:
        workers.append(_Worker(_serve, work, niceness, method="forkserver"))
        workers[-1].group = deque()

    def give(worker: _Worker[Item]) -> None:
        worker.since, worker.begun = time.monotonic(), False
        if not worker.group and waiting:
            worker.group = waiting.popleft()
        with contextlib.suppress(OSError):  # it has ended: waiting for its answer reports that
            worker.pipe.send(worker.group[0] if worker.group else None)

    def replace(worker: _Worker[Item]) -> None:
        worker.__exit__()
        workers.remove(worker)
        if worker.group:
            waiting.appendleft(worker.group)
        if waiting:
            start()
            give(workers[-1])

    try:
        for _ in range(min(jobs, len(waiting))):
            start()
            give(workers[-1])
        while any(w.group for w in workers) and time.monotonic() < until:
            ready = wait([w.pipe for w in workers if w.group], timeout=1.0)
            for worker in [w for w in workers if w.group]:
                late = time.monotonic() - worker.since > seconds
                if worker.pipe not in ready and not late:
                    continue
                item = worker.group[0]
                try:
                    if late and worker.pipe not in ready:
                        raise TimeoutError
                    answer = worker.pipe.recv()
                except (EOFError, OSError, TimeoutError) as end:  # TimeoutError is an OSError
                    if not worker.begun and not late and id(item) not in second_try:
                        second_try.add(id(item))  # an earlier item ended it
                        replace(worker)
                        continue
                    why = f"did not end within {seconds:.0f} s" if isinstance(end, TimeoutError) else worker.ended()
                    worker.group.popleft()
                    result = lost(item, why)
                    replace(worker)
                else:
                    if answer == BEGUN:
                        worker.begun = True
                        continue
                    worker.group.popleft()
                    result = answer[0]
                    give(worker)
                yield result
    finally:
        for worker in workers:
            worker.__exit__()


def _serve(pipe: Connection, work: Callable[[Any], Any], niceness: int) -> None:
    import torch

    signal.signal(signal.SIGINT, signal.SIG_IGN)  # the requesting process ends this one
    torch.set_num_threads(1)
    os.nice(niceness)
    os.dup2(2, 1)  # a kernel's output is not part of the command's output
    while (item := pipe.recv()) is not None:
        pipe.send(BEGUN)
        pipe.send((work(item),))


def completed(work: Callable[[], int], what: str) -> int:
    """The exit code that `work` returns in a child process. It calls functions of the user, which may end their
    process: that is an error, never a verdict."""
    sys.stdout.flush()
    sys.stderr.flush()

    def run(pipe: Connection) -> None:
        signal.signal(signal.SIGINT, signal.default_int_handler)
        atexit._clear()  # what the parent does at its end
        code = work()
        sys.stdout.flush()
        atexit._run_exitfuncs()
        pipe.send_bytes(bytes([code]))

    with Apart(run) as child, interrupts_ignored():  # the child gets them
        try:
            return int(child.pipe.recv_bytes()[0])
        except EOFError:
            raise RungError(f"{what} must return; {child.ended()}.") from None
