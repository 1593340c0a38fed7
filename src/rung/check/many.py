"""Checks many rungs, on as many processes as help, and gives the reports as they come."""

from __future__ import annotations

import contextlib
import multiprocessing
import os
import signal
import threading
from collections.abc import Iterator, Sequence
from concurrent.futures import ProcessPoolExecutor, as_completed
from dataclasses import dataclass
from pathlib import Path

import torch

from rung.check.report import Report
from rung.check.trial import check
from rung.errors import RungError
from rung.rungs import catalogue
from rung.rungs.base import Device, Rung


@dataclass(frozen=True)
class Task:
    """One rung and dtype, in words that another process understands."""

    rung: str  # "layernorm/03_restrict"
    file: str | None
    dtype: str
    device: Device
    seed: int
    case: str | None = None
    tuning: tuple[tuple[str, int], ...] = ()
    quick: bool = False
    races: bool = False


def device_named(name: str | None) -> Device:
    """The device a user names; unnamed, the GPU when there is one, else the emulator."""
    if name is None:
        return "cuda" if torch.cuda.is_available() else "emulator"
    known: dict[str, Device] = {"cuda": "cuda", "emulator": "emulator"}
    if name not in known:
        raise RungError(f"--device {name} is not known; use cuda or emulator.")
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
) -> list[Task]:
    """What there is to check. A user's own file is told apart from the ladder's by its path."""
    if device == "cuda" and not torch.cuda.is_available():
        raise RungError("there is no CUDA device here; use --device emulator, which needs none.")
    chosen = _with_case(chosen, case)
    if not any(set(tuning or {}) <= set(rung.tune) for rung in chosen):
        chosen[0].tuned(tuning)  # says what there is instead
        raise RungError(f"none of the chosen rungs has {' and '.join(tuning or {})}; check one rung with its own.")
    found = []
    for rung in chosen:
        own = not catalogue.shipped(rung)
        file = str(rung.path) if own else None
        for dtype in rung.dtypes:
            if not dtypes or dtype in dtypes:
                items = tuple(sorted((tuning or {}).items()))
                found.append(Task(rung.full_name, file, dtype, device, seed, case, items, quick, races))
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
    """Check one rung and dtype; whatever goes wrong is a report."""
    name = task.rung.partition("/")[0]
    try:
        if task.file:
            rung = catalogue.rung_from_file(catalogue.operation(name), Path(task.file))
        else:
            rung = catalogue.find(task.rung)
        lacking = [n for n, _ in task.tuning if n not in rung.tune]
        if lacking:
            return Report(task.rung, task.dtype, task.device, "skipped", f"it has no tunable {', '.join(lacking)}")
        return check(
            rung,
            task.dtype,
            device=task.device,
            seed=task.seed,
            case=task.case,
            tuning=dict(task.tuning) or None,
            quick=task.quick,
            races=task.races,
        )
    except RungError as error:
        return Report(task.rung, task.dtype, task.device, "failed", str(error))
    except Exception as error:  # a Python rung may raise anything
        text = f"{type(error).__name__}: {error}".splitlines()[0]
        return Report(task.rung, task.dtype, task.device, "failed", text)


def check_all(work: Sequence[Task], jobs: int | None = None) -> Iterator[Report]:
    """Reports in the order in which they are done."""
    if jobs is None:
        jobs = 1 if work[0].device == "cuda" else (os.cpu_count() or 1)
    if jobs <= 1 or len(work) < 4:
        for task in work:
            yield run_task(task)
        return
    context = multiprocessing.get_context("spawn")
    others = multiprocessing.active_children()
    pool = ProcessPoolExecutor(min(jobs, len(work)), mp_context=context, initializer=_one_thread)
    try:
        with _deaf_to_interrupts():  # as are the processes begun here: this one ends them
            pending = [pool.submit(run_task, task) for task in work]
        for done in as_completed(pending):
            yield done.result()
    except BaseException:  # interrupted, or nobody wants the rest
        pool.shutdown(wait=False, cancel_futures=True)
        for child in multiprocessing.active_children():
            if child not in others:
                child.terminate()
        raise
    pool.shutdown()


@contextlib.contextmanager
def _deaf_to_interrupts() -> Iterator[None]:
    if threading.current_thread() is not threading.main_thread():
        yield
        return
    before = signal.signal(signal.SIGINT, signal.SIG_IGN)
    try:
        yield
    finally:
        signal.signal(signal.SIGINT, before)


def _one_thread() -> None:
    torch.set_num_threads(1)
