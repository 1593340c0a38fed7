"""Continuous batching, measured: many uneven prompts, texts that arrive at random, and one text alone.

    PYTHONPATH=src python benchmarks/serving.py --output out.json [--device cuda] [--model gpt2] [--slots 64,256]

Weights are random, tokens greedy, no text ends early. Sections: many (tokens/s from the first prompt handed in to the
last token, beside fixed batches of the same texts), arrivals (time to the first token and between tokens, Poisson
arrivals at 70 % of the capacity that `many` found with the most slots), alone (one text through the engine, beside the
path that `rung generate` takes). Each figure is the median of --repeats runs behind one that is not counted.
"""

from __future__ import annotations

import argparse
import json
import random
import statistics
import threading
import time
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import torch

from rung.gpt2.batching.choice import backend_of
from rung.gpt2.batching.engine import BatchEngine
from rung.gpt2.batching.text import Piece, Request
from rung.gpt2.choose_plan import make_plan
from rung.gpt2.model import Transformer
from rung.gpt2.options import Options, Prompt
from rung.gpt2.random_model import config_of, weights_of
from rung.gpt2.sampling import Sampling
from rung.gpt2.weights import converted

GREEDY = Sampling(temperature=0)
SHORTEST, LONGEST = 16, 512
LOAD = 0.7


class Bench:
    """One model, and what is asked of it."""

    def __init__(self, given: argparse.Namespace) -> None:
        self.given = given
        config = config_of(given.model)
        plan = make_plan(given.device, given.dtype, None, {})
        where = "cuda" if given.device == "cuda" else "cpu"
        weights = converted(weights_of(config, where), plan.matrix, plan.vector)
        self.transformer = Transformer(config, weights, plan)
        dice = random.Random(1)
        self.prompts = [
            tuple(dice.randrange(config.vocabulary) for _ in range(dice.randint(SHORTEST, LONGEST)))
            for _ in range(given.prompts)
        ]
        self._engines: dict[int, BatchEngine] = {}

    def engine(self, slots: int) -> BatchEngine:
        if slots not in self._engines:
            for other in self._engines.values():
                other.close()
            self._engines = {slots: BatchEngine(lambda: backend_of(self.transformer, slots), None)}
        return self._engines[slots]

    def request(self, prompt: Sequence[int], new: int) -> Request:
        return Request(Prompt("", tuple(prompt)), Options(sampling=GREEDY, max_new_tokens=new), 0)

    def _median(self, run: Callable[[], float]) -> float:
        run()  # graphs are recorded, kernels compiled
        return statistics.median(run() for _ in range(self.given.repeats))

    # ---- many -------------------------------------------------------------------------------------------------------

    def many(self) -> dict[str, Any]:
        """New tokens per second, all prompts there at once."""
        new = self.given.new
        found: dict[str, Any] = {"prompts": len(self.prompts), "new": new}
        for slots in self.given.slots:
            found[f"{slots} slots, tokens/s"] = self._median(lambda slots=slots: self._all(slots, new))  # type: ignore[misc]
        if self.transformer.service.writer is not None:
            for rows in self.given.slots:
                rate = self._median(lambda rows=rows: self._fixed(rows, new))  # type: ignore[misc]
                found[f"fixed batches of {rows}, tokens/s"] = rate
        return found

    def _all(self, slots: int, new: int) -> float:
        engine, left, done = self.engine(slots), len(self.prompts), threading.Event()
        failed: list[str] = []

        def hear(piece: Piece) -> None:
            nonlocal left
            if piece.error:
                failed.append(piece.error)
            left -= piece.last
            if left == 0:
                done.set()

        began = time.perf_counter()
        for prompt in self.prompts:
            engine.submit(self.request(prompt, new), hear)
        done.wait()
        if failed:
            raise RuntimeError(failed[0])
        return len(self.prompts) * new / (time.perf_counter() - began)

    def _fixed(self, rows: int, new: int) -> float:
        writer = self.transformer.service.writer
        assert writer is not None
        began = time.perf_counter()
        for first in range(0, len(self.prompts), rows):
            batch = self.prompts[first : first + rows]
            for _ in writer.write(batch, [new] * len(batch), sampling=GREEDY):
                pass
        return len(self.prompts) * new / (time.perf_counter() - began)

    # ---- arrivals ---------------------------------------------------------------------------------------------------

    def arrivals(self) -> dict[str, Any]:
        """Milliseconds to the first token and between tokens."""
        new, slots, dice = self.given.new, self.given.slots[-1], random.Random(2)
        capacity = self._median(lambda: self._all(slots, new)) / new  # texts per second
        engine, count = self.engine(slots), self.given.arrivals
        first: list[float] = []
        between: list[float] = []
        left, done = count, threading.Event()

        def listener() -> Callable[[Piece], None]:
            last: float | None = None
            began = time.perf_counter()

            def hear(piece: Piece) -> None:
                nonlocal last, left
                now = time.perf_counter()
                if piece.tokens:
                    (first if last is None else between).append(now - (began if last is None else last))
                    last = now
                left -= piece.last
                if left == 0:
                    done.set()

            return hear

        due = began = time.perf_counter()
        for _ in range(count):
            due += dice.expovariate(LOAD * capacity)
            while (now := time.perf_counter()) < due:
                time.sleep(min(due - now, 0.001))
            engine.submit(self.request(dice.choice(self.prompts), new), listener())
        done.wait()
        spent = time.perf_counter() - began
        return {
            "slots": slots, "texts": count, "texts/s asked": LOAD * capacity, "texts/s written": count / spent,
            "first token, ms": _percentiles(first), "between tokens, ms": _percentiles(between),
        }  # fmt: skip

    # ---- alone ------------------------------------------------------------------------------------------------------

    def alone(self) -> dict[str, Any]:
        """Tokens per second of one text."""
        new: int = self.given.alone
        prompt, engine = self.prompts[0][:SHORTEST], self.engine(self.given.slots[0])

        def through_engine() -> float:
            done = threading.Event()
            times: list[float] = []

            def hear(piece: Piece) -> None:
                times.append(time.perf_counter())
                if piece.last:
                    done.set()

            engine.submit(self.request(prompt, new), hear)
            done.wait()
            return (new - 1) / float(times[-1] - times[0])

        found: dict[str, Any] = {"new": new, "engine, tokens/s": self._median(through_engine)}
        writer = self.transformer.service.writer
        if writer is not None:

            def whole() -> float:
                times: list[float] = []
                for _ in writer.write([prompt], [new], sampling=GREEDY):
                    times.append(time.perf_counter())
                return (new - 1) / float(times[-1] - times[0])

            found["rung generate, tokens/s"] = self._median(whole)
            found["ratio"] = found["engine, tokens/s"] / found["rung generate, tokens/s"]
        return found


def _percentiles(seconds: Sequence[float]) -> dict[str, float]:
    values = torch.tensor(sorted(seconds), dtype=torch.float64) * 1e3
    return {f"p{p}": round(float(values.quantile(p / 100)), 3) for p in (50, 90, 99)}


def main() -> None:
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--output", type=Path, required=True)
    parser.add_argument("--device", default="cuda")
    parser.add_argument("--dtype", default="auto")
    parser.add_argument("--model", default="gpt2")
    parser.add_argument("--slots", type=lambda t: [int(n) for n in t.split(",")], default=[64, 256])
    parser.add_argument("--prompts", type=int, default=256)
    parser.add_argument("--new", type=int, default=128)
    parser.add_argument("--alone", type=int, default=512)
    parser.add_argument("--arrivals", type=int, default=1000)
    parser.add_argument("--repeats", type=int, default=5)
    parser.add_argument("--sections", default="many,arrivals,alone")
    given = parser.parse_args()
    bench = Bench(given)
    found: dict[str, Any] = {"model": given.model, "device": given.device, "dtype": bench.transformer.plan.dtype}
    for section in given.sections.split(","):
        found[section] = getattr(bench, section)()
        print(section, json.dumps(found[section], indent=1), flush=True)
        given.output.write_text(json.dumps(found, indent=1) + "\n", encoding="utf-8")


if __name__ == "__main__":
    main()
