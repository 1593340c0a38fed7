"""Builds a CUDA program and runs it in a process of its own, on the emulator."""

from __future__ import annotations

import contextlib
import fcntl
import json
import os
import pty
import select
import shutil
import signal
import struct
import subprocess
import sys
import tempfile
import termios
import threading
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any, Literal

from gpuless import machine
from gpuless.base.errors import CompileError, UserError
from gpuless.program import executable, gpu_runtime

ORDERS = ("forward", "reverse", "shuffled")
SILENCE, TICK = 1.0, 0.5  # seconds until a line says what runs; between two looks
CLEARED = b"\r\x1b[K"  # a terminal's line
SOURCES = (".cu", ".cpp", ".cc", ".cxx", ".c")


@dataclass(frozen=True)
class Execution:
    """How a program's threads, blocks and streams take turns, and what is looked for."""

    order: str = "forward"
    seed: int = 0
    races: Literal["auto", "yes", "no"] = "auto"
    gpu: str = "h100"
    quiet: bool = False
    device: Literal["emulator", "cuda"] = "emulator"
    counts: Path | None = None  # what is counted is written there
    cold: bool = False  # each launch from empty caches
    constants: Sequence[float] = ()  # of the model of time: then only blocks that stand for a grid are executed

    def environment(self, report: Path | None = None, launched: Path | None = None) -> dict[str, str]:
        """What the program's process reads (host/report.cpp, gpu_runtime.cpp)."""
        if self.device == "cuda":
            return os.environ | {"RUNG_CUDART": gpu_runtime.cuda_runtime()}
        chosen = {
            "RUNG_ORDER": str(ORDERS.index(self.order)),
            "RUNG_SEED": str(self.seed),
            "RUNG_RACES": str(("no", "auto", "yes").index(self.races)),
            "RUNG_GPU": self.gpu,
            "RUNG_QUIET": str(int(self.quiet)),
            "RUNG_CONSTANTS": " ".join(map(repr, self.constants)), "RUNG_COLD": "1" if self.cold else "",
        }
        for name, path in (("RUNG_REPORT", report), ("RUNG_COUNTS", self.counts), ("RUNG_LAUNCHED", launched)):
            if path is not None:
                chosen[name] = str(path)
        return os.environ | chosen


@dataclass(frozen=True)
class Ended:
    """How a run ended: the exit code, what was reported, and the output where it was kept."""

    code: int
    report: dict[str, Any] = field(default_factory=dict)
    output: str = ""
    errors: str = ""


def split(words: Sequence[str]) -> tuple[list[Path], list[str]]:
    """A program's files, and the arguments behind them."""
    at = next((i for i, word in enumerate(words) if not word.endswith(SOURCES)), len(words))
    return [Path(word) for word in words[:at]], [*words[at:]]


def _compile(
    files: Sequence[Path], objects: Sequence[Path], options: executable.Options, say: Callable[[str], None]
) -> None:
    for source, made in zip(files, objects, strict=True):
        say(f"compiling {source}")
        executable.compile_file(source, made, options)


@contextmanager
def built(
    files: Sequence[Path], options: executable.Options, libraries: Sequence[str] = (),
    say: Callable[[str], None] = lambda _: None,
) -> Iterator[Path]:
    """The program of these files, until the block ends: for the emulator, or for a GPU of the architecture that the
    options have; `say` is told each step."""
    with tempfile.TemporaryDirectory(prefix="rung-run-") as folder:
        say(executable.FIRST)
        executable.libraries()
        objects = [Path(folder) / f"{number}.o" for number in range(len(files))]
        try:
            _compile(files, objects, options, say)
        except CompileError as problem:  # as nvcc without -rdc=true says it
            if len(files) < 2 or "Unresolved extern" not in str(problem):
                raise
            _compile(files, objects, replace(options, relocatable=True), say)
        program = Path(folder) / files[0].stem
        host = None if options.arch == machine.ARCH else gpu_runtime.library()
        say(f"linking {program.name}")
        executable.link(objects, program, libraries, host, options.arch)
        say("")
        yield program


@contextmanager
def _ending_with(process: subprocess.Popen[str]) -> Iterator[None]:
    """A SIGTERM that this process gets goes to that one, which tells how far it came."""
    if threading.current_thread() is not threading.main_thread():
        yield
        return
    before = signal.signal(signal.SIGTERM, lambda *_: process.terminate())
    try:
        yield
    finally:
        signal.signal(signal.SIGTERM, before)


def _relay(process: subprocess.Popen[str], near: int, launched: Path) -> None:
    """Passes on what a program writes on its terminal; where it writes nothing for a while, a line says what runs. The
    program gets ^C as well, and tells how far it came."""
    began = time.monotonic()
    last = began - SILENCE  # whatever was told before it began
    shown, whole, interrupted = False, True, False  # whether a line stands there, the program's last is whole

    def put(data: bytes) -> None:
        sys.stdout.buffer.write(data)
        sys.stdout.flush()

    while True:
        try:
            now, data = time.monotonic(), b""
            if select.select([near], [], [], TICK)[0]:
                with contextlib.suppress(OSError):  # all that had it have closed it
                    data = os.read(near, 1 << 16)
                if not data:
                    break
                put(CLEARED * shown + data)
                shown, whole, last = False, data.endswith((b"\n", CLEARED)), now
            elif process.poll() is not None:
                break
            elif whole and now - last > SILENCE:
                count, running = struct.unpack("QQ", launched.read_bytes())
                told = f"  {'a kernel' if running else 'host code'} runs, {now - began:.0f} s, {count} launches so far"
                put(CLEARED + told[: shutil.get_terminal_size().columns - 1].encode())
                shown = True
        except KeyboardInterrupt:
            interrupted = True
    put(CLEARED * shown)
    if interrupted:
        raise KeyboardInterrupt


def _terminal() -> tuple[int, int]:
    """Both ends of a terminal like this process's, which changes nothing of what is written."""
    near, far = pty.openpty()
    mode = termios.tcgetattr(far)
    mode[1] &= ~termios.OPOST
    termios.tcsetattr(far, termios.TCSANOW, mode)
    fcntl.ioctl(far, termios.TIOCSWINSZ, fcntl.ioctl(1, termios.TIOCGWINSZ, bytes(8)))
    return near, far


def run(
    program: Path, arguments: Sequence[str], how: Execution, *, keep: bool = False, seconds: float | None = None
) -> Ended:
    """Runs it here, in the present folder; with `keep`, its output is returned instead of shown."""
    with tempfile.TemporaryDirectory(prefix="rung-report-") as folder:
        report, launched = Path(folder) / "report.json", Path(folder) / "launched"
        launched.write_bytes(bytes(16))
        sys.stdout.flush()
        near, far = _terminal() if not keep and seconds is None and os.isatty(1) and os.isatty(2) else (-1, -1)
        streams = subprocess.PIPE if keep else far if far >= 0 else None
        command, environment = [str(program), *arguments], how.environment(report, launched)
        with (
            subprocess.Popen(
                command, env=environment, stdout=streams, stderr=streams, text=True, errors="replace"
            ) as process,
            _ending_with(process),
        ):
            if far >= 0:
                os.close(far)
                _relay(process, near, launched)
                os.close(near)
            try:
                output, errors = process.communicate(timeout=seconds)
            except subprocess.TimeoutExpired:
                process.kill()
                raise UserError(f"{program.name} has not ended within {seconds:g} seconds.") from None
        found = {}
        if report.is_file():
            with contextlib.suppress(json.JSONDecodeError):  # the program died while it wrote
                found = json.loads(report.read_text())
    code = process.returncode
    if code < 0:
        text = f"the program's host code was ended by {signal.Signals(-code).name}"
        found = {**found, "findings": [*found.get("findings", []), {"kind": "signal", "text": text}]}
        code = 128 - code
    return Ended(code, found, output or "", errors or "")


def orders(how: Execution) -> list[Execution]:
    """Eight orders: as issued, the latest first, and six at random."""
    given = dict(seed=how.seed, races=how.races, gpu=how.gpu, quiet=True)
    plain = [Execution(order="forward", **given), Execution(order="reverse", **given)]  # type: ignore[arg-type]
    return [*plain, *(Execution(order="shuffled", **{**given, "seed": how.seed + n}) for n in range(1, 7))]  # type: ignore[arg-type]
