"""Processes that work through groups of items; if one dies or takes too long, only its item fails."""

from __future__ import annotations

import contextlib
import multiprocessing
import signal
import threading
import time
from collections import deque
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field
from multiprocessing.connection import Connection, wait
from multiprocessing.process import BaseProcess
from typing import Any, Generic, TypeVar

PRELOADED = ["torch", "rung.check.one"]
BEGUN = "begun"  # what a process sends before an item's result
Item = TypeVar("Item")
Result = TypeVar("Result")


@dataclass
class _Worker(Generic[Item]):
    process: BaseProcess
    pipe: Connection
    group: deque[Item] = field(default_factory=deque)
    since: float = 0.0
    begun: bool = False  # its process has begun with the first item of the group


def work_through(
    groups: Sequence[Sequence[Item]],
    work: Callable[[Item], Result],
    lost: Callable[[Item, str], Result],
    *,
    jobs: int,
    seconds: float = 600.0,
    niceness: int = 0,
) -> Iterator[Result]:
    """Yields the result of every item as soon as it is known; one process handles a whole group, so that it can cache
    data. `lost` gives the result of an item whose process ended, or that took longer than `seconds`.
    """
    waiting = deque(deque(group) for group in groups if group)
    context = multiprocessing.get_context("forkserver")  # torch is imported once
    context.set_forkserver_preload(PRELOADED)
    workers: list[_Worker[Item]] = []
    second_try: set[int] = set()  # ids of items that a process ended before it had begun with

    def start() -> None:
        ours, theirs = context.Pipe()
        process = context.Process(target=_serve, args=(theirs, work, niceness), daemon=True)
        with _interrupts_ignored():  # the process started here is ended by this one, too
            process.start()
        theirs.close()
        workers.append(_Worker(process, ours))

    def give(worker: _Worker[Item]) -> None:
        worker.since, worker.begun = time.monotonic(), False
        if not worker.group and waiting:
            worker.group = waiting.popleft()
        with contextlib.suppress(OSError):  # it has ended: waiting for its answer reports that
            worker.pipe.send(worker.group[0] if worker.group else None)

    def replace(worker: _Worker[Item]) -> None:
        _end(worker)
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
        while any(w.group for w in workers):
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
                    why = f"did not end within {seconds:.0f} s" if isinstance(end, TimeoutError) else _death(worker)
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
            _end(worker)


def _serve(pipe: Connection, work: Callable[[Any], Any], niceness: int) -> None:
    import os

    import torch

    signal.signal(signal.SIGINT, signal.SIG_IGN)  # the requesting process ends this one
    torch.set_num_threads(1)
    os.nice(niceness)
    os.dup2(2, 1)  # a kernel's output is not part of the command's output
    while (item := pipe.recv()) is not None:
        pipe.send(BEGUN)
        pipe.send((work(item),))


def _death(worker: _Worker[Item]) -> str:
    worker.process.join(5)
    return how_it_ended(worker.process.exitcode)


def how_it_ended(code: int | None) -> str:
    """An exit code in words; a negative one is a signal's number."""
    if code is not None and code < 0:
        return f"its process was ended by {signal.Signals(-code).name}"
    return f"its process ended by itself (exit code {code}) before a verdict"


def _end(worker: _Worker[Item]) -> None:
    worker.pipe.close()
    if worker.group or worker.process.exitcode is None:
        worker.process.terminate()
    worker.process.join(5)
    if worker.process.exitcode is None:
        worker.process.kill()


@contextlib.contextmanager
def _interrupts_ignored() -> Iterator[None]:
    if threading.current_thread() is not threading.main_thread():
        yield
        return
    before = signal.signal(signal.SIGINT, signal.SIG_IGN)
    try:
        yield
    finally:
        signal.signal(signal.SIGINT, before)
