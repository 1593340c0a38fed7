"""Runs a verb's work in a child process if it calls a user's functions, which might end their process."""

from __future__ import annotations

import atexit
import os
import signal
import sys
from collections.abc import Callable
from typing import NoReturn

from rung.check.confine import end_with_parent
from rung.errors import RungError


def watched(work: Callable[[], int], what: str) -> int:
    """The exit code that `work` returns in a child process; a RungError if the process ends before `work` does."""
    sys.stdout.flush()
    sys.stderr.flush()
    ended, say = os.pipe()
    child = os.fork()
    if not child:
        _as_child(work, say)
    os.close(say)
    before = signal.signal(signal.SIGINT, signal.SIG_IGN)  # the child is interrupted as well
    try:
        complete = os.read(ended, 1)
        code = os.waitstatus_to_exitcode(os.waitpid(child, 0)[1])
    finally:
        signal.signal(signal.SIGINT, before)
        os.close(ended)
    if complete and code >= 0:
        return code
    how = f"by {signal.Signals(-code).name}" if code < 0 else f"with exit code {code}"
    raise RungError(f"{what} ended the process {how} before a verdict; it must return.")


def _as_child(work: Callable[[], int], say: int) -> NoReturn:
    code = 1
    try:
        atexit._clear()  # what the parent does at its end is not for this process
        end_with_parent(signal.SIGTERM)
        code = work()
        sys.stdout.flush()
        sys.stderr.flush()
        atexit._run_exitfuncs()
        os.write(say, b".")
    finally:
        os._exit(code)
