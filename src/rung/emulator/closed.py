"""Memory that only kernels and torch's operators may use while a Python rung of unknown origin runs. Any other access
(by numpy, ctypes, Python itself) is recorded: it shows that the rung did not compute with its kernels.
"""

from __future__ import annotations

import os
import sys
from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from typing import Any

import torch

from rung.emulator import native
from rung.emulator.guard import guarded_empty, mapping_of

READS = "Python that reads or writes operands outside a kernel"
OWN_MEMORY = "memory that the judge does not see"
# Functions of the C library that open memory, or access it from another process.
_KEYS = {
    *("mprotect", "pkey_mprotect", "mremap", "mmap", "mmap64", "remap_file_pages", "syscall", "fork", "vfork", "clone"),
    *("sigaction", "signal", "rung_unshut", "rung_watch", "rung_watch_begin", "pthread_create"),
}
_FORKS = {"os.fork", "os.forkpty", "_thread.start_new_thread", "_thread.start_joinable_thread"}
_WHOLE = 256  # bytes; torch allocates at multiples of 64

_remarks: set[str] | None = None  # about the run that is watched
_open = 0  # nesting depth of launches and operators
_over = False  # known to compute elsewhere: nothing is closed any more
_left_out: int | None = None  # launches that may still be skipped in this run


@contextmanager
def watched() -> Iterator[set[str]]:
    """Inside, guarded memory is closed except to launches and operators; yields what else was recorded."""
    global _remarks, _open, _over
    _remarks, _open, _over = set(), 0, False
    remarks, library = _remarks, native.runtime()
    library.rung_watch_begin()
    library.rung_shut()
    try:
        _note_threads()
        yield remarks
    finally:
        _note_threads()
        library.rung_unshut()
        _remarks = None
        if library.rung_touched():
            remarks.add(READS)


@contextmanager
def opened() -> Iterator[None]:
    """A launch, or an operator of torch's."""
    global _open
    if _remarks is None or _over:
        yield
        return
    if _open == 0:
        _note_threads()
        native.runtime().rung_unshut()
    _open += 1
    try:
        yield
    finally:
        _open -= 1
        if _open == 0 and _remarks is not None and not _over:
            _note_threads()
            native.runtime().rung_shut()


def within() -> bool:
    """Whether a launch or an operator runs."""
    return _open > 0


def note(remark: str) -> None:
    """Record what a watched run does besides its kernels."""
    if _remarks is not None:
        _remarks.add(remark)


def leave_open() -> None:
    """For the rest of this run nothing is closed: the verdict is known."""
    global _over
    if _remarks is not None and not _over:
        _over = True
        native.runtime().rung_unshut()


def watching() -> bool:
    return _remarks is not None


def judge_memory(tensors: Iterable[Any]) -> None:
    """Allow kernels to use operands, buffers and what torch allocated in the rung, none of which Python reads."""
    if _remarks is not None and any(isinstance(t, torch.Tensor) and not seen(t) for t in tensors):
        note(OWN_MEMORY)


def seen(tensor: torch.Tensor) -> bool:
    """Whether a tensor has no memory, or guarded memory."""
    if tensor.device.type != "cpu" or tensor.layout != torch.strided:
        return True
    storage = tensor.untyped_storage()
    return storage.nbytes() == 0 or mapping_of(storage.data_ptr()) is not None


def moved(tensor: torch.Tensor) -> torch.Tensor:
    """The same tensor in guarded memory."""
    storage = tensor.untyped_storage()
    raw = guarded_empty(-(-storage.nbytes() // _WHOLE) * _WHOLE)
    whole = torch.empty(0, dtype=torch.uint8).set_(storage, 0, (storage.nbytes(),), (1,))
    raw[: storage.nbytes()].copy_(whole)
    like = torch.empty(0, dtype=tensor.dtype)
    return like.set_(raw.untyped_storage(), tensor.storage_offset(), tensor.size(), tensor.stride())


class TooManyLaunches(Exception):
    """A run that waits for what its kernels would have written."""


@contextmanager
def without_launches(most: int = 10_000) -> Iterator[None]:
    """Inside, launches do nothing."""
    global _left_out
    _left_out = most
    try:
        yield
    finally:
        _left_out = None


def left_out() -> bool:
    """Whether the next launch is to do nothing."""
    global _left_out
    if _left_out is None:
        return False
    _left_out -= 1
    if _left_out < 0:
        raise TooManyLaunches("too many launches")
    return True


def _note_threads() -> None:
    if len(sys._current_frames()) > 1:
        note("threads")


def listen() -> None:
    """From now on, attempts of this process to open closed memory in a watched run are recorded."""

    def hear(event: str, arguments: tuple[Any, ...]) -> None:
        if _remarks is None or _open:
            return
        if event in _FORKS:
            note(event.partition(".")[2])
        elif event == "ctypes.dlsym" and isinstance(arguments[1], str) and arguments[1] in _KEYS:
            note(arguments[1])
        elif event == "open" and isinstance(arguments[0], str | bytes):
            path = os.fsdecode(arguments[0])
            if path.startswith("/proc/") and ("mem" in path.rsplit("/", 1)[1] or "map_files" in path):
                note(path[:40])

    sys.addaudithook(hear)
