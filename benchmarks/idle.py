"""Where a GPU waits while it writes many texts: wall time beside the time of kernels, and what the host does meanwhile.

    PYTHONPATH=src python benchmarks/idle.py [--models gpt2 ...] [--texts 64 256] [--peers] [--host] [--knobs] ...

Prompts and texts of 128 tokens, greedy, random weights in bfloat16. One line per model and number of texts: the median
call of several, the spread, the union of the kernels' intervals in a profiled call, and the idle time by its length:
between kernels of a graph (below 4 us), between launches (below 40 us), and longer, when the host is late. `--peers`
adds transformers with a static cache and compiled steps, `--host` the functions of the host that take longest, and
`--knobs` the same calls with other limits of work ahead and of passes, `--kernels` a step's kernels, and `--operations`
makes steps of the operations in place of a decode ladder. Rows go to $OUT/idle.jsonl.
"""

from __future__ import annotations

import argparse
import cProfile
import gc
import io
import os
import pstats
import statistics
import sys
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import torch

import rung
from rung.models import family
from rung.models.family import RANDOM
from rung.models.gpu import slots
from rung.models.gpu.batched_prefill import CHUNK
from rung.results import machine, store
from rung.results.row import Row

MODELS = ("gpt2", "qwen3-0.6b", "llama-3.2-1b")
PROMPT = NEW = 128
GAPS = ((4.0, "in graphs"), (40.0, "between launches"), (float("inf"), "host late"))


def prompts_of(vocabulary: int, texts: int) -> list[list[int]]:
    return torch.randint(vocabulary, (texts, PROMPT), generator=torch.Generator().manual_seed(texts)).tolist()


def walls(work: Callable[[], object], calls: int) -> list[float]:
    """Seconds of each call, after two that are not counted."""
    took = []
    for _ in range(calls + 2):
        torch.cuda.synchronize()
        began = time.perf_counter()
        work()
        torch.cuda.synchronize()
        took.append(time.perf_counter() - began)
    return took[2:]


def busy(work: Callable[[], object]) -> dict[str, float]:
    """Milliseconds of a call in which a kernel or a copy runs, by part, and idle ones by length."""
    from torch.profiler import ProfilerActivity, profile

    with profile(activities=[ProfilerActivity.CUDA]) as seen:
        work()
        torch.cuda.synchronize()
    events = sorted(
        ((e.time_range.start, e.time_range.end, e.name) for e in seen.events() if e.device_type.name == "CUDA"),
        key=lambda e: e[0],
    )
    first_step = next((start for start, _, name in events if name.startswith("advance")), events[-1][1])
    found = {"kernels": float(len(events)), "sum_ms": sum(b - a for a, b, _ in events) / 1e3, "busy_ms": 0.0}
    found |= {f"{name}_ms": 0.0 for _, name in GAPS} | {"prompts_ms": (first_step - events[0][0]) / 1e3}
    found["prompts_busy_ms"], until = 0.0, events[0][0]
    for start, end, _ in events:
        if start > until:
            found[next(f"{name}_ms" for most, name in GAPS if start - until < most)] += (start - until) / 1e3
        new = max(0.0, end - max(start, until)) / 1e3
        found["busy_ms"] += new
        if start < first_step:
            found["prompts_busy_ms"] += new
        until = max(until, end)
    return found | {"span_ms": (until - events[0][0]) / 1e3}


def by_name(ours: Any, rows: int) -> None:
    """One step's kernels by name: how often, each alone, and each until the next one begins."""
    from torch.profiler import ProfilerActivity, profile

    session = ours.plan.engine.open(rows, 256)
    session.tensors["lengths"].fill_(192)
    one, eight = session.graph(1), session.graph(8)
    for graph in (one, eight):
        graph.replay()
    torch.cuda.synchronize()
    began = time.perf_counter()
    for _ in range(20):
        eight.replay()
    torch.cuda.synchronize()
    together = (time.perf_counter() - began) / 160
    with profile(activities=[ProfilerActivity.CUDA]) as seen:
        one.replay()
        torch.cuda.synchronize()
    events = sorted((e for e in seen.events() if e.device_type.name == "CUDA"), key=lambda e: e.time_range.start)
    sums: dict[str, list[tuple[float, float]]] = {}
    for event, after in zip(events, [*events[1:], None], strict=True):
        until = event.time_range.end if after is None else after.time_range.start
        sums.setdefault(event.name[:56], []).append((event.time_range.elapsed_us(), until - event.time_range.start))
    total = sum(e.time_range.elapsed_us() for e in events)
    print(f"    a step in graphs of eight {1e6 * together:.0f} us; its {len(events)} kernels' sum {total:.0f} us")
    for name, times in sorted(sums.items(), key=lambda item: -sum(t for _, t in item[1])):
        alone, until = (sum(t[i] for t in times) for i in (0, 1))
        print(f"    {name:58} {len(times):4} x {alone / len(times):7.2f} us, until the next {until / len(times):7.2f}")


def host(work: Callable[[], object]) -> None:
    """What takes the host's time: in the engine's thread, and in the caller's; where a call's time goes before the
    first turn and after the last."""
    usual, marks = slots.GpuBackend.turn, list[float]()

    def marked(self: Any) -> Any:
        marks.append(time.perf_counter())
        found = usual(self)
        marks.append(time.perf_counter())
        return found

    within = cProfile.Profile()

    def profiled(self: Any) -> Any:
        within.enable()
        try:
            return usual(self)
        finally:
            within.disable()

    try:
        slots.GpuBackend.turn = marked  # type: ignore[method-assign]
        began = time.perf_counter()
        work()
        ended = time.perf_counter()
        turns = [b - a for a, b in zip(marks[::2], marks[1::2], strict=True)]
        print(
            f"    to the first turn {1e3 * (marks[0] - began):.1f} ms, the first turn {1e3 * turns[0]:.1f}, "
            f"{len(turns)} turns {1e3 * (marks[-1] - marks[0]):.1f}, after the last {1e3 * (ended - marks[-1]):.1f}"
        )
        slots.GpuBackend.turn = profiled  # type: ignore[method-assign]
        work()
    finally:
        slots.GpuBackend.turn = usual  # type: ignore[method-assign]
    outside = cProfile.Profile()
    outside.runcall(work)
    for title, seen in (("turns of the engine", within), ("the caller", outside)):
        text = io.StringIO()
        pstats.Stats(seen, stream=text).sort_stats("tottime").print_stats(16)
        lines = [line[:118] for line in text.getvalue().splitlines() if line.strip()]
        print(f"    -- {title}", *lines[1:], sep="\n    ", flush=True)


def peer(name: str) -> Any:
    """transformers' model with random weights."""
    from transformers import AutoConfig, AutoModelForCausalLM, GPT2Config

    from llama import theirs

    if name.startswith("gpt2"):
        config: Any = GPT2Config(bos_token_id=0, eos_token_id=None)
    else:
        fields = theirs(name)
        config = AutoConfig.for_model(**fields)
    model = AutoModelForCausalLM.from_config(config, dtype=torch.bfloat16).cuda().eval()
    model.generation_config.cache_implementation = "static"
    return model


def peer_rate(model: Any, texts: int) -> float:
    given = torch.tensor(prompts_of(model.config.vocab_size, texts), device="cuda")

    def work() -> object:
        return model.generate(
            given, do_sample=False, attention_mask=torch.ones_like(given), pad_token_id=0, min_new_tokens=NEW,
            max_new_tokens=NEW,
        )  # fmt: skip

    return texts * NEW / statistics.median(walls(work, 2))


def knobs(work: Callable[[], object]) -> None:
    """The same calls with other limits."""
    for what, name, value in (
        ("8 ms ahead", "AHEAD_SECONDS", 8e-3), ("16 ms ahead", "AHEAD_SECONDS", 16e-3),
        ("a ramp of 48k tokens", "RAMP", 12 * CHUNK),
    ):  # fmt: skip
        usual = getattr(slots, name)
        setattr(slots, name, value)
        try:
            print(f"    {what}: {1e3 * statistics.median(walls(work, 3)):.1f} ms", flush=True)
        finally:
            setattr(slots, name, usual)


def ours_of(name: str, given: argparse.Namespace, output: Path | None) -> list[str]:
    """The lines of a model."""
    ours: Any = rung.load(RANDOM + name, device="cuda", dtype="bfloat16", cache=given.cache)
    if given.operations:  # steps of the operations in place of the decode ladder
        ours.plan.engine.rung = lambda values: None
    lines = []
    for texts in given.texts:
        prompts = prompts_of(family.config_of(name).vocabulary, texts)

        def work(prompts: list[list[int]] = prompts) -> object:
            return ours.generate(prompts, max_new_tokens=NEW, temperature=0, stop_tokens=[])

        took = walls(work, given.calls)
        median, spread = statistics.median(took), (max(took) - min(took)) / statistics.median(took)
        seen = busy(work)
        found = {"tokens_per_s": texts * NEW / median, "wall_ms": 1e3 * median, "spread": spread, **seen}
        found["wall_over_busy"] = found["wall_ms"] / seen["busy_ms"]
        if output:
            options = {"by": "rung", "texts": texts, "cache": given.cache or ""}
            row = Row(
                kind="generate", what=name, part="idle", dtype="bfloat16", weights="random", verdict="ok",
                options=options, machine=machine.facts(), state=machine.state(),
            ).with_metrics(**{k.replace(" ", "_"): v for k, v in found.items()})  # fmt: skip
            store.append(row, output)
        lines.append(f"{name:13} {texts:4} texts: " + ", ".join(f"{k} {v:,.2f}" for k, v in found.items()))
        print(lines[-1], flush=True)
        if given.knobs:
            knobs(work)
        try:
            if given.host:
                host(work)
            if given.kernels:
                by_name(ours, texts)
        except Exception as error:
            print(f"    failed: {type(error).__name__} {error}")
    return lines


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--models", nargs="*", default=list(MODELS))
    parser.add_argument("--texts", nargs="*", type=int, default=[64, 256])
    parser.add_argument("--calls", type=int, default=5)
    parser.add_argument("--cache", default=None)
    for flag in ("peers", "host", "knobs", "kernels", "operations"):
        parser.add_argument(f"--{flag}", action="store_true")
    given = parser.parse_args()
    output = Path(os.environ["OUT"]) / "idle.jsonl" if "OUT" in os.environ else None
    lines: list[str] = []
    for name in given.models:
        lines += ours_of(name, given, output)
        gc.collect()
        torch.cuda.empty_cache()
    for name in given.models if given.peers else ():
        model = peer(name)
        for texts in given.texts:
            lines.append(f"{name:13} {texts:4} texts, transformers: {peer_rate(model, texts):,.0f} tokens/s")
            print(lines[-1], flush=True)
        del model
        gc.collect()
        torch.cuda.empty_cache()
    print("", machine.facts(), *lines, sep="\n")
    return 0


if __name__ == "__main__":
    sys.exit(main())
