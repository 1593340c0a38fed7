"""Heads and batches in chunks over several CUDA streams: copies in, kernels and copies out overlap.

Each pair of a sequence and a head is an independent unit. Chunks of units are assigned to streams in turn, each with
its own buffers, so that while one stream computes, another copies in and a third copies out.
"""

from __future__ import annotations

import contextlib
import json
import statistics
import tempfile
import time
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from itertools import pairwise
from pathlib import Path
from typing import Any

import torch

from rung.dtypes import Dtype
from rung.errors import RungError
from rung.rungs import catalogue
from rung.rungs.base import Device, Prepared

RUNG = "attention/24_output_in_registers"


@dataclass
class _Slot:
    """A stream and the buffers that only its chunks use."""

    stream: torch.cuda.Stream | None
    qkv: torch.Tensor  # (chunk, T, 3 HS) on the device
    out: torch.Tensor  # (chunk, T, HS)
    calls: dict[int, Prepared]  # by the number of units


class Pipeline:
    """One rung over all units of `qkv` (units, T, 3 HS), which stays in main memory as `out` (units, T, HS) does."""

    def __init__(
        self,
        rung: str,
        qkv: torch.Tensor,
        out: torch.Tensor,
        *,
        dtype: Dtype,
        causal: bool,
        chunk: int,
        streams: int,
        device: Device = "cuda",
    ) -> None:
        if chunk < 1 or streams < 1:
            raise RungError(f"a chunk of {chunk} units over {streams} streams: both must be at least 1.")
        self.qkv, self.out = qkv, out
        units, T, width = qkv.shape
        self.spans = list(pairwise([*range(0, units, chunk), units]))
        self.device = device
        where = torch.device("cuda" if device == "cuda" else "cpu")
        one = catalogue.find(rung)
        self.slots: list[_Slot] = []
        for index in range(min(streams, len(self.spans))):
            inside = torch.empty(chunk, T, width, dtype=qkv.dtype, device=where)
            result = torch.empty(chunk, T, width // 3, dtype=qkv.dtype, device=where)
            calls = {}
            for count in {b - a for a, b in self.spans[index::streams]}:
                values = one.operation.complete({"B": count, "T": T, "C": width // 3, "NH": 1, "causal": int(causal)})
                parts = inside[:count].view(count, T, 3, 1, width // 3).permute(2, 0, 3, 1, 4)
                tensors = {"qkv": inside[:count], "q": parts[0], "k": parts[1], "v": parts[2], "out": result[:count]}
                calls[count] = one.prepare(tensors, values, dtype, device=device)
            stream = torch.cuda.Stream() if device == "cuda" else None  # type: ignore[no-untyped-call]
            self.slots.append(_Slot(stream, inside, result, calls))

    def run(self) -> None:
        """Everything once; returns when `out` is complete."""
        for index, (a, b) in enumerate(self.spans):
            slot = self.slots[index % len(self.slots)]
            on = torch.cuda.stream(slot.stream) if slot.stream is not None else contextlib.nullcontext()
            with on:
                slot.qkv[: b - a].copy_(self.qkv[a:b], non_blocking=True)
                slot.calls[b - a].run()
                self.out[a:b].copy_(slot.out[: b - a], non_blocking=True)
        for slot in self.slots:
            if slot.stream is not None:
                slot.stream.synchronize()


@dataclass(frozen=True)
class Overlap:
    """Seconds in which each part of a GPU was busy, from a trace."""

    wall: float
    copying_in: float
    computing: float
    copying_out: float

    @property
    def bound(self) -> float:
        """The lower bound of any schedule: the busiest part's time. The bus's two directions count separately."""
        return max(self.copying_in, self.computing, self.copying_out)

    @property
    def serial(self) -> float:
        return self.copying_in + self.computing + self.copying_out

    @property
    def reached(self) -> float:
        """0: one after another; 1: the bound."""
        possible = self.serial - self.bound
        return (self.serial - self.wall) / possible if possible > 0 else 1.0


def overlap(events: Iterable[dict[str, Any]]) -> Overlap:
    """From the events of a Chrome trace, as torch's profiler writes it."""
    spans: dict[str, list[tuple[float, float]]] = {"in": [], "compute": [], "out": []}
    for event in events:
        if event.get("ph") != "X" or "dur" not in event:
            continue
        kind = {"kernel": "compute"}.get(event.get("cat", ""))
        if event.get("cat") == "gpu_memcpy":
            kind = "in" if "HtoD" in event["name"] else "out" if "DtoH" in event["name"] else None
        if kind:
            spans[kind].append((float(event["ts"]), float(event["ts"]) + float(event["dur"])))
    every = [s for part in spans.values() for s in part]
    if not every:
        raise RungError("the profiler recorded neither a kernel nor a copy.")
    wall = max(b for _, b in every) - min(a for a, _ in every)
    return Overlap(*(x * 1e-6 for x in (wall, *(_covered(part) for part in spans.values()))))


def _covered(spans: Sequence[tuple[float, float]]) -> float:
    """The length of the union."""
    total, end = 0.0, float("-inf")
    for a, b in sorted(spans):
        total += max(0.0, b - max(a, end))
        end = max(end, b)
    return total


def traced(work: Callable[[], None]) -> Overlap:
    """Run `work` under torch's profiler."""
    from torch.profiler import ProfilerActivity, profile

    with profile(activities=[ProfilerActivity.CPU, ProfilerActivity.CUDA], acc_events=True) as profiler:
        work()
        torch.cuda.synchronize()
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / "trace.json"
        profiler.export_chrome_trace(str(path))
        return overlap(json.loads(path.read_text(encoding="utf-8"))["traceEvents"])


@dataclass(frozen=True)
class Pipelined:
    """One chunk size and number of streams."""

    chunk: int
    streams: int
    seconds: float
    overlap: Overlap


def measure(
    *,
    units: int,
    T: int,
    HS: int,
    dtype: Dtype,
    causal: bool,
    rung: str = RUNG,
    chunks: Sequence[int] = (),
    streams: Sequence[int] = (2, 3, 4),
    repeats: int = 10,
) -> list[Pipelined]:
    """The unpipelined run first; every other must have the same bits, otherwise a RungError replaces its time."""
    if not torch.cuda.is_available():
        raise RungError("streams need a GPU, and no CUDA device was found.")
    generator = torch.Generator().manual_seed(units)
    qkv = torch.randn(units, T, 3 * HS, generator=generator).to(dtype.torch).pin_memory()
    out = torch.empty(units, T, HS, dtype=dtype.torch).pin_memory()
    chunks = chunks or tuple(dict.fromkeys(max(1, units // parts) for parts in (4, 8, 16, 32, 64)))
    rows: list[Pipelined] = []
    right: torch.Tensor | None = None
    for chunk, count in [(units, 1), *((c, s) for c in chunks for s in streams)]:
        out.fill_(float("nan"))
        line = Pipeline(rung, qkv, out, dtype=dtype, causal=causal, chunk=chunk, streams=count)
        line.run()
        if right is None:
            right = out.clone()
            if bool(right.isnan().any()):
                raise RungError(f"{rung} left elements of its output unwritten.")
        elif not torch.equal(out.view(torch.uint8), right.view(torch.uint8)):
            raise RungError(f"chunks of {chunk} over {count} streams changed a bit of the result.")
        line.run()
        median = statistics.median(elapsed(line.run) for _ in range(repeats))
        rows.append(Pipelined(chunk, count, median, traced(line.run)))
        del line
    return rows


def elapsed(work: Callable[[], None]) -> float:
    start = time.perf_counter()
    work()
    return time.perf_counter() - start
