"""Evenness: 50 calls of `generate` with 1, 64 and 256 texts on a GPU; median, 99th percentile and worst.

    PYTHONPATH=src python benchmarks/pauses.py [--model random:gpt2] [--dtype bfloat16] [--calls 50] [--seconds 120]

Prompts and texts have 128 tokens (one text: 8 and 512), or as many as the context holds. Each number of texts is a row
of the results store. Beside the calls: the longest halt by Python's collector, and the processors' time on the host.
"""

from __future__ import annotations

import argparse
import gc
import random
import statistics
import time
from pathlib import Path
from typing import Any

import rung
from rung.models.family import RANDOM
from rung.results import machine, store
from rung.results.row import Row

WARM = 3  # calls that compile and capture


class Collector:
    """How long Python's collector stopped the program: in all, and at most at a time."""

    def __init__(self) -> None:
        self.seconds = self.longest = self.full = 0.0
        gc.callbacks.append(self)

    def __call__(self, phase: str, details: dict[str, int]) -> None:
        if phase == "start":
            self._began = time.perf_counter()
            return
        halted = time.perf_counter() - self._began
        self.seconds, self.longest = self.seconds + halted, max(self.longest, halted)
        self.full += details["generation"] == 2


def measure(model: Any, texts: int, calls: int, limit: float) -> dict[str, float]:
    """Seconds per call, and what Python's collector took of them."""
    length, new = (8, 512) if texts == 1 else (128, 128)
    length = min(length, model.config.context // 2)
    new = min(new, model.config.context - length)
    dice = random.Random(texts)
    prompts = [[dice.randrange(model.config.vocabulary) for _ in range(length)] for _ in range(texts)]
    seconds: list[float] = []
    began = time.perf_counter()
    for call in range(calls + WARM):
        if call == WARM:
            collector, worked = Collector(), time.process_time()
        start = time.perf_counter()
        done = model.generate(prompts, max_new_tokens=new, temperature=0, stop_tokens=())
        if call >= WARM:
            seconds.append(time.perf_counter() - start)
        assert all(len(one.tokens) == new for one in done)
        if seconds and time.perf_counter() - began > limit:
            break
    gc.callbacks.remove(collector)
    ordered, median = sorted(seconds), statistics.median(seconds)
    return {
        "median_s": median, "p99_s": ordered[int(0.99 * len(ordered))], "worst_s": ordered[-1],
        "calls": float(len(ordered)), "tokens_per_s": texts * new / median,
        "worst_over_median": ordered[-1] / median, "full_collections": collector.full,
        "longest_collection_s": collector.longest, "collector_share": collector.seconds / sum(seconds),
        "host_cpu_s": (time.process_time() - worked) / len(ordered),
    }  # fmt: skip


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--model", default=f"{RANDOM}gpt2")
    parser.add_argument("--device", default="cuda")
    parser.add_argument("--dtype", default="bfloat16")
    parser.add_argument("--texts", type=int, nargs="*", default=[1, 64, 256])
    parser.add_argument("--calls", type=int, default=50)
    parser.add_argument("--seconds", type=float, default=120.0, help="for all calls; fewer are made if time is short")
    parser.add_argument("--output", type=Path, help="rows of results (default: the store)")
    given = parser.parse_args()
    model = rung.load(given.model, device=given.device, dtype=given.dtype)
    for texts in given.texts:
        found = measure(model, texts, given.calls, given.seconds / len(given.texts))
        print(f"{texts:4} texts: " + ", ".join(f"{name} {value:,.4g}" for name, value in found.items()), flush=True)
        row = Row(
            kind="generate", what=given.model.removeprefix(RANDOM), part="evenness", dtype=given.dtype, verdict="ok",
            options={"device": given.device, "texts": texts}, machine=machine.facts(), state=machine.state(),
            weights="random" if given.model.startswith(RANDOM) else "",
        )  # fmt: skip
        store.append(row.with_metrics(**found), given.output)


if __name__ == "__main__":
    main()
