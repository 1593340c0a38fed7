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

import torch
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils._pytree import tree_leaves

import gpuless
from gpuless import machine
from rung.check.guarded_memory import Addresses, GuardedStorage, Placement, Slab, from_the_start
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
        self.fresh = {n: t.to(self.raw[n].device) for n, t in self.shared.items()}

    def refill(self, _: int) -> None:
        _copy(self.fresh, self.raw)


def _copy(given: Tensors, to: Tensors) -> None:
    for name, tensor in given.items():
        to[name].copy_(tensor)


# Torch operators that a rung may use besides its launches: memory, views of it, and copies of its results.
HARMLESS = (
    "empty", "new_empty", "zeros", "zero_", "fill_", "full", "ones", "view", "reshape", "_unsafe_view", "as_strided",
    "slice", "select", "detach", "alias", "t", "transpose", "permute", "expand", "squeeze", "unsqueeze", "unbind",
    "split", "narrow", "unfold", "copy_", "clone", "_to_copy", "contiguous", "lift_fresh", "resize_", "set_",
    "scalar_tensor", "arange", "item", "_local_scalar_dense", "empty_like", "zeros_like", "empty_strided", "flatten",
)  # fmt: skip
COPIES = {"copy_", "clone", "_to_copy", "contiguous"}  # all that there is to do where nothing is computed
OPERATOR = 100  # instructions that take as long as one of them
ITEMS = 16  # numbers that a run may read on the host, such as lengths for choosing a kernel


class Operators(TorchDispatchMode):  # type: ignore[no-untyped-call]
    """Records the torch operators with which a run of a Python rung computes something besides its kernels. In an
    operation that only moves numbers (`exact`), copies by torch are among these."""

    def __init__(self, *, exact: bool = False) -> None:
        super().__init__()  # type: ignore[no-untyped-call]
        self.found: set[str] = set()
        self.exact, self.items, self.count = exact, 0, 0

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        result = func(*args, **(kwargs or {}))
        self.count += 1
        name = func.overloadpacket.__name__
        harmless = name in HARMLESS or name.removesuffix("_copy") in HARMLESS
        if not harmless or func.namespace != "aten" or (self.exact and name in COPIES):
            self.found.add(f"{func.namespace}::{name}")
        given = [one for one in tree_leaves((args, kwargs)) if isinstance(one, torch.Tensor)]
        if name in ("item", "_local_scalar_dense"):
            self.items += 1
        elif any(one.is_cuda for one in given):  # numbers that leave the GPU
            left = [one for one in tree_leaves(result) if isinstance(one, torch.Tensor) and not one.is_cuda]
            self.items += max((one.numel() for one in left), default=0)
        if self.items > ITEMS:
            self.found.add(f"numbers read on the host, more than {ITEMS} in a run")
        return result


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
        shaped = {n: (getattr(torch, block["dtype"]), block["shape"]) for n, block in what["blocks"].items()}
        owned = {name: data[name].view(kind).view(shape) for name, (kind, shape) in shaped.items()}
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

        def listed() -> None:
            launched = gpuless.current().launches
            with Operators(exact=exact) as operators:
                run()
            self.elsewhere |= operators.found
            gpuless.current().steps += OPERATOR * operators.count
            if not operators.found and self.device != "cuda" and gpuless.current().launches == launched:
                self.elsewhere.add("Python, without a kernel")

        return listed

    def _map(self, block: dict[str, Any], file: int, operand: Operand, near: int) -> torch.Tensor:
        if self.device == "emulator" and not self.mirrored and gpuless.available() is None:
            raw = torch.from_numpy(gpuless.guarded_file(file, block["bytes"], near))
            written, constant = operand.written, operand.constant
            gpuless.mark_data(raw, block["start"], block["end"], written=written, constant=constant)
            return raw
        return torch.from_file(f"/dev/fd/{file}", shared=True, size=block["bytes"], dtype=torch.uint8)

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


def main(settings: dict[str, Any]) -> None:
    _limit(settings["device"])
    torch.set_num_threads(1)
    if settings["device"] != "cuda":  # torch.empty returns NaN, not what an earlier run has left there
        torch._C._set_deterministic_algorithms(True, warn_only=True)  # the public function imports torch's compiler
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
