"""What a command does at present, told on standard error while it prints nothing else.

A process of its own tells it: the import of torch and long calls in C hold Python's lock, so that no thread and no
signal handler runs meanwhile; and of a process without threads copies can be made."""

from __future__ import annotations

import contextlib
import mmap
import os
import select
import shutil
import signal
import sys
import time
from collections.abc import Iterator

BEGAN = time.monotonic()  # before most modules are imported
FIRST, SILENCE, APART, TICK = 0.6, 1.0, 10.0, 0.25  # seconds until a line, from there to the next, and in a pipe
_shown = mmap.mmap(-1, 1)  # whether a line stands on the terminal, as both processes know


class _Channel:
    """To the process that tells."""

    lines = -1  # where it reads; -1 if nothing is told


def doing(what: str) -> None:
    """What is done from here on, as far as `telling` is under way; empty for nothing that is to be told."""
    if _Channel.lines >= 0:
        with contextlib.suppress(OSError):  # the process was ended from outside
            os.write(_Channel.lines, what.replace("\n", " ").encode()[:400] + b"\n")
        clear()


def stage(what: str) -> None:
    """As `doing`, with a line that stays."""
    doing(what)
    if _Channel.lines >= 0:
        print(f"  {what}", file=sys.stderr, flush=True)


def silent() -> None:
    """In a copy of this process: nothing is told."""
    _Channel.lines = -1


def clear() -> None:
    """Clears the line on the terminal; what is printed next has its place."""
    if _shown[0]:
        _shown[0] = 0
        with contextlib.suppress(OSError):  # standard error may be closed
            os.write(2, b"\r\x1b[K")


@contextlib.contextmanager
def telling(first: str, began: float | None = None) -> Iterator[None]:
    """Inside, `doing` says what is told; until then it is `first`. An inner one of these adds nothing to an outer."""
    if _Channel.lines >= 0:
        doing(first)
        yield
        return
    lines, _Channel.lines = os.pipe()
    began = time.monotonic() if began is None else began
    process = os.fork()
    if not process:
        try:
            signal.signal(signal.SIGINT, signal.SIG_IGN)
            for end in (0, 1, _Channel.lines):  # a reader of the command's output does not wait for this process
                os.close(end)
            _tell(lines, first, began)
        finally:
            os._exit(0)
    os.close(lines)
    try:
        yield
    finally:
        os.close(_Channel.lines)
        _Channel.lines = -1
        os.kill(process, signal.SIGKILL)
        os.waitpid(process, 0)
        clear()


def _tell(lines: int, what: str, since: float) -> None:
    command, terminal, due = os.getppid(), os.isatty(2), since + FIRST
    while os.getppid() == command:  # it has not been killed
        if select.select([lines], [], [], TICK)[0]:
            if not (said := os.read(lines, 1 << 16)):
                return
            what, since = said.decode(errors="replace").splitlines()[-1], time.monotonic()
        now = time.monotonic()
        if not what or now < due:
            continue
        due = now + (SILENCE if terminal else APART)
        line = "".join(c if c.isprintable() else "?" for c in f"  {what}, for {now - since:.0f} s so far")
        if terminal:
            line = f"\r\x1b[K{line[: shutil.get_terminal_size().columns - 1]}"
        os.write(2, f"{line}{'' if terminal else chr(10)}".encode())
        _shown[0] = terminal
