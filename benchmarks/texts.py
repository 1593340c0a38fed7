"""Many texts of random models on a GPU: tokens per second by number of texts, and where a step's time goes.

    PYTHONPATH=src python benchmarks/texts.py [--models gpt2 ...] [--texts 1 8 64 256] [--profile 8 64] [--budget 300]
    ... [--eight-bits 64 256] [--beginnings 32]

Rows of the results store go to $OUT/texts.jsonl. A text has 128 tokens of prompt and 128 new ones, and a figure is the
median of a few calls after one that is not counted.
"""

from __future__ import annotations

import argparse
import functools
import gc
import itertools
import os
import statistics
import sys
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import torch
from llama import Bench

import rung
from rung.models.family import RANDOM
from rung.models.gpu.slots import logits_after

MODELS = ("smollm2-135m", "qwen3-0.6b", "llama-3.2-1b", "gpt2")
PROMPT = NEW = 128
COMMON, OWN = 1000, 20  # tokens of prompts that begin alike


def tokens_per_second(ours: Any, texts: int, calls: int) -> dict[str, float]:
    """Median, and the slowest call over it."""
    shape, generator = (texts, PROMPT), torch.Generator().manual_seed(texts)
    prompts = torch.randint(ours.config.vocabulary, shape, generator=generator).tolist()
    took = []
    for _ in range(calls + 1):
        torch.cuda.synchronize()
        began = time.perf_counter()
        ours.generate(prompts, max_new_tokens=NEW, temperature=0, stop_tokens=[])
        took.append(time.perf_counter() - began)
    median = statistics.median(took[1:])
    return {"tokens_per_s": texts * NEW / median, "slowest_over_median": max(took[1:]) / median}


def beginnings(ours: Any, texts: int, common: int, calls: int) -> dict[str, float]:
    """Milliseconds until all prompts of a call have their first token: of one prompt, of prompts that begin with the
    same tokens, and of prompts that have nothing in common. No call knows a beginning of another."""
    generator = torch.Generator().manual_seed(texts)

    def some(rows: int, tokens: int) -> list[list[int]]:
        return torch.randint(ours.config.vocabulary, (rows, tokens), generator=generator).tolist()

    def alike(rows: int) -> list[list[int]]:
        (beginning,) = some(1, common)
        return [beginning + rest for rest in some(rows, OWN)]

    kinds: dict[str, Callable[[], list[list[int]]]] = {
        "one": lambda: alike(1), "alike": lambda: alike(texts), "apart": lambda: some(texts, common + OWN),
    }  # fmt: skip
    took: dict[str, list[float]] = {name: [] for name in kinds}
    for _ in range(calls + 3):  # passes are captured when they have run a few times
        for name, prompts in kinds.items():
            given = prompts()
            torch.cuda.synchronize()
            began = time.perf_counter()
            ours.generate(given, max_new_tokens=1, temperature=0, stop_tokens=[])
            took[name].append(1e3 * (time.perf_counter() - began))
    return {f"{name}_ms": statistics.median(times[3:]) for name, times in took.items()}


def apart(ours: Any, eight: Any, texts: int) -> dict[str, float]:
    """How far the next tokens' probabilities are from those of a cache in 16 bits."""
    tokens = torch.randint(ours.config.vocabulary, (texts, PROMPT + 32), generator=torch.Generator().manual_seed(9))
    given = tokens[:, :PROMPT].tolist(), tokens[:, PROMPT:].tolist()
    truth, found = (logits_after(m.plan.engine, *given).log_softmax(-1) for m in (ours, eight))
    return {
        "kl_nats": float((truth.exp() * (truth - found)).sum(-1).mean()),
        "same_likeliest": float((truth.argmax(-1) == found.argmax(-1)).float().mean()),
    }


def step(ours: Any, rows: int) -> dict[str, float]:
    """One step's time by its graph of eight, and its launches."""
    session = ours.plan.engine.open(rows, 512)
    session.tensors["lengths"].fill_(192)
    graph, times = session.graph(8), []
    for _ in range(7):
        torch.cuda.synchronize()
        began = time.perf_counter()
        for _ in range(10):
            graph.replay()
        torch.cuda.synchronize()
        times.append((time.perf_counter() - began) / 80)
    found = {"step_us": statistics.median(times) * 1e6}
    if hasattr(session.decode, "_steps"):
        found["launches"] = len(session.decode._steps) + 1
    return found


def kernels(ours: Any, rows: int) -> None:
    """The sums of a step's launches by name."""
    from torch.profiler import ProfilerActivity, profile

    session = ours.plan.engine.open(rows, 512)
    session.tensors["lengths"].fill_(192)
    graph = session.graph(1)
    graph.replay()
    torch.cuda.synchronize()
    with profile(activities=[ProfilerActivity.CUDA]) as seen:
        graph.replay()
        torch.cuda.synchronize()
    events = sorted((e for e in seen.events() if e.device_type.name == "CUDA"), key=lambda e: e.time_range.start)
    sums: dict[str, list[float]] = {}
    for event, after in itertools.pairwise([*events, None]):
        until = event.time_range.elapsed_us() if after is None else after.time_range.start - event.time_range.start
        sums.setdefault(event.name[:60], []).append(until)
        sums.setdefault(event.name[:60] + " alone", []).append(event.time_range.elapsed_us())
    for name, times in sums.items():
        print(f"    {name:66} {len(times):4} x {sum(times) / len(times):7.2f} us = {sum(times):8.1f}")
    print("   ", getattr(session.decode, "rungs_in_use", None) or getattr(session.work.rung, "full_name", None))


def main() -> int:
    parser = argparse.ArgumentParser()
    parser.add_argument("--models", nargs="*", default=list(MODELS))
    parser.add_argument("--texts", nargs="*", type=int, default=[1, 8, 64, 256])
    parser.add_argument("--profile", nargs="*", type=int, default=[])
    parser.add_argument("--beginnings", nargs="*", type=int, default=[], help="prompts with one beginning")
    parser.add_argument("--eight-bits", nargs="*", type=int, default=[], help="texts with keys and values in 8 bits")
    parser.add_argument("--calls", type=int, default=3)
    parser.add_argument("--budget", type=float, default=300.0)
    given = parser.parse_args()
    bench = Bench(given.budget)
    if bench.output:
        bench.output = Path(os.environ["OUT"]) / "texts.jsonl"
    for name in given.models:
        ours = rung.load(RANDOM + name, device="cuda", dtype="bfloat16")
        for texts in given.texts:
            options = {"texts": texts, "prompt_tokens": PROMPT, "new_tokens": NEW}
            bench.part(name, "text", "rung", functools.partial(tokens_per_second, ours, texts, given.calls), **options)
            bench.part(name, "step", "rung", functools.partial(step, ours, texts), texts=texts)
        for texts in given.eight_bits:
            eight = rung.load(RANDOM + name, device="cuda", dtype="bfloat16", cache="int8")
            options = {"texts": texts, "prompt_tokens": PROMPT, "new_tokens": NEW, "cache": "int8"}
            bench.part(name, "text", "rung", functools.partial(tokens_per_second, eight, texts, given.calls), **options)
            bench.part(name, "step", "rung", functools.partial(step, eight, texts), texts=texts, cache="int8")
            bench.part(name, "error", "rung", functools.partial(apart, ours, eight, texts), texts=texts, cache="int8")
            del eight
        for texts in given.beginnings:
            options = {"texts": texts, "common_tokens": COMMON, "own_tokens": OWN}
            bench.part(
                name, "beginning", "rung", functools.partial(beginnings, ours, texts, COMMON, given.calls), **options
            )
        for rows in given.profile:
            if time.monotonic() - bench.began < given.budget:
                print(f"{name} {rows} rows")
                kernels(ours, rows)
        del ours
        gc.collect()  # what an earlier model leaves would take slots from the next
        torch.cuda.empty_cache()
    for row in bench.rows:
        print(f"{row.what:14} {row.part:5} {row.options['texts']:4}", {k: round(v, 2) for k, v in row.metrics.items()})
    return min(bench.failed, 1)


if __name__ == "__main__":
    sys.exit(main())
