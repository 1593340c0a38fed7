"""The process in which a rung of unknown origin runs: it binds and runs on request, and compares nothing."""

from __future__ import annotations

import contextlib
import dataclasses
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

from rung.check.calls import How, Order, atomics_ran, emulated, prepare, run_late, switches, unwatched, wait
from rung.check.confine import confine, end_with_parent
from rung.check.elsewhere import Operators, note_operators, watched, without_launches
from rung.check.launchable import MULTIPROCESSORS, Nvrtc
from rung.check.placement import Addresses, Placement, Slab
from rung.check.storage import GuardedStorage
from rung.cuda import triton_compile
from rung.dtypes import dtype as dtype_named
from rung.emulator import closed, coverage, launches_ran
from rung.errors import RungError, first_line
from rung.operation import Operand, Tensors
from rung.rungs import catalogue
from rung.rungs.base import Device, Prepared, emulated_multiprocessors
from rung.rungs.cuda import CudaRung
from rung.rungs.python import PythonRung

MEMORY = 8 << 30  # bytes of private memory, on the emulator; a GPU's driver maps far more than it uses
FILE = 1 << 28  # bytes of any file that it writes


@dataclasses.dataclass
class _Bound:
    prepared: Prepared
    raw: Tensors  # the kernel's view
    shared: Tensors  # the checker's view: the same memory, unless it is mirrored
    outputs: Tensors
    scratch: GuardedStorage
    listed: bool
    exact: bool
    how: How
    for_a_gpu: Callable[[], None] | None  # the same call of the file's kernels as Triton compiles them
    graph: Any = None


def _copy(given: Tensors, to: Tensors) -> None:
    for name, tensor in given.items():
        to[name].copy_(tensor)


class _Judged:
    def __init__(self, device: Device, mirrored: bool, files: socket.socket) -> None:
        self.device, self.mirrored, self.files = device, mirrored, files
        self.calls: dict[int, _Bound] = {}

    def bind(self, what: dict[str, Any]) -> None:
        whole = catalogue.operation(what["operation"])
        operation = dataclasses.replace(whole, reference=_nowhere, libraries=())
        rung = catalogue.rung_from_file(operation, Path(what["file"]))
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
        tensors: Tensors = {}
        for name in what["names"]:
            operand = operation.operand(name)
            if operand.view is not None and operand.view_of is not None:
                tensors[name] = operand.view(tensors[operand.view_of], what["values"])
                continue
            block = what["blocks"][name]
            data = raw[name][block["start"] : block["end"]]
            tensors[name] = data.view(getattr(torch, block["dtype"])).view(block["shape"])
        scratch = GuardedStorage(self.device, placement=placement, addresses=addresses)
        bound = _Operands(tensors, what["values"], dtype)
        how = How(**what["how"])
        python = not isinstance(rung, CudaRung)
        with Operators(self.device) if python else contextlib.nullcontext():  # for what it allocates when imported
            prepared = prepare(rung, bound, how, self.device, scratch)  # type: ignore[arg-type]
        if scratch.blocks:
            scratch.repaint()
        outputs = {n: tensors[n] for n in what["outputs"]}

        def for_a_gpu() -> None:
            assert isinstance(rung, PythonRung)
            given = rung.call(tensors, what["values"], dtype, self.device, how.tuning)
            rung.load("cuda").run(**rung.arguments(given))

        self.calls = {k: c for k, c in self.calls.items() if k == what["call"] - 1}  # to return to
        compiled = for_a_gpu if python else None
        self.calls[what["call"]] = _Bound(
            prepared, raw, shared, outputs, scratch, python, operation.exact, how, compiled
        )

    def _map(self, block: dict[str, Any], file: int, operand: Operand, near: int) -> torch.Tensor:
        if self.device == "emulator" and not self.mirrored:
            from rung import emulator

            if emulator.available() is None:
                raw = emulator.guarded_file(file, block["bytes"], near)
                written, constant = operand.written, operand.constant
                emulator.mark_data(raw, block["start"], block["end"], written=written, constant=constant)
                return raw
        return torch.from_file(f"/dev/fd/{file}", shared=True, size=block["bytes"], dtype=torch.uint8)

    def run(self, call: _Bound, times: int, order: Order) -> dict[str, Any]:
        self._arrive(call)
        launched, elsewhere = launches_ran(), set[str]()
        with emulated(self.device, call.how, order):
            for _ in range(times):
                unwatched_run = contextlib.nullcontext(set[str]())
                with watched(self.device, exact=call.exact) if call.listed else unwatched_run as found:
                    call.prepared.run()
                elsewhere |= found
        if self.device == "cuda":
            wait()
        self._leave(call)
        library = sorted(elsewhere)
        if call.listed and not library and self.device != "cuda" and launches_ran() == launched:
            library = ["Python, without a kernel"]
        told = {"atomics": atomics_ran, "unwatched": unwatched, "switches": switches}
        return {"library": library, **{name: of(self.device) for name, of in told.items()}}

    def unlaunched(self, call: _Bound) -> dict[str, Any]:
        """Run the rest of the rung while its kernels do nothing; its results do not matter."""
        self._arrive(call)
        with contextlib.suppress(Exception), without_launches(), emulated(self.device, call.how):
            call.prepared.run()
        self._leave(call)
        return {}

    def compiles(self, call: _Bound) -> dict[str, Any]:
        """Compile the kernels of a call for a GPU that is not here, and launch none."""
        if call.for_a_gpu is not None and triton_compile.available():
            triton_compile.compiles(call.for_a_gpu)
        return {}

    def late(self, call: _Bound, cycles: int) -> dict[str, Any]:
        fresh: Tensors = {}
        seen, _ = run_late(
            call.prepared.run,
            lambda: _copy(fresh, call.raw),
            call.outputs,
            prefetch=lambda: fresh.update({n: t.to(call.raw[n].device) for n, t in call.shared.items()}),
            cycles=cycles,
        )
        _copy(seen, call.outputs)
        self._leave(call)
        return {}

    def replayed(self, call: _Bound) -> dict[str, Any]:
        if call.graph is None:
            call.graph = torch.cuda.CUDAGraph()
            with torch.cuda.graph(call.graph, capture_error_mode="thread_local"):
                call.prepared.run()
        self._arrive(call)
        call.graph.replay()
        wait()
        self._leave(call)
        return {}

    def _arrive(self, call: _Bound) -> None:
        if self.mirrored:
            _copy(call.shared, call.raw)

    def _leave(self, call: _Bound) -> None:
        if self.mirrored:
            _copy(call.raw, call.shared)
        damage = call.scratch.damaged()
        if damage:
            raise RungError(damage)

    def answer(self, what: dict[str, Any]) -> dict[str, Any]:
        if what["do"] == "bind":
            self.bind(what)
            return {}
        if what["do"] == "unfit":
            return {"unfit": _unfit(what)}
        if what["do"] == "compiles":
            return self.compiles(self.calls[what["call"]])
        if what["do"] == "unreached":
            return {"unreached": [dataclasses.astuple(place) for place in coverage.unreached(coverage.counted())]}
        call = self.calls[what["call"]]
        if what["do"] == "run":
            return self.run(call, what["times"], what["order"])
        if what["do"] == "unlaunched":
            return self.unlaunched(call)
        return self.late(call, what["cycles"]) if what["do"] == "late" else self.replayed(call)


def _unfit(what: dict[str, Any]) -> str | None:
    rung = catalogue.rung_from_file(catalogue.operation(what["operation"]), Path(what["file"]))
    assert isinstance(rung, CudaRung)
    with emulated_multiprocessors(MULTIPROCESSORS):
        return Nvrtc().unfit(rung, what["values"], dtype_named(what["dtype"]), what["tuning"])


@dataclasses.dataclass
class _Operands:
    """The part of `Operands` that binding needs."""

    tensors: Tensors
    values: Any
    dtype: Any


def _nowhere(*_: object) -> Any:
    raise RungError("a rung has no reference to call.")


def _requests(descriptor: int) -> Iterator[dict[str, Any]]:
    with os.fdopen(descriptor, "rb") as lines:
        for line in lines:
            yield json.loads(line)


def _limit(device: str) -> None:
    end_with_parent(signal.SIGKILL)
    confine()
    resource.setrlimit(resource.RLIMIT_CORE, (0, 0))
    resource.setrlimit(resource.RLIMIT_FSIZE, (FILE, FILE))
    if device != "cuda":
        resource.setrlimit(resource.RLIMIT_DATA, (MEMORY, MEMORY))


def main(settings: dict[str, Any]) -> None:
    _limit(settings["device"])
    torch.set_num_threads(1)
    closed.listen()
    note_operators()
    judged = _Judged(settings["device"], settings["mirrored"], socket.socket(fileno=settings["files"]))
    for what in _requests(settings["ask"]):
        try:
            answer = judged.answer(what)
        except RungError as error:
            answer = {"error": str(error), "kind": error.kind}
        except (SystemExit, KeyboardInterrupt) as error:
            answer = {"error": f"ends the process ({type(error).__name__}) instead of running"}
        except BaseException as error:
            answer = {"error": first_line(f"{type(error).__name__}: {error}")}
        try:
            os.write(settings["answer"], json.dumps(answer).encode() + b"\n")
        except OSError:  # the rung has closed it: an end without an answer is a failure
            os._exit(1)


if __name__ == "__main__":
    main(json.loads(sys.argv[1]))
