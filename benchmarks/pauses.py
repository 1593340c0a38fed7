"""Evenness: 50 calls of `generate` with 1, 64 and 256 texts on a GPU; median, 99th percentile and worst.

    PYTHONPATH=src python benchmarks/pauses.py [--model gpt2] [--dtype bfloat16] [--calls 50] [--output rows.jsonl]

Prompts and texts have 128 tokens (one text: 8 and 512). Each number of texts is a row of the results store.
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
from rung.results import machine, store
from rung.results.row import Row


def measure(model: Any, texts: int, calls: int) -> dict[str, float]:
    """Seconds per call, and how many collections of all objects there were."""
    length, new = (8, 512) if texts == 1 else (128, 128)
    new = min(new, model.config.context - length)
    dice = random.Random(texts)
    prompts = [[dice.randrange(model.config.vocabulary) for _ in range(length)] for _ in range(texts)]
    seconds = []
    for call in range(calls + 3):
        if call == 3:  # the first ones compile and capture
            full = gc.get_stats()[2]["collections"]
        began = time.perf_counter()
        done = model.generate(prompts, max_new_tokens=new, temperature=0, stop_tokens=())
        if call >= 3:
            seconds.append(time.perf_counter() - began)
        assert all(len(one.tokens) == new for one in done)
    ordered, median = sorted(seconds), statistics.median(seconds)
    return {
        "median_s": median, "p99_s": ordered[int(0.99 * calls)], "worst_s": ordered[-1], "calls": float(calls),
        "tokens_per_s": texts * new / median, "worst_over_median": ordered[-1] / median,
        "full_collections": float(gc.get_stats()[2]["collections"] - full),
    }  # fmt: skip


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--model", default="gpt2")
    parser.add_argument("--device", default="cuda")
    parser.add_argument("--dtype", default="bfloat16")
    parser.add_argument("--texts", type=int, nargs="*", default=[1, 64, 256])
    parser.add_argument("--calls", type=int, default=50)
    parser.add_argument("--output", type=Path)
    given = parser.parse_args()
    model = rung.load(given.model, device=given.device, dtype=given.dtype)
    for texts in given.texts:
        found = measure(model, texts, given.calls)
        print(f"{texts:4} texts: " + ", ".join(f"{name} {value:,.4g}" for name, value in found.items()), flush=True)
        if given.output is not None:
            row = Row(
                kind="generate", what=given.model, part="evenness", dtype=given.dtype,
                options={"texts": texts, "calls": given.calls}, machine=machine.facts(), state=machine.state(),
                verdict="ok",
            )  # fmt: skip
            store.append(row.with_metrics(**found), given.output)


if __name__ == "__main__":
    main()
