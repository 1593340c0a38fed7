"""Work in processes of their own: a user's code may end one, and nothing else with it."""

from __future__ import annotations

import atexit
import contextlib
import math
import multiprocessing
import os
import signal
import sys
import threading
import time
from collections import deque
from collections.abc import Callable, Iterator, Sequence
from multiprocessing.connection import Connection, wait
from typing import Any, Generic, TypeVar

from gpuless.base.errors import UserError
from rung.lazy import only_this_thread

BEGUN = "begun"  # what a process sends before an item's result
Item = TypeVar("Item")
Result = TypeVar("Result")


@contextlib.contextmanager
def interrupts_ignored() -> Iterator[None]:
    if threading.current_thread() is not threading.main_thread():
        yield
        return
    before = signal.signal(signal.SIGINT, signal.SIG_IGN)
    try:
        yield
    finally:
        signal.signal(signal.SIGINT, before)


class Apart:
    """`work(pipe, *given)` in a copy of this process, or as `method` starts one. The pipe leads to the one here; the
    process ends with the block."""

    def __init__(self, work: Callable[..., None], *given: object, method: str = "fork") -> None:
        context: Any = multiprocessing.get_context(method)
        self.pipe, other = context.Pipe()
        self.process = context.Process(target=work, args=(other, *given))
        with interrupts_ignored():  # by what is started here, which this process ends
            self.process.start()
        other.close()

    def __enter__(self) -> Apart:
        return self

    def __exit__(self, *_: object) -> None:
        self.process.kill()
        self.process.join()
        self.pipe.close()

    def ended(self) -> str:
        """How it ended, before it did its work."""
        self.process.join(5)
        return how_it_ended(self.process.exitcode)


def how_it_ended(code: int | None) -> str:
    """An exit code in words; a negative one is a signal's number."""
    if code is not None and code < 0:
        return f"its process was ended by {signal.Signals(-code).name}"
    return f"its process ended by itself (exit code {code}) before a verdict"


class _Worker(Apart, Generic[Item]):
    group: deque[Item]
    since: float
    begun: bool  # its process has begun with the first item of the group


def work_through(
    groups: Sequence[Sequence[Item]],
    work: Callable[[Item], Result],
    lost: Callable[[Item, str], Result],
    preloaded: Sequence[str],
    *,
    jobs: int,
    seconds: float = 600.0,
    niceness: int = 0,
    until: float = math.inf,
) -> Iterator[Result]:
    """Yields the result of every item as soon as it is known; one process handles a whole group, so that it can cache
    data. Modules are `preloaded` once.
    `lost` gives the result of an item whose process ended, or that took longer than `seconds`. It ends
    early at `until`, a time of time.monotonic.
    """
    waiting = deque(deque(group) for group in groups if group)
    multiprocessing.get_context("forkserver").set_forkserver_preload([*preloaded])  # imported once
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
    signal.signal(signal.SIGINT, signal.SIG_IGN)  # the requesting process ends this one
    only_this_thread()
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
            raise UserError(f"{what} must return; {child.ended()}.") from None
