"""Work in a process of its own: a user's code may end it, and nothing else with it."""

from __future__ import annotations

import contextlib
import multiprocessing
import signal
import threading
from collections.abc import Callable, Iterator
from typing import Any


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
