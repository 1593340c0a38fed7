"""A rung bound to operands in this process, and how the checker runs it."""

from __future__ import annotations

import bisect
import contextlib
import functools
import itertools
import math
import os
import time
import traceback
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import AbstractContextManager, contextmanager, nullcontext
from dataclasses import dataclass, replace
from typing import Any, Literal, Protocol

import numpy as np

import gpuless
from gpuless import machine
from gpuless.counts import coverage
from rung.arrays import Array, bits_of, copy_of, dtype_of, put
from rung.check.guarded_memory import GuardedStorage, Mirror, Placement, Slab, reserve
from rung.check.operands import Operands
from rung.check.report import RAISED, REFUSES, Failure
from rung.cuda import triton
from rung.cuda.triton_driver import Tuned
from rung.dtypes import Dtype, element_name
from rung.dtypes import dtype as dtype_named
from rung.errors import RungError, first_line
from rung.lazy import torch
from rung.operation import Tensors, Values
from rung.rungs import base
from rung.rungs.base import Device, Prepared, Rung
from rung.rungs.cuda import CudaRung

Order = Literal["forward", "reverse", "shuffled"]
SEED = 17  # of the shuffled order
PACE = 3_000_000  # instructions of warps that are a second on the emulator, as a usual core takes for them
UNKNOWN, LEAST_SECONDS, LONGER = 6.0, 1.0, 100.0  # until a launch is stopped: before its first run, and after it
ENOUGH, MOST_STEPS, PROBED, BUILT = 6, 300_000, 6000, 1_500_000  # calls that reach a place; instructions of a launch
STALLS = (6_000_000, 50_000_000)  # cycles; the second if the host was still queueing when the first was over


@dataclass(frozen=True)
class Binding:
    """How a call is bound: tunables; when emulated, the number of multiprocessors, and what is looked for."""

    tuning: dict[str, int] | None = None
    coverage: bool = False  # branches are counted
    sms: int | None = None
    arch: int = 0  # replaces __CUDA_ARCH__ in the text
    seconds: float = 0.0  # until a launch is stopped, if another limit than usual
    races: bool = True  # are looked for when it runs
    few: int = 0  # blocks of each launch that run; 0: all


Seconds = Callable[[], float]  # known once the work is complete


class Bound(Protocol):
    """What binding and calls need to know of operands."""

    tensors: Tensors
    values: Values
    dtype: Dtype

    @property
    def outputs(self) -> Sequence[str]: ...

    def prefetch(self, seed: int) -> None: ...

    def refill(self, seed: int) -> None: ...


class LocalRunner:
    """Where a rung's code runs: in this process, as the ladders' do. Use it as a context."""

    tuned: Sequence[Tuned] = ()  # with what the autotuned kernels of a file ran

    def __init__(self, device: Device, *, mirrored: bool | None = None) -> None:
        self.device = device
        self.mirrored = device == "cuda" if mirrored is None else mirrored
        self.library_calls: set[str] = set()  # computation outside its own kernels
        self._atomics_before = gpuless.current().atomics
        if device == "emulator":
            machine.forget_fidelity()

    def __enter__(self) -> LocalRunner:
        return self

    def __exit__(self, *_: object) -> None:
        pass

    @property
    def atomics(self) -> bool:
        """Whether emulated kernels have used any atomics so far."""
        return gpuless.current().atomics != self._atomics_before

    @property
    def keeps_state(self) -> bool:
        """Whether an emulated kernel's module has variables that kernels may write to."""
        return gpuless.current().keeps_state

    @property
    def steps(self) -> int:
        """Instructions of emulated warps so far."""
        return gpuless.current().steps

    @property
    def launches(self) -> int:
        """Launches of emulated kernels so far."""
        return gpuless.current().launches

    @property
    def stored(self) -> int:
        """Bytes that emulated launches have stored so far, where few of their blocks ran."""
        return gpuless.current().stored

    @property
    def unwritten(self) -> str:
        """The last read of shared or local memory that nothing had written, as a sentence; empty if there was none."""
        return str(gpuless.current().unwritten or "") if self.device != "cuda" else ""

    @property
    def fidelity(self) -> dict[str, Any]:
        """How the instructions of emulated kernels were executed so far."""
        return machine.fidelity() if self.device == "emulator" else {}

    def storage(
        self, alignment: int, placement: Placement, *, small: bool = False, sizes: Sequence[int] = ()
    ) -> GuardedStorage:
        """Memory for operands; small ones that are only run, not replayed or late, may be on the host. On a GPU
        the placement is used only if sizes are given: operands are then cut from one allocation, which costs time."""
        if small and self.mirrored:  # only bands guard it, as on a GPU
            mirror = Mirror("cuda" if self.device == "cuda" else "cpu")
            return GuardedStorage("cuda", alignment=alignment, raw=mirror, placement=placement)
        slab = Slab(placement, sum(sizes), len(sizes)) if self.device == "cuda" and sizes else None
        return GuardedStorage(self.device, alignment=alignment, placement=placement, addresses=slab)

    def reserved(self, alignment: int, patterns: Mapping[str, bytes]) -> GuardedStorage:
        """Memory of the emulator that takes no room before it is touched; inputs may repeat a pattern of pages."""
        raw = functools.partial(self._reserve, patterns=patterns)
        return GuardedStorage(self.device, alignment=alignment, raw=raw, poisoned=False)

    def _reserve(self, name: str, size: int, patterns: Mapping[str, bytes]) -> Array:
        file, raw = reserve(size, patterns.get(name, b""))
        os.close(file)
        return raw

    def coverage(self) -> coverage.Coverage:
        """What emulated launches have run since the last call, and what they have not, if that was counted."""
        return gpuless.current().coverage.take()

    def probe(self, rung: Rung, asked: Probe) -> list[list[int]]:
        """For each of some calls, which of the wanted places three of its blocks reach."""
        return probe(rung, asked)

    def bind(self, rung: Rung, operands: Operands, how: Binding, scratch: GuardedStorage) -> LocalCall:
        prepared = prepare(rung, operands, how, self.device, scratch)
        mirror = scratch.raw if isinstance(scratch.raw, Mirror) else None
        return LocalCall(prepared, operands, self.device, how, mirror, streams=not isinstance(rung, CudaRung))


def prepare(rung: Rung, operands: Bound, how: Binding, device: Device, scratch: GuardedStorage) -> Prepared:
    """The rung bound to these operands, with its buffers in guarded memory as well."""
    mirror = scratch.raw if isinstance(scratch.raw, Mirror) else None

    def empty(name: str, shape: tuple[int, ...], kind: str) -> Array:
        buffer = scratch.empty(f"buffer {name}", shape, kind)
        if mirror:
            put(there := mirror.there(buffer), buffer)
            return there
        return buffer

    tensors = operands.tensors
    if mirror:
        mirror.arrive()
        owned = {n: mirror.there(t) for n, t in tensors.items() if n in scratch.blocks}
        tensors = rung.operation.viewed(owned, tensors, operands.values)
    if isinstance(rung, CudaRung):
        rung = rung.for_architecture(how.arch) if how.arch else rung
    with of_the_rung(), base.emulated_multiprocessors(how.sms), emulated(device, replace(how, races=True)):
        prepared = rung.prepare(tensors, operands.values, operands.dtype, device=device, tuning=how.tuning, empty=empty)
    if mirror:
        wait(device, mirror)  # buffers that are zeroed once
    return _begun(prepared) if device != "cuda" else prepared


@dataclass(frozen=True)
class Probe:
    """Calls on zeros of which a few blocks run, to see what they reach."""

    dtype: str
    tuning: dict[str, int] | None
    names: list[str]  # the operands
    calls: list[Values]
    wanted: list[coverage.Place]
    steps: int  # of all: instructions of warps, PROBED for each call, and BUILT for each build


def probe(rung: Rung, asked: Probe) -> list[list[int]]:
    """Of the calls, which are in the order of their sizes, the smallest run and in turn others, in coarse and then in
    fine steps, but for those behind ENOUGH that reach each place. A call that is stopped reaches what it did before."""
    session, of, dtype = gpuless.current(), rung.operation, dtype_named(asked.dtype)
    before, began = session.coverage.take(), session.steps
    reaching, found = [list[int]() for _ in asked.wanted], [list[int]() for _ in asked.calls]
    builds, calls = set[object](), 0

    def admits(build: object) -> bool:
        """Of all the work, at most half is for builds."""
        if len(builds) * BUILT < asked.steps / 2:
            builds.add(build)
        return build in builds

    def empty(_: str, shape: tuple[int, ...], kind: str) -> Array:
        size = math.prod(shape) * dtype_of(kind, np).itemsize
        return bits_of(gpuless.guarded_empty(size, filled=False), kind).reshape(shape)

    numbers = range(len(found))
    for number in dict.fromkeys(itertools.chain(*zip(numbers, sorted(numbers, key=lambda n: -(n & -n)), strict=True))):
        values = asked.calls[number]
        if all(some[ENOUGH - 1 : ENOUGH] and some[ENOUGH - 1] < number for some in reaching):
            continue
        if gpuless.current().steps - began + calls * PROBED + len(builds) * BUILT > asked.steps:
            break
        calls += 1
        if isinstance(rung, CudaRung) and not admits(rung.build(values, dtype, asked.tuning)):
            continue
        with contextlib.suppress(RungError, Failure), of_the_rung(), triton.compiling(admits):
            sizes = {o.name: o for o in map(of.operand, asked.names) if o.view_of is None}
            owned = {n: empty("", o.size(values), element_name(o.dtype, dtype)) for n, o in sizes.items()}
            tensors = of.viewed(owned, asked.names, values)
            with gpuless.under(steps=MOST_STEPS, coverage=True, few=3):
                rung.prepare(tensors, values, dtype, device="emulator", tuning=asked.tuning, empty=empty).run()
        found[number] = coverage.ran_among(gpuless.current().coverage.take(), asked.wanted)
        for place in found[number]:
            bisect.insort(reaching[place], number)
    gpuless.current().coverage.take()
    gpuless.current().coverage.put(before)
    return found


def _begun(prepared: Prepared) -> Prepared:
    """On the emulator; marks the start of each run, when unknown kernels may still be running."""
    run = prepared.run

    def begun() -> None:
        gpuless.current().follow_unknown()
        run()

    return replace(prepared, run=begun)


def emulated(
    device: Device, how: Binding, order: Order = "forward", took: float = 0.0
) -> AbstractContextManager[object]:
    """Settings of the emulator for modules loaded and launched inside. A run that took so long before, in seconds, is
    stopped early if its threads wait for each other in this order."""
    if device == "cuda":
        return nullcontext()
    seconds = how.seconds or (min(UNKNOWN, max(LEAST_SECONDS, LONGER * took)) if took else UNKNOWN)
    steps = int(seconds * PACE)
    some = {"check_races": how.races, "coverage": how.coverage, "few": how.few}
    return gpuless.under(order=order, seed=SEED, steps=steps, **some)


class Copies(Protocol):
    """Operands of which a device has copies."""

    def arrive(self) -> None:
        """Queue the copy to the device."""
        ...

    def leave(self) -> None:
        """Queue the copy from the device."""
        ...


class LocalCall:
    """A bound rung."""

    def __init__(
        self,
        prepared: Prepared,
        operands: Bound,
        device: Device,
        how: Binding,
        mirror: Copies | None = None,
        *,
        streams: bool = False,
        file: str = "",
    ) -> None:
        self._prepared, self._operands, self._device, self._how = prepared, operands, device, how
        self._mirror, self._streams = mirror, streams  # whether there may be work on other streams
        self._file = file
        self._graph: torch.cuda.CUDAGraph | None = None
        self._took = 0.0

    def run(self, times: int = 1, order: Order = "forward") -> Seconds:
        """Run this many times; returns the seconds of the fastest. Emulated threads run in this order. A GPU may still
        be working: reading the results waits for it."""
        if self._device == "cuda" and not self._mirror and not self._streams:
            return self._queue(times)
        best = float("inf")
        clock = time.perf_counter if self._device == "cuda" else _emulated_seconds
        with emulated(self._device, self._how, order, self._took):
            if self._mirror:
                self._mirror.arrive()
            for left in reversed(range(times)):
                start = clock()
                with of_the_rung(self._file):
                    self._prepared.run()
                if self._mirror and self._streams:
                    wait(self._device)
                wait(self._device, None if left else self._mirror)
                self._took = clock() - start
                best = min(best, self._took)
        return lambda: best

    def _queue(self, times: int) -> Seconds:
        """Runs on the current stream only, without waiting."""
        begin, end = (torch.cuda.Event(enable_timing=True) for _ in range(2))  # type: ignore[no-untyped-call]
        begin.record()
        for _ in range(times):
            self._prepared.run()
        end.record()
        return lambda: float(begin.elapsed_time(end)) / 1000 / times

    def late(self, seed: int, cycles: int) -> bool:
        """Run while the inputs of `seed` arrive late by this many cycles; returns whether all work was queued before
        that."""
        operands = self._operands
        seen, in_time = run_late(
            self._prepared.run,
            lambda: operands.refill(seed),
            {n: operands.tensors[n] for n in operands.outputs},
            prefetch=lambda: operands.prefetch(seed),
            cycles=cycles,
        )
        for name, tensor in seen.items():
            put(operands.tensors[name], tensor)
        if self._mirror:
            self._mirror.leave()
        return in_time

    def replayed(self) -> None:
        """Run from a CUDA graph, captured at the first call; as after `run`, a GPU may still be working."""
        if self._graph is None:
            kept = {n: copy_of(self._operands.tensors[n]) for n in self._operands.outputs}
            self._graph = _capture(self._prepared.run)
            for name, tensor in kept.items():
                put(self._operands.tensors[name], tensor)
        if self._mirror:
            self._mirror.arrive()
        self._graph.replay()
        if self._mirror:
            wait(self._device, self._mirror)

    def unlaunched(self) -> bool:
        """Run with launches that do nothing; false if the rung is trusted, and nothing was run."""
        if not self._file:
            return False
        if self._mirror:
            self._mirror.arrive()
        with contextlib.suppress(Exception), gpuless.current().without_launches(), emulated(self._device, self._how):
            self._prepared.run()
        wait(self._device, self._mirror)
        return True


def _emulated_seconds() -> float:
    """What has been executed: what is affordable, and so judged, is the same on any machine."""
    return gpuless.current().steps / PACE


def _capture(run: Callable[[], None]) -> torch.cuda.CUDAGraph:
    """As `torch.cuda.graph`, without first returning all cached memory to the driver, which is slow if many processes
    do it."""
    graph = torch.cuda.CUDAGraph()
    torch.cuda.synchronize()
    with torch.cuda.stream(torch.cuda.Stream()):  # type: ignore[no-untyped-call]
        graph.capture_begin(capture_error_mode="thread_local")
        try:
            run()
        finally:
            graph.capture_end()
    return graph


def run_late(
    run: Callable[[], None], arrive: Callable[[], None], outputs: Tensors, *, prefetch: Callable[[], None], cycles: int
) -> tuple[Tensors, bool]:
    """Queue a long pause, the inputs, the call and a copy of its outputs: work on another stream then runs too early.
    The flag returned is true if the pause was still running when all was queued; otherwise the test is not valid.
    """
    from rung.cuda.driver import occupy_stream

    prefetch()
    torch.cuda.synchronize()
    occupy_stream(cycles)
    paused = torch.cuda.Event()  # type: ignore[no-untyped-call]
    paused.record()
    arrive()
    run()
    seen = {n: copy_of(t) for n, t in outputs.items()}
    in_time = not paused.query()  # type: ignore[no-untyped-call]
    wait()
    return seen, in_time


def wait(device: Device = "cuda", mirror: Copies | None = None) -> None:
    """Waits for the GPU, and for its results in the host's memory."""
    with blamed(device):
        if mirror:
            mirror.leave()
        if device == "cuda":
            torch.cuda.synchronize()


@contextmanager
def of_the_rung(file: str = "") -> Iterator[None]:
    """The rung's own code: whatever it raises is its failure, in the lines of `file` by its own decision."""
    try:
        yield
    except (Failure, RungError):
        raise
    except Exception as error:
        own = traceback.extract_tb(error.__traceback__)[-1].filename == file
        kind = REFUSES if isinstance(error, AssertionError | ValueError | NotImplementedError) else RAISED
        raise Failure(first_line(f"{type(error).__name__}: {error}"), kind if own else "") from error


@contextmanager
def blamed(device: Device) -> Iterator[None]:
    """Code that waits for the GPU: its errors are the rung's."""
    try:
        yield
    except RuntimeError as error:
        if device != "cuda":
            raise
        raise Failure(f"the GPU reports: {first_line(error)}") from None
