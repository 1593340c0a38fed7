"""Where a token's time goes: kernels, and the gaps between them, as torch's profiler saw them."""

from __future__ import annotations

import json
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch

from rung.errors import RungError


@dataclass(frozen=True)
class Share:
    """One kernel (on a CPU: one operator): how often a token runs it, and its seconds."""

    name: str
    calls: float
    seconds: float


@dataclass(frozen=True)
class Breakdown:
    """Of one token, on average; `gap` is the time in which nothing ran."""

    device: str
    tokens: int
    seconds: float
    gap: float
    shares: list[Share]


def record(work: Callable[[], int], path: Path | None) -> Breakdown:
    """Profile `work`, which gives the number of its tokens; the Chrome trace goes to `path`."""
    from torch.profiler import ProfilerActivity, profile

    gpu = torch.cuda.is_available()
    activities = [ProfilerActivity.CPU, *([ProfilerActivity.CUDA] if gpu else [])]
    with profile(activities=activities, acc_events=True) as profiler:
        tokens = work()
        if gpu:
            torch.cuda.synchronize()
    if path is not None:
        try:
            path.parent.mkdir(parents=True, exist_ok=True)
            profiler.export_chrome_trace(str(path))
        except (OSError, RuntimeError) as error:
            raise RungError(f"{path} cannot be written: {str(error).splitlines()[0]}.") from None
        return breakdown(json.loads(path.read_text(encoding="utf-8"))["traceEvents"], tokens)
    import tempfile

    with tempfile.TemporaryDirectory() as folder:
        file = Path(folder) / "trace.json"
        profiler.export_chrome_trace(str(file))
        return breakdown(json.loads(file.read_text(encoding="utf-8"))["traceEvents"], tokens)


def breakdown(events: Sequence[dict[str, Any]], tokens: int) -> Breakdown:
    """Kernels of a GPU where there are any, else the outermost operators of each CPU thread."""
    spans = [e for e in events if e.get("ph") == "X" and e.get("dur") is not None]
    kernels = [e for e in spans if e.get("cat") in ("kernel", "gpu_memcpy", "gpu_memset")]
    device = "cuda" if kernels else "cpu"
    chosen = kernels or _outermost([e for e in spans if e.get("cat") == "cpu_op"])
    if not chosen or not tokens:
        raise RungError("the profiler saw no kernel and no operator; was a token generated?")
    start = min(float(e["ts"]) for e in chosen)
    end = max(float(e["ts"]) + float(e["dur"]) for e in chosen)
    times: dict[str, list[float]] = {}
    for event in chosen:
        times.setdefault(str(event["name"]), []).append(float(event["dur"]) * 1e-6)
    shares = [Share(name, len(t) / tokens, sum(t) / tokens) for name, t in times.items()]
    shares.sort(key=lambda s: -s.seconds)
    return Breakdown(device, tokens, (end - start) * 1e-6 / tokens, _idle(chosen) * 1e-6 / tokens, shares)


def _outermost(events: list[dict[str, Any]]) -> list[dict[str, Any]]:
    """Operators that no other operator of the same thread contains."""
    found: list[dict[str, Any]] = []
    until: dict[tuple[Any, Any], float] = {}
    for event in sorted(events, key=lambda e: (float(e["ts"]), -float(e["dur"]))):
        thread = (event.get("pid"), event.get("tid"))
        if float(event["ts"]) >= until.get(thread, float("-inf")):
            found.append(event)
            until[thread] = float(event["ts"]) + float(event["dur"])
    return found


def _idle(events: Sequence[dict[str, Any]]) -> float:
    """Microseconds between the first and the last event in which none ran."""
    idle, reached = 0.0, float("-inf")
    for event in sorted(events, key=lambda e: float(e["ts"])):
        start = float(event["ts"])
        if reached > float("-inf") and start > reached:
            idle += start - reached
        reached = max(reached, start + float(event["dur"]))
    return idle
