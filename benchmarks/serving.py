"""Continuous batching, measured: many uneven prompts, texts that arrive at random, and one text alone.

    PYTHONPATH=src python benchmarks/serving.py [--output rows.jsonl] [--device cuda] [--model gpt2] [--slots 64,256]

Weights are random, tokens greedy, no text ends early. Sections: parts (milliseconds of each pass of prompts and of a
step of each number of rows; on a GPU), many (tokens/s from the first prompt submitted to the last token, against fixed
batches of the same texts; where the time went), arrivals (time to the first token and between tokens, Poisson arrivals
at 70 % of the capacity that `many` found with the most slots), alone (one text through the engine, against the path of
`rung generate`). Each figure is the median of --repeats runs after a warm-up run, and a row of results.
"""

from __future__ import annotations

import argparse
import random
import statistics
import threading
import time
from collections import Counter
from collections.abc import Callable, Sequence
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any

import torch

from rung.models.backends import backend_of
from rung.models.batching.engine import BatchEngine
from rung.models.batching.text import Piece, Request
from rung.models.family import RANDOM
from rung.models.load import load
from rung.models.options import Options, Prompt
from rung.models.sampling import Sampling
from rung.results import machine, store
from rung.results.row import Row

if TYPE_CHECKING:
    from rung.models.gpu.slots import GpuBackend

GREEDY = Sampling(temperature=0)
SHORTEST, LONGEST = 16, 512
LOAD = 0.7
CACHED = 320  # tokens of each row when a step is timed

Metrics = dict[str, float]


class Bench:
    """One model, and its workload."""

    def __init__(self, given: argparse.Namespace) -> None:
        self.given = given
        self.transformer = load(f"{RANDOM}{given.model}", device=given.device, dtype=given.dtype).transformer
        config, rng = self.transformer.config, random.Random(1)
        self.prompts = [
            tuple(rng.randrange(config.vocabulary) for _ in range(rng.randint(SHORTEST, LONGEST)))
            for _ in range(given.prompts)
        ]
        self._engines: dict[int, BatchEngine] = {}
        self._capacity = 0.0
        self.spent: Metrics = {}  # ms of passes and steps by their shape
        self.taken: Counter[str] = Counter()  # their number

    def row(self, part: str, metrics: Metrics, **options: object) -> None:
        """Store a section's figures and print them."""
        g = self.given
        options_ = {"device": g.device, "prompts": g.prompts, "new": g.new, **options}
        found = Row(
            kind="generate", what=g.model, part=f"engine {part}", dtype=self.transformer.plan.dtype, options=options_,
            weights="random", metrics=metrics, machine=machine.facts(), state=machine.state(),
        )  # fmt: skip
        store.append(found, g.output)
        lines = (f"  {name:<28} {value:,.4g}" for name, value in metrics.items())
        print(f"{part} {options}:", *lines, sep="\n", flush=True)

    def engine(self, slots: int) -> BatchEngine:
        if slots not in self._engines:
            for other in self._engines.values():
                other.close()
            backend = backend_of(self.transformer, slots)
            backend.warm()
            self._engines = {slots: BatchEngine(lambda: backend, None)}
            if self._on_gpu:
                self._count(backend)  # type: ignore[arg-type]
        return self._engines[slots]

    @property
    def _on_gpu(self) -> bool:
        return self.given.device == "cuda" and self.transformer.service.engine is not None

    def _count(self, backend: GpuBackend) -> None:
        """Find which passes and steps there are."""
        reader, step = backend._reader, backend._step

        def read(shape: Any) -> object:
            self.taken[f"pass_{shape.rows}x{shape.length}_ms"] += 1
            return reader(shape)

        def stepped(bank: object, most: int) -> int:
            steps = step(bank, most)  # type: ignore[arg-type]
            self.taken[f"step_{len(bank.rows)}_ms"] += steps  # type: ignore[attr-defined]
            return steps

        backend._reader, backend._step = read, stepped  # type: ignore[method-assign, assignment]

    def request(self, prompt: Sequence[int], new: int) -> Request:
        return Request(Prompt("", tuple(prompt)), Options(sampling=GREEDY, max_new_tokens=new), 0)

    def _median(self, run: Callable[[], float]) -> float:
        run()  # graphs are captured, kernels compiled
        return statistics.median(run() for _ in range(self.given.repeats))

    # ---- parts ------------------------------------------------------------------------------------------------------

    @torch.inference_mode()
    def parts(self) -> None:
        """The parts of the engine's work, separately."""
        if not self._on_gpu:
            return
        from rung.models.gpu.slots import GpuBackend

        self.engine(self.given.slots[-1]).prepare()
        backend = self._engines[self.given.slots[-1]]._backend
        assert isinstance(backend, GpuBackend)
        for (rows, length, rest), reader in sorted(backend._readers.items(), key=lambda item: item[0][:2]):
            if rest is not None:
                continue
            reader.tensors["lengths"].fill_(length)
            self.spent[f"pass_{rows}x{length}_ms"] = self._ms(reader.replay)
        for (rows, _), bank in sorted(backend._sessions.opened.items()):
            session = bank.session
            session.choice.greedy, together = True, session.work.steps
            graph, tensors = session.graph(together), session.tensors
            tensors["limits"].fill_(1 << 30)
            tensors["done"].zero_()
            lengths = tensors["lengths"]
            self.spent[f"step_{rows}_ms"] = self._ms(graph.replay, partial(lengths.fill_, CACHED)) / together
            session.open()
        self.row("parts", self.spent, cached=CACHED)

    def _ms(self, run: Callable[[], object], before: Callable[[], object] = lambda: None) -> float:
        times = []
        for _ in range(self.given.repeats + 2):
            before()
            torch.cuda.synchronize()
            began = time.perf_counter()
            for _ in range(5):
                run()
            torch.cuda.synchronize()
            times.append((time.perf_counter() - began) * 200)
        return statistics.median(times[2:])

    # ---- many -------------------------------------------------------------------------------------------------------

    def many(self) -> None:
        """New tokens per second with all prompts at once, and how the last run spent its time."""
        new = self.given.new
        for slots in self.given.slots:
            rate = self._capacity = self._median(lambda slots=slots: self._all(slots, new))  # type: ignore[misc]
            engine = self.engine(slots)
            before = replace(engine.clock)
            self.taken.clear()
            seconds = len(self.prompts) * new / self._all(slots, new)
            spent = {name: after - getattr(before, name) for name, after in vars(engine.clock).items()}
            steps = spent.pop("steps")
            found = {"tokens_per_s": rate, "run_ms": seconds * 1e3}
            found |= {f"{n.removesuffix('_seconds')}_ms": v * 1e3 for n, v in spent.items() if n.endswith("_seconds")}
            found |= {n: v for n, v in spent.items() if not n.endswith("_seconds")}
            found |= {"steps": steps, "rows_a_step": spent["row_steps"] / max(1, steps)}
            if self.spent:
                parts = {kind: sum(n * self.spent[name] for name, n in self.taken.items() if name.startswith(kind))
                         for kind in ("pass", "step")}  # fmt: skip
                found |= {"gpu_prompts_ms": parts["pass"], "gpu_steps_ms": parts["step"]}
                found["rest_ms"] = seconds * 1e3 - sum(parts.values())
            self.row("many", found, slots=slots)

    def _all(self, slots: int, new: int) -> float:
        engine, left, done = self.engine(slots), len(self.prompts), threading.Event()
        failed: list[str] = []

        def on_piece(piece: Piece) -> None:
            nonlocal left
            if piece.error:
                failed.append(piece.error)
            left -= piece.last
            if left == 0:
                done.set()

        began = time.perf_counter()
        for prompt in self.prompts:
            engine.submit(self.request(prompt, new), on_piece)
        done.wait()
        if failed:
            raise RuntimeError(failed[0])
        return len(self.prompts) * new / (time.perf_counter() - began)

    # ---- arrivals ---------------------------------------------------------------------------------------------------

    def arrivals(self) -> None:
        """Milliseconds to the first token and between tokens."""
        new, slots, rng = self.given.new, self.given.slots[-1], random.Random(2)
        capacity = (self._capacity or self._median(lambda: self._all(slots, new))) / new  # texts per second
        engine, count = self.engine(slots), self.given.arrivals
        first: list[float] = []
        between: list[float] = []
        left, done = count, threading.Event()

        def listener() -> Callable[[Piece], None]:
            last: float | None = None
            began = time.perf_counter()

            def on_piece(piece: Piece) -> None:
                nonlocal last, left
                now = time.perf_counter()
                if piece.tokens:
                    (first if last is None else between).append(now - (began if last is None else last))
                    last = now
                left -= piece.last
                if left == 0:
                    done.set()

            return on_piece

        due = began = time.perf_counter()
        for _ in range(count):
            due += rng.expovariate(LOAD * capacity)
            while (now := time.perf_counter()) < due:
                time.sleep(min(due - now, 0.001))
            engine.submit(self.request(rng.choice(self.prompts), new), listener())
        done.wait()
        spent = time.perf_counter() - began
        found = {"asked_texts_per_s": LOAD * capacity, "written_texts_per_s": count / spent}
        found |= {f"first_{name}_ms": value for name, value in _percentiles(first).items()}
        found |= {f"between_{name}_ms": value for name, value in _percentiles(between).items()}
        self.row("arrivals", found, slots=slots, texts=count, load=LOAD)

    # ---- alone ------------------------------------------------------------------------------------------------------

    def alone(self) -> None:
        """Tokens per second of one text."""
        new: int = self.given.alone
        prompt, engine = self.prompts[0][:SHORTEST], self.engine(self.given.slots[0])

        def through_engine() -> float:
            done = threading.Event()
            times: list[float] = []

            def on_piece(piece: Piece) -> None:
                times.append(time.perf_counter())
                if piece.last:
                    done.set()

            engine.submit(self.request(prompt, new), on_piece)
            done.wait()
            return (new - 1) / float(times[-1] - times[0])

        found = {"tokens_per_s": self._median(through_engine)}
        self.row("alone", found, tokens=new)


def _percentiles(seconds: Sequence[float]) -> dict[str, float]:
    values = torch.tensor(sorted(seconds), dtype=torch.float64) * 1e3
    return {f"p{p}": round(float(values.quantile(p / 100)), 3) for p in (50, 90, 99)}


def main() -> None:
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--output", type=Path, help="rows of results (default: the store)")
    parser.add_argument("--device", default="cuda")
    parser.add_argument("--dtype", default="auto")
    parser.add_argument("--model", default="gpt2")
    parser.add_argument("--slots", type=lambda t: [int(n) for n in t.split(",")], default=[64, 256])
    parser.add_argument("--prompts", type=int, default=256)
    parser.add_argument("--new", type=int, default=128)
    parser.add_argument("--alone", type=int, default=512)
    parser.add_argument("--arrivals", type=int, default=1000)
    parser.add_argument("--repeats", type=int, default=5)
    parser.add_argument("--sections", default="parts,many,arrivals,alone")
    given = parser.parse_args()
    bench = Bench(given)
    for section in given.sections.split(","):
        getattr(bench, section)()


if __name__ == "__main__":
    main()
