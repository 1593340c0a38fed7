"""Runs a rung of unknown origin in a separate process, with limits; the checker stays in this one. Operands are in
memory that both processes map. Inputs, poison, guards, reference, comparison and report belong to this process; the
other one only binds and runs the rung. The verdict is always read from the memory: an exit, a signal, a missing or a
forged answer does not count as a result.
"""

from __future__ import annotations

import ast
import contextlib
import dataclasses
import fcntl
import json
import os
import select
import signal
import socket
import subprocess
import sys
import tempfile
import threading
import time
from collections.abc import Sequence
from typing import Any

import torch

from rung.check.guarded_memory import GuardedStorage, Placement
from rung.check.operands import Operands
from rung.check.report import Failure, how_it_ended
from rung.check.runner import STALLS, How, Order, Seconds
from rung.cuda.source import Unreached
from rung.emulator.faults import KINDS, EmulatorFault, TooLarge
from rung.errors import CompileError, RungError
from rung.rungs import identity
from rung.rungs.base import Device, Rung
from rung.rungs.python import PythonRung

BIND_SECONDS, RUN_SECONDS, COMPILE_SECONDS = 180.0, 90.0, 180.0
ANSWER = 1 << 20  # bytes of an answer that are read at most
OUTPUT = 1 << 16  # bytes of what the rung prints that are passed on


class Sandbox:
    """A process for one rung; use it as a context."""

    def __init__(self, device: Device, rung: Rung, *, mirrored: bool | None = None) -> None:
        self._rung = rung
        self.device: Device = device
        self.mirrored = device == "cuda" if mirrored is None else mirrored
        self.library_calls: set[str] = set()
        self.atomics = False
        self.switches = 0
        self._unwatched = 0
        self._bound = 0
        self._files_at: dict[int, int] = {}  # the file of the memory that starts at an address
        self._start()

    def _start(self) -> None:
        ask, self._asked = os.pipe()
        self._answers, answer = os.pipe()
        self._files, files = socket.socketpair()
        descriptors = {"ask": ask, "answer": answer, "files": files.fileno()}
        settings: dict[str, object] = {**descriptors, "device": self.device, "mirrored": self.mirrored}
        settings |= {"operation": self._rung.operation.name, "file": str(self._rung.path)}
        self._process = subprocess.Popen(
            [sys.executable, "-m", "rung.check.sandboxed", json.dumps(settings)],
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            pass_fds=tuple(descriptors.values()),
            start_new_session=True,
            env={**os.environ, "PYTHONPATH": os.pathsep.join(p for p in sys.path if p)},
        )
        os.close(ask)
        os.close(answer)
        files.close()
        self._left = b""
        self._printing = threading.Thread(target=self._pass_on, daemon=True)
        self._printing.start()

    def clock(self) -> float:
        """On the emulator, the process's CPU time: what is affordable should not depend on other load."""
        if self.device != "cuda" and sys.platform == "linux":
            with contextlib.suppress(OSError):  # it has ended
                return time.clock_gettime(~self._process.pid << 3 | 2)  # as clock_getcpuclockid(3) makes it
        return time.monotonic()

    def __enter__(self) -> Sandbox:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def close(self) -> None:
        """End the process and its children."""
        with contextlib.suppress(ProcessLookupError, PermissionError):
            os.killpg(self._process.pid, signal.SIGKILL)
        self._process.wait()
        self._printing.join(5)
        for end in (self._asked, self._answers):
            with contextlib.suppress(OSError):
                os.close(end)
        self._asked = self._answers = -1
        self._files.close()
        for file in self._files_at.values():
            os.close(file)
        self._files_at.clear()

    def _pass_on(self) -> None:
        """Passes the rung's output to stderr, up to a limit and without a terminal's control characters."""
        assert self._process.stdout is not None
        remaining = OUTPUT
        while data := os.read(self._process.stdout.fileno(), 1 << 14):
            text = data[:remaining].decode(errors="replace")
            remaining -= min(remaining, len(data))
            sys.stderr.write("".join(c if c.isprintable() or c in "\n\t" else "?" for c in text))
            sys.stderr.flush()

    # ---- the host ---------------------------------------------------------------------------------------------

    def storage(
        self, alignment: int, placement: Placement, *, small: bool = False, sizes: Sequence[int] = ()
    ) -> GuardedStorage:
        return GuardedStorage(self.device, alignment=alignment, raw=self._memory, placement=placement)

    def unwatched(self) -> int:
        most, self._unwatched = self._unwatched, 0
        return most

    def unreached(self) -> list[Unreached]:
        lines = self.ask({"do": "unreached"}, RUN_SECONDS).get("unreached", [])
        return [Unreached(str(file), int(line), str(text), str(never)) for file, line, text, never in lines[:1000]]

    def _memory(self, name: str, size: int) -> torch.Tensor:
        """Memory for both processes; it cannot be truncated, which would end this process at its next access."""
        if hasattr(os, "memfd_create"):
            file = os.memfd_create("operand", os.MFD_CLOEXEC | os.MFD_ALLOW_SEALING)
            os.ftruncate(file, size)
            fcntl.fcntl(file, fcntl.F_ADD_SEALS, fcntl.F_SEAL_SHRINK | fcntl.F_SEAL_GROW | fcntl.F_SEAL_SEAL)
        else:
            with tempfile.TemporaryFile() as unnamed:
                unnamed.truncate(size)
                file = os.dup(unnamed.fileno())
        raw = torch.from_file(f"/dev/fd/{file}", shared=True, size=size, dtype=torch.uint8)
        self._files_at[raw.data_ptr()] = file
        return raw

    def bind(self, rung: Rung, operands: Operands, how: How, scratch: GuardedStorage) -> RemoteCall:
        self._bound += 1
        blocks = {n: operands.blocks[n] for n in operands.inputs + operands.outputs}
        described = {
            name: {
                "bytes": len(block.raw),
                "start": block.start,
                "end": block.end,
                "shape": list(operands.tensors[name].shape),
                "dtype": str(operands.tensors[name].dtype).removeprefix("torch."),
            }
            for name, block in blocks.items()
        }
        files = [self._files_at.pop(block.raw.data_ptr()) for block in blocks.values()]
        with contextlib.suppress(OSError):  # the process has ended; the next request reports it
            socket.send_fds(self._files, [b"."], files)
        for file in files:
            os.close(file)  # it is mapped here, and already sent
        self.ask(
            {
                "do": "bind",
                "call": self._bound,
                "dtype": operands.dtype.name,
                "values": operands.values,
                "names": list(operands.names),
                "blocks": described,
                "how": how.__dict__,
                "placement": dataclasses.asdict(scratch.placement),
                "outputs": operands.outputs,
            },
            BIND_SECONDS,
        )
        return RemoteCall(self, self._bound, operands)

    def ask(self, what: dict[str, Any], seconds: float) -> dict[str, Any]:
        """Send the process a request; without a confirmation it is a failure."""
        if self._asked < 0 or self._process.poll() is not None:
            raise Failure(how_it_ended(self._process.poll()))
        try:
            os.write(self._asked, json.dumps(what).encode() + b"\n")
            line = self._line(time.monotonic() + seconds)
            answer = json.loads(line)
            if not isinstance(answer, dict):
                raise ValueError
        except (BrokenPipeError, EOFError):
            with contextlib.suppress(subprocess.TimeoutExpired):
                self._process.wait(5)
            raise Failure(how_it_ended(self._process.poll())) from None
        except TimeoutError:
            self.close()
            raise Failure(f"did not end within {seconds:.0f} s") from None
        except ValueError:
            self.close()
            raise Failure("its process sent an answer without a request") from None
        self.library_calls.update(str(n)[:80] for n in answer.get("library", [])[:50])
        self.atomics = self.atomics or bool(answer.get("atomics"))
        self.switches = max(self.switches, int(answer.get("switches", 0)))
        self._unwatched = max(self._unwatched, int(answer.get("unwatched", 0)))
        if answer.get("error"):
            text, kind = str(answer["error"])[:2000], answer.get("kind")
            if kind in KINDS:
                raise EmulatorFault(kind, text)
            if kind == TooLarge.kind:
                raise TooLarge(text)
            if kind == CompileError.kind:
                raise CompileError(text)
            raise Failure(text) if kind is None else RungError(text)
        return answer

    def _line(self, until: float) -> bytes:
        while b"\n" not in self._left:
            ready, _, _ = select.select([self._answers], [], [], max(0.0, until - time.monotonic()))
            if not ready:
                raise TimeoutError
            data = os.read(self._answers, 1 << 16)
            if not data:
                raise EOFError
            self._left += data
            if len(self._left) > ANSWER:
                raise ValueError
        line, _, self._left = self._left.partition(b"\n")
        return line


class RemoteCall:
    def __init__(self, host: Sandbox, number: int, operands: Operands) -> None:
        self._host, self._number, self._operands = host, number, operands

    def run(self, times: int = 1, order: Order = "forward") -> Seconds:
        start = self._host.clock()
        self._do("run", times=times, order=order)
        took = (self._host.clock() - start) / times
        return lambda: took

    def late(self, seed: int, cycles: int) -> bool:
        self._operands.refill(seed)
        self._do("late", cycles=STALLS[-1])  # the process's own report about its queue is not used
        return True

    def replayed(self) -> None:
        self._do("replayed")

    def unlaunched(self) -> bool:
        self._do("unlaunched")
        return True

    def compiles(self) -> None:
        self._host.ask({"do": "compiles", "call": self._number}, BIND_SECONDS)

    def _do(self, what: str, **more: object) -> None:
        self._host.ask({"do": what, "call": self._number, **more}, RUN_SECONDS)


# What a Python file may import: what chooses sizes, allocates and launches. A file that imports something else computes
# with it or reaches its judge; what is named in a kernel is refused by Triton's compiler.
IMPORTS = {
    *("__future__", "abc", "collections", "contextlib", "dataclasses", "enum", "functools", "itertools", "math"),
    *("operator", "pathlib", "typing", "types", "warnings", "torch", "triton", "rung"),
}
HIDDEN = ("torch.utils", "torch.library", "torch._", "torch.multiprocessing", "triton.runtime.interpreter")
OF_RUNG = ("rung.emulator", "rung.cuda", "rung.rungs", "rung.dtypes", "rung.precision")
NAMES = {
    *("__import__", "__builtins__", "eval", "exec", "compile", "globals", "vars", "setattr", "numpy", "tolist"),
    *("ctypes", "from_dlpack", "__dlpack__", "untyped_storage", "system", "fork", "popen", "_getframe", "getattr"),
}
# What a submission to another project's problem may not import: such files import what that project gives them.
ELSEWHERE = {
    *("numpy", "scipy", "cupy", "jax", "numba", "pandas", "gc", "mmap", "signal"),
    *("threading", "concurrent", "multiprocessing", "asyncio", "subprocess", "importlib"),
}


def computes_beside(rung: Rung) -> str:
    """What a Python file imports or names to compute with besides its kernels; empty if nothing."""
    if not isinstance(rung, PythonRung):
        return ""
    of_a_problem = rung.operation.complaint is not None
    texts = [rung.source] if of_a_problem else identity.texts(rung, lambda path: path.suffix == ".py")
    return next(filter(None, (beyond_its_kernels(text, of_a_problem=of_a_problem) for text in texts)), "")


def beyond_its_kernels(source: str, *, of_a_problem: bool = False) -> str:
    """The first thing that a Python text imports or names to compute with besides its kernels; empty if none."""
    nodes = list(ast.walk(ast.parse(source)))
    imported = [alias.name for n in nodes if isinstance(n, ast.Import) for alias in n.names]
    froms = [n for n in nodes if isinstance(n, ast.ImportFrom)]
    imported += [f"{n.module or ''}.{alias.name}" for n in froms for alias in n.names]
    names = {n.id for n in nodes if isinstance(n, ast.Name)} | {n.attr for n in nodes if isinstance(n, ast.Attribute)}
    packages = [name.partition(".")[0] for name in imported]
    if of_a_problem:
        other = [p for p in packages if p in ELSEWHERE]
        return (
            other or sorted(names & (NAMES if "triton" not in packages else {"eval", "exec", "__import__"})) or [""]
        )[0]
    for name, package in zip(imported, packages, strict=True):
        of_rung = package == "rung" and name != "rung" and not name.startswith(OF_RUNG)
        if package not in IMPORTS or name.startswith(HIDDEN) or of_rung:
            return name.lstrip(".") or "an import of its own"
    return min(names & NAMES, default="")
