"""The process in which a file of unknown origin runs: asked by lines of JSON,
ended with its children. What is learned from it is text: the verdict is read from memory."""

from __future__ import annotations

import contextlib
import ctypes
import itertools
import json
import multiprocessing
import os
import select
import signal
import socket
import subprocess
import sys
import threading
import time
from collections.abc import Iterator, Sequence
from contextvars import ContextVar
from typing import Any

from gpuless.base.processors import cpu_seconds
from rung import progress
from rung.apart import how_it_ended
from rung.check.report import SLOW, Failure
from rung.errors import OutOfTime
from rung.rungs.base import Device

PR_SET_DUMPABLE = 4
IDLE = 4  # times the limit on CPU time, for a process that only waits
ANSWER = 1 << 20  # bytes of an answer that are read at most
PRINTS = "rung-prints"  # a thread that passes on what a kernel prints
OUTPUT = 1 << 16  # bytes of what the rung prints that are passed on


class _Forked:
    """A copy of this process, which has imported already what kernels need. As a `Popen`."""

    def __init__(self, settings: dict[str, Any], needed: Sequence[int]) -> None:
        output, end = os.pipe()
        self.stdout = os.fdopen(output, "rb")
        context = multiprocessing.get_context("fork")
        self._process = context.Process(target=self._run, args=(settings, needed, end), daemon=True)
        self._process.start()
        os.close(end)
        assert self._process.pid is not None
        self.pid = self._process.pid

    @staticmethod
    def _run(settings: dict[str, Any], needed: Sequence[int], end: int) -> None:
        from rung.check import sandboxed

        progress.silent()
        os.setsid()
        for standard, file in enumerate((os.open(os.devnull, os.O_RDONLY), end, end)):
            os.dup2(file, standard)
        kept = sorted({2, *needed})
        for low, high in itertools.pairwise([*kept, os.sysconf("SC_OPEN_MAX")]):
            os.closerange(low + 1, high)
        signal.signal(signal.SIGINT, signal.SIG_DFL)
        sandboxed.main(settings)

    def poll(self) -> int | None:
        return self._process.exitcode

    def wait(self, seconds: float | None = None) -> None:
        self._process.join(seconds)


def copies(device: Device, file: str) -> bool:
    """Whether a copy of this process can run a file: kernels only, and no other thread holds a lock."""
    alone = {thread.name for thread in threading.enumerate()} <= {threading.main_thread().name, PRINTS}
    alone &= threading.current_thread() is threading.main_thread()
    return device == "emulator" and file.endswith(".cu") and alone


KEPT = ("PATH", "HOME", "LANG", "TMPDIR", "USER", "LD_LIBRARY_PATH", "PYTHONHOME", "PYTHONHASHSEED", "OMP_NUM_THREADS")
PREFIXES = ("RUNG_", "GPULESS_", "XDG_", "CUDA_", "NVIDIA_", "TRITON_", "TORCH", "LC_")


def _environment() -> dict[str, str]:
    """What the file's process needs of this one's environment: it holds no secrets of others."""
    own = {name: value for name, value in os.environ.items() if name in KEPT or name.startswith(PREFIXES)}
    return {**own, "PYTHONPATH": os.pathsep.join(p for p in sys.path if p)}


def _close_to_others() -> None:
    """The file's process, of the same user, cannot trace this one or open its memory and files."""
    ctypes.CDLL(None).prctl(PR_SET_DUMPABLE, 0)


class Child:
    """A process that imports what a rung's file needs at once, and the file at the first request."""

    def __init__(self, device: Device, operation: str, file: str, *, mirrored: bool | None = None) -> None:
        _close_to_others()
        self.mirrored = device == "cuda" if mirrored is None else mirrored
        self.of = (device, operation, file, self.mirrored)
        self.device = device
        ask, self._asked = os.pipe()
        self._answers, answer = os.pipe()
        self.files, files = socket.socketpair()
        descriptors = {"ask": ask, "answer": answer, "files": files.fileno()}
        settings = {**descriptors, "device": device, "mirrored": self.mirrored, "operation": operation, "file": file}
        if copies(device, file):
            self._process: _Forked | subprocess.Popen[bytes] = _Forked(settings, list(descriptors.values()))
        else:
            self._process = self._new(settings, list(descriptors.values()))
        os.close(ask)
        os.close(answer)
        files.close()
        self._left = b""
        self.bound = 0  # calls so far
        self._printing = threading.Thread(target=self._pass_on, name=PRINTS, daemon=True)
        self._printing.start()

    def _new(self, settings: dict[str, Any], needed: Sequence[int]) -> subprocess.Popen[bytes]:
        return subprocess.Popen(
            [sys.executable, "-m", "rung.check.sandboxed", json.dumps(settings)],
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            pass_fds=tuple(needed),
            start_new_session=True,
            env=_environment(),
        )

    def _clock(self) -> float:
        """On the emulator, the process's CPU time."""
        if self.device != "cuda":
            with contextlib.suppress(OSError):  # it has ended
                return cpu_seconds(self._process.pid)
        return time.monotonic()

    @property
    def ended(self) -> bool:
        return self._asked < 0 or self._process.poll() is not None

    def close(self) -> None:
        """End the process and its children."""
        for kill in (os.killpg, os.kill):  # a copy that has just begun leads no group yet
            with contextlib.suppress(ProcessLookupError, PermissionError):
                kill(self._process.pid, signal.SIGKILL)
        self._process.wait()
        self._printing.join(5)
        for end in (self._asked, self._answers):
            with contextlib.suppress(OSError):
                os.close(end)
        self._asked = self._answers = -1
        self.files.close()

    def _pass_on(self) -> None:
        """Passes the rung's output to stderr, up to a limit and without a terminal's control characters."""
        assert self._process.stdout is not None
        remaining = OUTPUT
        while data := os.read(self._process.stdout.fileno(), 1 << 14):
            text = data[:remaining].decode(errors="replace")
            remaining -= min(remaining, len(data))
            progress.clear()
            sys.stderr.write("".join(c if c.isprintable() or c in "\n\t" else "?" for c in text))
            sys.stderr.flush()

    def ask(self, what: dict[str, Any], seconds: float) -> dict[str, Any]:
        """Send the process a request; without a confirmation it is a failure."""
        if self.ended:
            raise Failure(how_it_ended(self._process.poll()))
        try:
            os.write(self._asked, json.dumps(what).encode() + b"\n")
            answer = json.loads(self._line(seconds))
            if not isinstance(answer, dict):
                raise ValueError
        except (BrokenPipeError, EOFError):
            with contextlib.suppress(subprocess.TimeoutExpired):
                self._process.wait(5)
            raise Failure(how_it_ended(self._process.poll())) from None
        except TimeoutError:
            self.close()
            if self.device == "cuda":
                raise Failure(f"did not end within {seconds:.0f} s", SLOW) from None
            raise OutOfTime(f"a call had not ended after {seconds:.0f} s of CPU time") from None
        except ValueError:
            self.close()
            raise Failure("its process sent an answer without a request") from None
        return answer

    def _line(self, seconds: float) -> bytes:
        """The next line of the answer. A process that only waits is ended too."""
        began, start = self._clock(), time.monotonic()
        while b"\n" not in self._left:
            ready, _, _ = select.select([self._answers], [], [], 0.2)
            if not ready:
                if self._clock() - began > seconds or time.monotonic() - start > IDLE * seconds:
                    raise TimeoutError
                continue
            data = os.read(self._answers, 1 << 16)
            if not data:
                raise EOFError
            self._left += data
            if len(self._left) > ANSWER:
                raise ValueError
        line, _, self._left = self._left.partition(b"\n")
        return line


_spare: list[Child] = []  # a process that waits for the next request
_reusing: ContextVar[bool] = ContextVar("reusing", default=False)


def taken(device: Device, operation: str, file: str, mirrored: bool | None = None) -> Child:
    """The spare process if it is for this, or a new one."""
    wanted = (device, operation, file, device == "cuda" if mirrored is None else mirrored)
    while _spare:
        child = _spare.pop()
        if child.of == wanted and not child.ended:
            return child
        child.close()
    return Child(device, operation, file, mirrored=mirrored)


def prestart(device: Device, operation: str, file: str) -> None:
    """Starts a process for a request that follows, unless one that has run nothing waits for it."""
    if _spare and _spare[-1].of[:3] == (device, operation, file) and not _spare[-1].bound:
        return
    while _spare:
        _spare.pop().close()
    _spare.append(Child(device, operation, file))


def started_ahead() -> None:
    """In place of the process that has run a file, a new one for the file's next state."""
    if _spare:
        prestart(*_spare[-1].of[:3])


def spare(child: Child) -> None:
    """Keeps a process for the next request, such as another number format of its file, inside `reused`."""
    while _spare:
        _spare.pop().close()
    if _reusing.get() and not child.ended:
        _spare.append(child)
    else:
        child.close()


def copied() -> None:
    """In a copy of this process: the processes that the original keeps are not the copy's."""
    _reusing.set(False)
    _spare.clear()


@contextlib.contextmanager
def reused() -> Iterator[None]:
    """Inside, requests on the same file share a process."""
    before = _reusing.set(True)
    try:
        yield
    finally:
        _reusing.reset(before)
        while _spare and not _reusing.get():
            _spare.pop().close()
