"""The process in which a rung of unknown origin runs: it binds and runs on request, and compares nothing."""

from __future__ import annotations

import contextlib
import ctypes
import dataclasses
import itertools
import json
import os
import resource
import signal
import socket
import sys
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import gpuless
from gpuless import machine
from rung.arrays import Array, bits_of, moved, put
from rung.check.guarded_memory import Addresses, GuardedStorage, Placement, Slab, from_the_start, mapped
from rung.check.report import Failure
from rung.check.runner import Binding, LocalCall, Probe, prepare, probe
from rung.cuda import triton_driver
from rung.dtypes import dtype as dtype_named
from rung.errors import RungError, first_line
from rung.operation import Operand, Tensors
from rung.rungs import catalogue
from rung.rungs.base import Device, Rung
from rung.rungs.cuda import CudaRung

MEMORY = 8 << 30  # bytes of private memory, on the emulator; a GPU's driver maps far more than it uses
PR_SET_PDEATHSIG = 1
MOST_PLACES = 10_000  # of a file that are told
FILE = 1 << 28  # bytes of any file that it writes


@dataclasses.dataclass
class _Operands:
    """The part of `Operands` that binding and calls need. The checker's view is the same memory as the kernel's,
    unless it is mirrored."""

    tensors: Tensors
    values: Any
    dtype: Any
    outputs: list[str]
    raw: Tensors  # the kernel's view
    shared: Tensors  # the checker's
    fresh: Tensors = dataclasses.field(default_factory=dict)

    def arrive(self) -> None:
        _copy(self.shared, self.raw)

    def leave(self) -> None:
        _copy(self.raw, self.shared)

    def prefetch(self, _: int) -> None:
        self.fresh = {n: moved(t, self.raw[n]) for n, t in self.shared.items()}

    def refill(self, _: int) -> None:
        _copy(self.fresh, self.raw)


def _copy(given: Tensors, to: Tensors) -> None:
    for name, tensor in given.items():
        put(to[name], tensor)


class _Judged:
    def __init__(self, settings: dict[str, Any]) -> None:
        self.device: Device = settings["device"]
        self.mirrored, self.files = settings["mirrored"], socket.socket(fileno=settings["files"])
        self.operation, self.file = settings["operation"], Path(settings["file"])
        self.rung: Rung | None = None
        self.calls: dict[int, tuple[LocalCall, GuardedStorage]] = {}
        self.elsewhere: set[str] = set()  # what the last call has computed besides its kernels
        self.fresh = contextlib.ExitStack()
        self.begin()

    def begin(self) -> None:
        """Of this process only what it has imported and compiled is kept for the next verdict."""
        self.calls.clear()
        self.fresh.close()
        self.fresh.enter_context(from_the_start())
        self.fresh.enter_context(gpuless.Session())
        if self.device == "emulator":
            machine.forget_fidelity()

    def _find_rung(self, name: str) -> Rung:
        if self.rung is None or self.rung.name != name:
            whole = catalogue.operation(self.operation)
            operation = dataclasses.replace(whole, reference=_nowhere, libraries=())
            self.rung = catalogue.rung_from_file(operation, self.file, name)
        return self.rung

    def bind(self, what: dict[str, Any]) -> None:
        rung = self._find_rung(what["rung"])
        operation = rung.operation
        dtype = dtype_named(what["dtype"])
        try:  # they were sent before the request
            self.files.setblocking(False)
            _, files, _, _ = socket.recv_fds(self.files, 1, len(what["blocks"]))
        except BlockingIOError:
            raise RungError("the memory of its operands was taken by something else in its process") from None
        placement, shared = Placement(**what["placement"]), {}
        addresses = Addresses(placement)
        for (name, block), file in zip(what["blocks"].items(), files, strict=True):
            near = addresses.take(block["bytes"], block["start"])
            shared[name] = self._map(block, file, operation.operand(name), near)
            os.close(file)
        raw = shared
        if self.mirrored:
            sizes = [block["bytes"] for block in what["blocks"].values()]
            slab = Slab(placement, sum(sizes), len(sizes), "cuda" if self.device == "cuda" else "cpu")
            raw = {name: slab(block["start"], block["bytes"]) for name, block in what["blocks"].items()}
            _copy(shared, raw)
        data = {name: raw[name][block["start"] : block["end"]] for name, block in what["blocks"].items()}
        owned = {n: bits_of(data[n], block["dtype"]).reshape(block["shape"]) for n, block in what["blocks"].items()}
        tensors = operation.viewed(owned, what["names"], what["values"])
        scratch = GuardedStorage(self.device, placement=placement, addresses=addresses)
        bound = _Operands(tensors, what["values"], dtype, what["outputs"], raw, shared)
        how, python = Binding(**what["how"]), not isinstance(rung, CudaRung)
        prepared = prepare(rung, bound, how, self.device, scratch)
        if scratch.blocks:
            scratch.repaint()
        if python:
            prepared = dataclasses.replace(prepared, run=self._listing(prepared.run, exact=operation.exact))
        mirror = bound if self.mirrored else None
        call = LocalCall(prepared, bound, self.device, how, mirror, streams=True, file=str(self.file))
        self.calls = {k: c for k, c in self.calls.items() if k == what["call"] - 1}  # to return to
        self.calls[what["call"]] = call, scratch

    def _listing(self, run: Callable[[], None], *, exact: bool) -> Callable[[], None]:
        """The run of a Python rung, which is told apart from its kernels."""

        from rung.check.operators import OPERATOR, Operators

        def listed() -> None:
            launched = gpuless.current().launches
            with Operators(exact=exact) as operators:
                run()
            self.elsewhere |= operators.found
            gpuless.current().steps += OPERATOR * operators.count
            if not operators.found and self.device != "cuda" and gpuless.current().launches == launched:
                self.elsewhere.add("Python, without a kernel")

        return listed

    def _map(self, block: dict[str, Any], file: int, operand: Operand, near: int) -> Array:
        if self.device == "emulator" and not self.mirrored and gpuless.available() is None:
            raw = gpuless.guarded_file(file, block["bytes"], near)
            written, constant = operand.written, operand.constant
            gpuless.mark_data(raw, block["start"], block["end"], written=written, constant=constant)
            return raw
        return mapped(file, block["bytes"])

    def answer(self, what: dict[str, Any]) -> dict[str, Any]:
        if what["do"] == "begin":
            self.begin()
            return {}
        if what["do"] == "bind":
            self.bind(what)
            return {}
        if what["do"] == "coverage":  # of its file: an answer has a limit
            ran = gpuless.current().coverage.take().items()
            own = ((n, name, here) for (file, n, name), here in ran if Path(file).resolve() == self.file.resolve())
            return {"coverage": list(itertools.islice(own, MOST_PLACES))}
        if what["do"] == "probe":
            rung, fields = self._find_rung(what["rung"]), {f.name for f in dataclasses.fields(Probe)}
            wanted = [(file, line, name) for file, line, name in what["wanted"]]
            asked = Probe(**{n: v for n, v in what.items() if n in fields} | {"wanted": wanted})
            return {"reached": probe(rung, asked)}
        call, scratch = self.calls[what["call"]]
        self.elsewhere = set()
        if what["do"] == "run":
            call.run(what["times"], what["order"])
        elif what["do"] == "late":
            call.late(0, what["cycles"])
        else:
            call.replayed() if what["do"] == "replayed" else call.unlaunched()
        if damage := scratch.damaged():
            raise RungError(damage)
        here = gpuless.current()
        told = {"atomics": here.atomics, "keeps_state": here.keeps_state, "unwritten": str(here.unwritten or "")}
        return {**told, "library": sorted(self.elsewhere) if what["do"] == "run" else []}


def _nowhere(*_: object) -> Any:
    raise RungError("a rung has no reference to call.")


def _requests(descriptor: int) -> Iterator[dict[str, Any]]:
    with os.fdopen(descriptor, "rb") as lines:
        for line in lines:
            yield json.loads(line)


def _limit(device: str) -> None:
    ctypes.CDLL(None).prctl(PR_SET_PDEATHSIG, signal.SIGKILL)
    resource.setrlimit(resource.RLIMIT_CORE, (0, 0))
    resource.setrlimit(resource.RLIMIT_FSIZE, (FILE, FILE))
    if device != "cuda":
        resource.setrlimit(resource.RLIMIT_DATA, (MEMORY, MEMORY))


def _prepare_torch(device: str) -> None:
    import torch

    torch.set_num_threads(1)
    if device != "cuda":  # torch.empty returns NaN, not what an earlier run has left there
        torch._C._set_deterministic_algorithms(True, warn_only=True)  # the public function imports torch's compiler


def main(settings: dict[str, Any]) -> None:
    _limit(settings["device"])
    if settings["file"].endswith(".py"):
        with contextlib.suppress(ImportError):  # a rung that needs it says so
            _prepare_torch(settings["device"])
    judged = _Judged(settings)
    for what in _requests(settings["ask"]):
        try:
            answer = judged.answer(what)
        except (RungError, Failure) as error:
            answer = {"error": str(error), "kind": error.kind}
            answer |= {n: v for n in ("missing", "place", "related") if (v := getattr(error, n, None))}
        except (SystemExit, KeyboardInterrupt) as error:
            answer = {"error": f"ends the process ({type(error).__name__}) instead of running"}
        except BaseException as error:
            answer = {"error": first_line(f"{type(error).__name__}: {error}")}
        here = gpuless.current()
        answer |= {"steps": here.steps, "launches": here.launches, "stored": here.stored}
        answer |= {"tuned": triton_driver.tuned()}
        if judged.device == "emulator":
            answer["fidelity"] = machine.fidelity()
        try:
            os.write(settings["answer"], json.dumps(answer).encode() + b"\n")
        except OSError:  # the rung has closed it: an end without an answer is a failure
            os._exit(1)


if __name__ == "__main__":
    main(json.loads(sys.argv[1]))
