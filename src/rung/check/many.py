"""Checks many rungs in several processes, and yields the reports as they come."""

from __future__ import annotations

import contextlib
import ctypes
import os
import sys
import threading
from collections.abc import Iterator, Sequence
from contextlib import nullcontext
from dataclasses import dataclass, replace
from functools import cache
from pathlib import Path

import torch

from rung.check.compile_ahead import Compilers
from rung.check.effort import ALONE, LADDER
from rung.check.isolated import Isolated
from rung.check.launchable import Compiler, Nvrtc, unlaunchable
from rung.check.one import check
from rung.check.report import Failure, Report
from rung.check.workers import work_through
from rung.cuda import nvrtc
from rung.dtypes import dtype as dtype_named
from rung.errors import RungError, first_line
from rung.precision import one_thread
from rung.processors import processors
from rung.rungs import catalogue, identity
from rung.rungs.base import Device, Rung
from rung.rungs.cuda import CudaRung

SECONDS = 900.0  # for one rung and dtype
PORTION = 6  # tasks at most that stay together
GPU_JOBS = 10  # processes at most that share a GPU: with more, each waits longer for it


@dataclass(frozen=True)
class Task:
    """One rung and dtype, as strings that another process can read."""

    rung: str  # "layernorm/03_restrict"
    file: str | None
    dtype: str
    device: Device
    seed: int
    case: str | None = None
    tuning: tuple[tuple[str, int], ...] = ()
    quick: bool = False
    races: bool = False
    alone: bool = False  # checked thoroughly, including its tunables
    coverage: bool = False

    @property
    def operation(self) -> str:
        return self.rung.partition("/")[0]


def device_named(name: str | None) -> Device:
    """The device that the user named; by default the GPU if there is one, else the emulator."""
    if name is None:
        return "cuda" if torch.cuda.is_available() else "emulator"
    known: dict[str, Device] = {"cuda": "cuda", "emulator": "emulator"}
    if name not in known:
        raise RungError(f"the device {name!r} is not known; there are cuda and emulator.")
    return known[name]


def tasks(
    chosen: Sequence[Rung],
    *,
    device: Device,
    seed: int = 0,
    case: str | None = None,
    dtypes: Sequence[str] = (),
    tuning: dict[str, int] | None = None,
    quick: bool = False,
    races: bool = False,
    coverage: bool = False,
) -> list[Task]:
    """The tasks. A user's own file is distinguished from the ladder's by its path."""
    if device == "cuda" and not torch.cuda.is_available():
        raise RungError("no CUDA device was found; use --device emulator, which needs none.")
    chosen = _with_case(chosen, case)
    if not any(set(tuning or {}) <= set(rung.tune) for rung in chosen):
        chosen[0].tuned(tuning)  # raises, and lists the available ones
        raise RungError(f"none of the chosen rungs has {' and '.join(tuning or {})}; check one rung with its own.")
    found = []
    alone = len(chosen) == 1
    for rung in chosen:
        own = not catalogue.shipped(rung)
        file = str(rung.path) if own else None
        for dtype in rung.dtypes:
            if not dtypes or dtype in dtypes:
                items = tuple(sorted((tuning or {}).items()))
                found.append(
                    Task(rung.full_name, file, dtype, device, seed, case, items, quick, races, alone, coverage)
                )
    if not found:
        raise RungError(f"nothing to check: none of the chosen rungs has {' or '.join(dtypes)}.")
    return found


def _with_case(chosen: Sequence[Rung], case: str | None) -> Sequence[Rung]:
    """Those whose operation has the case; a name that none has is a mistake."""
    having = [r for r in chosen if case is None or case in [c.name for c in r.operation.cases]]
    if not having:
        if len({r.operation.name for r in chosen}) > 1:
            raise RungError(f"no ladder has a case {case!r}; name one of them, as in `rung check softmax --case one`.")
        of = chosen[0].operation
        raise RungError(f"{of.name} has no case {case!r}; it has {', '.join(repr(c.name) for c in of.cases)}.")
    return having


def run_task(task: Task) -> Report:
    """Check one rung and dtype; every error becomes a report."""
    try:
        if task.file:
            return _run_file(task, catalogue.rung_from_file(catalogue.operation(task.operation), Path(task.file)))
        return _run(task, catalogue.find(task.rung))
    except RungError as error:
        return Report(task.rung, task.dtype, task.device, "failed", str(error))
    except Exception as error:  # a Python rung may raise anything
        text = first_line(f"{type(error).__name__}: {error}")
        return Report(task.rung, task.dtype, task.device, "failed", text)


def _run_file(task: Task, rung: Rung) -> Report:
    """A rung of unknown origin, in a process of its own; on a GPU the emulator checks for races as well."""
    with Isolated(task.device) as host:
        report = _run(task, rung, host)
    if task.device != "cuda" or report.verdict != "ok" or rung.kind != "cuda" or rung.emulate:
        return report
    with Isolated("emulator") as host:
        emulated = _run(replace(task, device="emulator", races=True, quick=False), rung, host)
    if emulated.verdict == "failed":
        report.verdict, report.case = "failed", emulated.case
        report.reason = f"right on the GPU, but on the emulator: {emulated.reason}"
    elif emulated.verdict != "ok":
        report.notes.append(f"the emulator did not judge it: {emulated.reason}")
    return report


def _run(task: Task, rung: Rung, host: Isolated | None = None) -> Report:
    lacking = [n for n, _ in task.tuning if n not in rung.tune]
    if lacking:
        return Report(task.rung, task.dtype, task.device, "skipped", f"it has no tunable {', '.join(lacking)}")
    report = check(
        rung,
        task.dtype,
        device=task.device,
        seed=task.seed,
        case=task.case,
        tuning=dict(task.tuning) or None,
        quick=task.quick,
        races=task.races,
        coverage=task.coverage,
        effort=ALONE if task.alone else LADDER,
        host=host,
    )
    if task.alone and task.device == "emulator" and not task.quick and isinstance(rung, CudaRung):
        _on_a_gpu(report, rung, dict(task.tuning) or None, host or Nvrtc())
    return report


def _on_a_gpu(report: Report, rung: CudaRung, tuning: dict[str, int] | None, compiler: Compiler) -> None:
    """Adds to the report of an emulated rung what an H200 would refuse."""
    if report.verdict not in ("ok", "few cases", "arithmetic only"):
        return
    dtype = dtype_named(report.dtype)
    try:
        nvrtc.version()
    except RungError as error:
        report.notes.append(f"not compiled for a GPU: {error}")
        return
    with report.phase("compile_for_a_gpu"):
        try:
            reason = unlaunchable(rung, dtype, tuning, compiler)
        except Failure as failure:  # of the compiler's process
            reason = f"compiling it for a GPU: {failure}"
    if reason:
        report.verdict, report.reason, report.cause = "failed", reason, "launch"


def check_all(work: Sequence[Task], jobs: int | None = None) -> Iterator[Report]:
    """Reports in the order of completion; a process that dies fails only its own rung."""
    if not work:
        return
    cores = processors()
    device = work[0].device
    if jobs is None:
        jobs = max(1, min(GPU_JOBS, cores // 2)) if device == "cuda" else cores
    if len(work) < 4 or jobs <= 1:
        for task in work:
            # Emulated operands are small, and threads on a busy machine would mostly wait for each other.
            with _printing_to_stderr(), one_thread() if device == "emulator" else nullcontext():
                report = run_task(task)
            yield report
        return
    portions = _portions(work, jobs)
    ahead = (
        _compiling([t for portion in portions for t in portion], cores - jobs) if device == "cuda" else nullcontext()
    )
    with ahead:
        yield from work_through(portions, run_task, _lost, jobs=jobs, seconds=SECONDS)


@contextlib.contextmanager
def _compiling(work: Sequence[Task], cores: int) -> Iterator[None]:
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
                for case in rung.operation.cases:
                    values = rung.operation.complete(case.values)
                    if case.where == "file" or task.dtype not in case.dtypes:
                        continue
                    if rung.refusal(values, real, device="cuda") is not None:
                        continue
                    build = rung.build(values, real)
                    if build not in submitted and not stopped.is_set():
                        submitted.add(build)
                        compilers.submit(task.rung, values, task.dtype, None)

        thread = threading.Thread(target=submit, daemon=True)
        thread.start()
        try:
            yield
        finally:
            stopped.set()
            thread.join()


def _portions(work: Sequence[Task], jobs: int) -> list[list[Task]]:
    """Groups tasks with the same operands and references, few enough to balance the load; the longest first."""
    weights = {task: 0 if task.file else _weight(task.rung) for task in work}
    most = sum(weights.values()) / (8 * jobs)
    found: list[list[Task]] = []
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


def _lost(task: Task, why: str) -> Report:
    return Report(task.rung, task.dtype, task.device, "failed", f"{why}.")
