"""Where a token's time goes: kernels, and the gaps between them, from torch's profiler."""

from __future__ import annotations

import json
import os
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import torch

from rung.errors import RungError, first_line


@dataclass(frozen=True)
class Share:
    """One kernel (on a CPU: one operator): how often a token runs it, and its seconds.

    `running` is its whole time, `seconds` the time by which it outlasts the kernels that started before it, since
    kernels with dependent launch overlap their producers. So all `seconds` and the gaps add up to the token's time.
    """

    name: str
    calls: float
    running: float
    seconds: float


@dataclass(frozen=True)
class Total:
    """All copies of one kind, or all calls of one function of CUDA's, over the whole run."""

    name: str
    calls: int
    seconds: float
    bytes: float = 0.0


@dataclass(frozen=True)
class Breakdown:
    """The mean per token; `gap` is the time in which nothing ran. Copies and calls are those of the whole run."""

    device: str
    tokens: int
    seconds: float
    gap: float
    shares: list[Share]
    copies: list[Total] = field(default_factory=list)
    calls: list[Total] = field(default_factory=list)


def record(work: Callable[[], int], path: Path | None) -> Breakdown:
    """Profile `work`, which returns its number of tokens; the Chrome trace goes to `path`."""
    from torch.profiler import ProfilerActivity, profile

    os.environ.setdefault("KINETO_LOG_LEVEL", "99")  # otherwise torch's profiler writes lines to the terminal
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
            raise RungError(f"{path} cannot be written: {first_line(error)}.") from None
        return breakdown(json.loads(path.read_text(encoding="utf-8"))["traceEvents"], tokens)
    import tempfile

    with tempfile.TemporaryDirectory() as folder:
        file = Path(folder) / "trace.json"
        profiler.export_chrome_trace(str(file))
        return breakdown(json.loads(file.read_text(encoding="utf-8"))["traceEvents"], tokens)


def kernel_seconds(work: Callable[[], int]) -> float:
    """Seconds for each token of `work` in which the GPU was not idle: the host's launches are not in them."""
    found = record(work, None)
    return found.seconds - found.gap


def breakdown(events: Sequence[dict[str, Any]], tokens: int) -> Breakdown:
    """Kernels of a GPU where there are any, else the outermost operators of each CPU thread."""
    spans = [e for e in events if e.get("ph") == "X" and e.get("dur") is not None]
    kernels = [e for e in spans if e.get("cat") in ("kernel", "gpu_memcpy", "gpu_memset")]
    device = "cuda" if kernels else "cpu"
    chosen = kernels or _outermost([e for e in spans if e.get("cat") == "cpu_op"])
    if not chosen or not tokens:
        raise RungError("the profiler recorded no kernel and no operator; check that a token was generated.")
    start = min(float(e["ts"]) for e in chosen)
    end = max(float(e["ts"]) + float(e["dur"]) for e in chosen)
    calls: dict[str, list[tuple[float, float]]] = {}
    for event, alone in _alone(chosen):
        calls.setdefault(str(event["name"]), []).append((float(event["dur"]) * 1e-6, alone * 1e-6))
    shares = [
        Share(name, len(times) / tokens, sum(t[0] for t in times) / tokens, sum(t[1] for t in times) / tokens)
        for name, times in calls.items()
    ]
    shares.sort(key=lambda s: -s.seconds)
    seconds = (end - start) * 1e-6 / tokens
    gap = max(0.0, seconds - sum(s.seconds for s in shares))
    copies, called = _totals(spans, "gpu_memcpy", "gpu_memset"), _totals(spans, "cuda_runtime", "cuda_driver")
    return Breakdown(device, tokens, seconds, gap, shares, copies, called)


def _totals(spans: Sequence[dict[str, Any]], *kinds: str) -> list[Total]:
    """Events of these categories by name, the longest total time first."""
    named: dict[str, list[dict[str, Any]]] = {}
    for event in spans:
        if event.get("cat") in kinds:
            named.setdefault(str(event["name"]), []).append(event)
    totals = [
        Total(name, len(some), sum(float(e["dur"]) for e in some) * 1e-6,
              sum(float(e.get("args", {}).get("bytes", 0)) for e in some))
        for name, some in named.items()
    ]  # fmt: skip
    return sorted(totals, key=lambda total: -total.seconds)


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


def _alone(events: Sequence[dict[str, Any]]) -> Iterator[tuple[dict[str, Any], float]]:
    """Each event, and the microseconds by which it outlasts all that began before it."""
    reached = float("-inf")
    for event in sorted(events, key=lambda e: float(e["ts"])):
        start, end = float(event["ts"]), float(event["ts"]) + float(event["dur"])
        yield event, max(0.0, end - max(start, reached))
        reached = max(reached, end)
