"""Runs a rung of unknown origin in a separate process, with limits; the checker stays in this one. Operands are in
memory that both processes map. Inputs, poison, guards, reference, comparison and report belong to this process; the
other one only binds and runs the rung. The verdict is always read from the memory: an exit, a signal, a missing or a
forged answer does not count as a result.
"""

from __future__ import annotations

import ast
import contextlib
import dataclasses
import os
import socket
import sys
import time
from collections.abc import Collection, Mapping, Sequence
from typing import Any

import gpuless
from gpuless.counts import coverage, fidelity
from rung.arrays import Array, address_of, kind_of
from rung.check.child import spare, taken
from rung.check.guarded_memory import GuardedStorage, Placement, mapped, memory_file, reserve
from rung.check.operands import Operands
from rung.check.report import RAISED, REFUSES, SLOW, Failure, Verdict
from rung.check.runner import PACE, STALLS, Binding, LocalCall, LocalRunner, Order, Probe, Seconds
from rung.cuda.triton_driver import Tuned
from rung.errors import FAULTS, CompileError, EmulatorFault, RungError, TooLarge
from rung.rungs import identity
from rung.rungs.base import Device, Rung
from rung.rungs.python import PythonRung
from rung.rungs.reached import WHOLE, imports

BIND_SECONDS = 180.0  # of the process, as RUN_SECONDS are of a run, or of four
RUN_SECONDS: dict[Device, float] = {"cuda": 10.0, "emulator": 20.0}  # there executed instructions are limited first


def _places(given: object) -> list[dict[str, Any]]:
    """What a process that is not trusted says of places."""
    return [one for one in given[:4] if isinstance(one, dict)] if isinstance(given, list) else []


class Sandbox(LocalRunner):
    """In a process for one rung."""

    atomics = keeps_state = False
    steps = launches = stored = 0
    unwritten = ""

    def __init__(self, device: Device, rung: Rung, *, mirrored: bool | None = None) -> None:
        self._rung = rung
        self.device: Device = device
        self.mirrored = device == "cuda" if mirrored is None else mirrored
        self.library_calls: set[str] = set()
        self._fidelity: dict[str, Any] = {}
        self._slow = False
        self._seen = 0  # instructions that the process has told of
        self._files_at: dict[int, int] = {}  # the file of the memory that starts at an address
        if device == "emulator" and gpuless.available() is None:
            gpuless.compiled()  # once for a machine; it is not the rung's time
        self._child = taken(device, rung.operation.name, str(rung.path), mirrored)
        if self._child.bound:
            self.ask({"do": "begin"}, BIND_SECONDS)

    def clock(self) -> float:
        return time.perf_counter() if self.device == "cuda" else self.steps / PACE

    def __enter__(self) -> Sandbox:
        return self

    def __exit__(self, *_: object) -> None:
        for file in self._files_at.values():
            os.close(file)
        spare(self._child)

    @property
    def fidelity(self) -> dict[str, Any]:
        return self._fidelity

    def storage(
        self, alignment: int, placement: Placement, *, small: bool = False, sizes: Sequence[int] = ()
    ) -> GuardedStorage:
        return GuardedStorage(self.device, alignment=alignment, raw=self._memory, placement=placement)

    def coverage(self) -> coverage.Coverage:
        told = self.ask({"do": "coverage"}, BIND_SECONDS).get("coverage", [])
        return {(str(self._rung.path), int(line), str(name)): bool(ran) for line, name, ran in told}

    def probe(self, rung: Rung, asked: Probe) -> list[list[int]]:
        what = {"do": "probe", "rung": rung.name, **dataclasses.asdict(asked)}
        reached = self.ask(what, BIND_SECONDS).get("reached", [])
        return [[int(n) for n in some if 0 <= n < len(asked.wanted)] for some in reached[: len(asked.calls)]]

    def _memory(self, name: str, size: int) -> Array:
        file = memory_file(size)
        raw = mapped(file, size)
        self._files_at[address_of(raw)] = file
        return raw

    def _reserve(self, name: str, size: int, patterns: Mapping[str, bytes]) -> Array:
        file, raw = reserve(size, patterns.get(name, b""))
        self._files_at[address_of(raw)] = file
        return raw

    def bind(self, rung: Rung, operands: Operands, how: Binding, scratch: GuardedStorage) -> RemoteCall:
        if self._slow:  # the limit on time ended it: what follows needs a new process
            self._child = taken(*self._child.of)
            self._slow, self._seen = False, 0
        self._child.bound += 1
        blocks = {n: operands.blocks[n] for n in operands.inputs + operands.outputs}
        described = {
            name: {
                "bytes": len(block.raw),
                "start": block.start,
                "end": block.end,
                "shape": list(operands.tensors[name].shape),
                "dtype": kind_of(operands.tensors[name]),
            }
            for name, block in blocks.items()
        }
        files = [self._files_at.pop(address_of(block.raw)) for block in blocks.values()]
        with contextlib.suppress(OSError):  # the process has ended; the next request reports it
            socket.send_fds(self._child.files, [b"."], files)
        for file in files:
            os.close(file)  # it is mapped here, and already sent
        self.ask(
            {
                "do": "bind",
                "rung": self._rung.name,
                "call": self._child.bound,
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
        return RemoteCall(self, self._child.bound, operands)

    def ask(self, what: dict[str, Any], seconds: float) -> dict[str, Any]:
        """Send the process a request; without a confirmation it is a failure."""
        try:
            answer = self._child.ask(what, seconds)
        except Failure as failure:
            self._slow |= failure.kind == SLOW
            raise
        self.library_calls.update(str(n)[:80] for n in answer.get("library", [])[:50])
        self.atomics |= bool(answer.get("atomics"))
        self.keeps_state |= bool(answer.get("keeps_state"))
        self.launches, self.stored = int(answer.get("launches", 0)), int(answer.get("stored", 0))
        seen = max(self._seen, int(answer.get("steps", 0)))
        self.steps, self._seen = self.steps + seen - self._seen, seen
        if told := answer.get("fidelity"):
            self._fidelity = fidelity.merged([told])
        self.unwritten = str(answer.get("unwritten", ""))[:500] or self.unwritten
        self.tuned = [Tuned(str(c)[:200], int(n), int(of)) for c, n, of in answer.get("tuned", [])[:4]]
        if answer.get("error"):
            text, kind = str(answer["error"])[:2000], answer.get("kind")
            place = next(iter(_places([answer.get("place")])), {})
            if kind in FAULTS:
                raise EmulatorFault(kind, text, place, _places(answer.get("related")))
            if kind == TooLarge.kind:
                raise TooLarge(text)
            if kind == CompileError.kind:
                raise CompileError(text, str(answer.get("missing", ""))[:200], place)
            raise Failure(text, kind or "") if kind in (None, "", RAISED, REFUSES) else RungError(text)
        return answer


class RemoteCall(LocalCall):
    def __init__(self, host: Sandbox, number: int, operands: Operands) -> None:
        self._host, self._number, self._operands = host, number, operands

    def run(self, times: int = 1, order: Order = "forward") -> Seconds:
        start = self._host.clock()
        self._host.ask(
            {"do": "run", "call": self._number, "times": times, "order": order},
            RUN_SECONDS[self._host.device] * max(1, times / 4),
        )
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

    def _do(self, what: str, **more: object) -> None:
        self._host.ask({"do": what, "call": self._number, **more}, RUN_SECONDS[self._host.device])


# What a Python file may import: what chooses sizes, allocates and launches. A file that imports something else computes
# with it or reaches its judge; what is named in a kernel is refused by Triton's compiler.
IMPORTS = {
    *("__future__", "abc", "collections", "contextlib", "dataclasses", "enum", "functools", "itertools", "logging"),
    *("math", "operator", "pathlib", "typing", "types", "warnings", "torch", "triton", "rung"),
}
# And what modules of its project may import besides, for what is none of its kernels' work.
OF_A_PROJECT = {"importlib", "inspect", "os", "sys", "threading", "packaging", "copy", "re", "time", "random", "string"}
SETTINGS = ("environ", "getenv")  # of os
HIDDEN = ("torch.utils", "torch.library", "torch._", "torch.multiprocessing", "triton.runtime.interpreter")
OF_RUNG = ("gpuless", "rung.cuda", "rung.rungs", "rung.dtypes", "rung.precision")
NAMES = {
    *("__import__", "__builtins__", "eval", "exec", "compile", "globals", "vars", "setattr", "numpy", "tolist", "_C"),
    *("ctypes", "from_dlpack", "__dlpack__", "untyped_storage", "system", "fork", "popen", "_getframe", "getattr"),
}
# What a submission to another project's problem may not import: such files import what that project gives them.
ELSEWHERE = {
    *("numpy", "scipy", "cupy", "jax", "numba", "pandas", "gc", "mmap", "signal"),
    *("threading", "concurrent", "multiprocessing", "asyncio", "subprocess", "importlib"),
}


def computes_beside(rung: Rung) -> tuple[Verdict, str] | None:
    """The verdict on a Python file that imports or names something to compute with besides its kernels."""
    if not isinstance(rung, PythonRung):
        return None
    of_a_problem = rung.operation.custom_check is not None
    texts = [rung.source] if of_a_problem else identity.texts(rung, lambda path: path.suffix == ".py")
    own, scalars = rung.facts.modules, {*rung.operation.scalars}
    files = ((text, rung.facts.package, IMPORTS) for text in texts)
    modules = ((one.text, one.package, {*IMPORTS, *OF_A_PROJECT}) for one in rung.imported)
    found = (
        beyond_its_kernels(text, package, own, of_a_problem=of_a_problem, admitted=admitted, scalars=scalars)
        for text, package, admitted in (*files, *modules)
    )
    other = next(filter(None, found), "")
    if not other:
        return None
    package = other.partition(".")[0]
    if of_a_problem or other in NAMES or package in {*IMPORTS, *ELSEWHERE, *sys.stdlib_module_names}:
        why = "rung runs only what allocates, chooses sizes and launches"
        return "not judged", f"it uses {other} besides its kernels; {why}"
    return "not judged", f"it imports {other}, which its project does not have; it may need torch and triton besides"


def beyond_its_kernels(
    source: str, package: str = "", own: Collection[str] = (), *, of_a_problem: bool = False,
    admitted: Collection[str] = IMPORTS, scalars: Collection[str] = (),
) -> str:  # fmt: skip
    """The first thing that a Python text imports or names to compute with besides its kernels; empty if none. It may
    import its project's `own` modules, and name the operation's scalars where it does not call them."""
    tree = ast.parse(source)
    nodes = list(ast.walk(tree))
    every = [(module, name) for module, name in imports(tree, package) if not {module, f"{module}.{name}"} & {*own}]
    imported = [module if name == WHOLE else f"{module}.{name}" for module, name in every]
    names = {n.id for n in nodes if isinstance(n, ast.Name)} | {n.attr for n in nodes if isinstance(n, ast.Attribute)}
    packages = [name.partition(".")[0] for name in imported]
    if of_a_problem:
        other = [p for p in packages if p in ELSEWHERE]
        return (
            other or sorted(names & (NAMES if "triton" not in packages else {"eval", "exec", "__import__"})) or [""]
        )[0]
    of_os = {id(n.value): n.attr for n in nodes if isinstance(n, ast.Attribute)}
    uses = {of_os.get(id(n), "") for n in nodes if isinstance(n, ast.Name) and n.id == "os"}
    for name, package in zip(imported, packages, strict=True):
        if name == "os" and uses and uses <= {*SETTINGS}:
            continue
        of_rung = package == "rung" and name != "rung" and not name.startswith(OF_RUNG)
        if package not in admitted or name.startswith(HIDDEN) or of_rung:
            return name.lstrip(".") or "an import of its own"
    called = {n.func.id for n in nodes if isinstance(n, ast.Call) and isinstance(n.func, ast.Name)}
    hidden = {n.attr for n in nodes if isinstance(n, ast.Attribute) and n.attr in ("os", "sys")}  # pathlib.sys
    return min((names & NAMES - ({*scalars} - called)) | hidden, default="")
