"""Finds the launch parameters of the streamed decode rungs on this GPU, group by group, for the engine to use.

    PYTHONPATH=src python benchmarks/decode_tune.py --output tuned.json [--store tunings.jsonl] "gpt2 bfloat16 10" ...

The kernels of a step hardly influence one another, so the parameters of each are sampled jointly while the others
are fixed; the best of all groups are then combined, and a second round starts from there. Candidates are compiled on
all cores while the GPU times those that are ready.
"""

from __future__ import annotations

import argparse
import gc
import itertools
import json
import random
import statistics
import time
from concurrent.futures import Future, as_completed
from pathlib import Path
from typing import Any

import torch

from gpuless.base.expressions import Number
from rung.dtypes import dtype as named_dtype
from rung.errors import RungError
from rung.models.family import config_of
from rung.models.gpu.engine import DTYPES, GpuSteps
from rung.models.gpu.session import dims
from rung.models.weights import weights_of
from rung.results import machine
from rung.rungs import catalogue, tunings
from rung.rungs.compile_ahead import Compilers

GROUPS = {
    "qkv": ("QKV_THREADS", "QKV_ROWS", "QKV_SLOTS"),
    "fc": ("FC_THREADS", "FC_ROWS", "FC_SLOTS"),
    "fc2": ("FC2_THREADS", "FC2_ROWS", "FC2_SLOTS", "FC2_SPLIT"),
    "proj": ("PROJ_THREADS", "PROJ_ROWS", "PROJ_SLOTS", "PROJ_SPLIT"),
    "keys": ("KEY_LOADS", "KEY_WARPS", "KEY_SLOTS"),
    "head": ("HEAD_THREADS", "HEAD_ROWS", "HEAD_SLOTS", "HEAD_BLOCKS", "HEAD_AHEAD", "HEAD_ROUNDS"),
    "one kernel": ("STEP_WARPS", "KEY_PART", "RING"),
    "parts": ("KEY_PART", "PARTS_AT_ONCE"),
    "pace": ("PACE",),
    "quiet": ("POLL_DELAY_CYCLES", "POLL_DELAY_STREAM_CYCLES", "POLL_DELAY_HIDDEN_CYCLES", "POLL_DELAY_IDLE_CYCLES"),
    "clusters": ("MOST_CLUSTERS", "LATE_REFILL"),
    "ahead": ("AHEAD", "REST", "BULK", "FLIGHT"),
    "many sequences": ("FC2_SPLIT", "HEAD_N", "HEAD_K", "HEAD_STAGES"),
}
TOKENS, CONTEXT = 520, 260  # the length of a text of 512 tokens after a short prompt, and its middle
Tuning = dict[str, int]


def values_of(name: str, rows: int) -> dict[str, Number]:
    capacity = -(-TOKENS // 64) * 64
    return catalogue.operation("decode").complete(dims(config_of(name), rows, capacity))


class Search:
    """One model, number format and rung."""

    def __init__(self, question: str, pool: Compilers, seconds: float, seeds: list[Tuning]) -> None:
        self.name, self.dtype, self.rung_name, *more = question.split()
        self.rows = int(more[0]) if more else 1
        self.rung = catalogue.find(f"decode/{self.rung_name}")
        self.pool, self.deadline = pool, time.monotonic() + seconds
        self.best: Tuning = {}
        self.seeds = seeds
        self.seen: dict[tuple[tuple[str, int], ...], float] = {}
        config = config_of(self.name)
        engine = GpuSteps(config, weights_of(config, "cuda"), self.dtype, rung=self.rung.name)
        self.session = engine.open(self.rows)
        self.real = engine.real
        self.random = random.Random(11)

    def legal(self, tuning: Tuning) -> bool:
        return self.rung.refusal(values_of(self.name, self.rows), self.real, tuning, device="cuda") is None

    def time_of(self, tuning: Tuning) -> float:
        key = tuple(sorted(self.rung.tuned(tuning).items()))
        if key not in self.seen:
            try:
                self.seen[key] = self.step_time(tuning)
            except (RungError, RuntimeError) as error:
                self.seen[key] = float("inf")
                print(f"    {tuning}: {str(error).splitlines()[0][:140]}", flush=True)
        return self.seen[key]

    def step_time(self, tuning: Tuning) -> float:
        """Seconds per step, from graphs of eight, near the middle of a text."""
        session = self.session
        bound = {o.name for o in self.rung.operation.operands}
        tensors = {n: t for n, t in session.tensors.items() if n in bound}
        values = values_of(self.name, self.rows)
        session.decode = self.rung.prepare(tensors, values, self.real, device="cuda", tuning=tuning)
        session._graphs.clear()
        session.choice.greedy = True
        session.tensors["limits"].fill_(1 << 30)
        graph, times = session.graph(8), []
        for trial in range(6):
            session.tensors["lengths"].fill_(CONTEXT)
            for name in ("done", "steps"):
                session.tensors[name].zero_()
            begin, end = (torch.cuda.Event(enable_timing=True) for _ in range(2))  # type: ignore[no-untyped-call]
            begin.record()
            for _ in range(2):
                graph.replay()
            end.record()
            end.synchronize()
            if trial > 0:
                times.append(begin.elapsed_time(end) / 16e3)
        return float(statistics.median(times))

    def candidates(self, group: str, most: int) -> list[Tuning]:
        names = [n for n in GROUPS[group] if n in self.rung.tune]
        every = [
            {**self.best, **dict(zip(names, choice, strict=True))}
            for choice in itertools.product(*(self.rung.tune[n] for n in names))
        ]
        self.random.shuffle(every)
        fresh = (t for t in every if tuple(sorted(self.rung.tuned(t).items())) not in self.seen and self.legal(t))
        return list(itertools.islice(fresh, most))

    def compiled(self, tuning: Tuning) -> Future[None]:
        return self.pool.submit(self.rung.full_name, values_of(self.name, self.rows), self.real.name, tuning)

    def improve(self, most: int) -> None:
        """Candidates of all groups against the best so far; then the groups' best together."""
        least = self.time_of(self.best)
        waiting: dict[Future[None], tuple[str, Tuning]] = {}
        for group in GROUPS:
            for tuning in self.candidates(group, most):
                waiting[self.compiled(tuning)] = (group, tuning)
        found: dict[str, list[tuple[float, Tuning]]] = {group: [] for group in GROUPS}
        for future in as_completed(waiting):
            group, tuning = waiting[future]
            if time.monotonic() > self.deadline:
                future.cancel()
            elif future.exception() is None:
                found[group].append((self.time_of(tuning), tuning))
        together = dict(self.best)
        for group in sorted(found, key=lambda g: min((t for t, _ in found[g]), default=least)):
            took, tuning = min(found[group], key=lambda f: f[0], default=(least, {}))
            if took < 0.997 * least:
                trial = {**together, **{n: tuning[n] for n in GROUPS[group] if n in tuning}}
                if self.legal(trial) and self.time_of(trial) < self.time_of(together):
                    together = trial
        self.best = together

    def run(self) -> dict[str, Any]:
        first = self.time_of({})
        legal = [t for t in self.seeds if self.legal(t)]
        for future, tuning in [(self.compiled(t), t) for t in legal]:
            if future.exception() is None and self.time_of(tuning) < self.time_of(self.best):
                self.best = tuning
        if legal:
            print(*(f"    {self.time_of(t) * 1e6:.1f} us {t}" for t in legal), sep="\n", flush=True)
        for most in (16, 12, 12):
            if time.monotonic() < self.deadline:
                self.improve(most)
                best = self.time_of(self.best) * 1e6
                print(f"{self.name} {self.dtype} {self.rung.name}: {best:.1f} us after {len(self.seen)}", flush=True)
        log = sorted((t * 1e6, k) for k, t in self.seen.items())
        return {
            "rung": self.rung.name,
            "tuning": self.best,
            "us": self.time_of(self.best) * 1e6,
            "default_us": first * 1e6,
            "tried": len(self.seen),
            "log": [[f"{t:.1f}", dict(k)] for t, k in log[:200] if t < 1e12],
        }

    def keep(self, store: Path, found: dict[str, Any]) -> None:
        """The tuning under the engine's key, for caches of every size."""
        real, facts = named_dtype(DTYPES[self.dtype]), machine.facts()
        for capacity in (64, 128, 256, 512, 1024):
            values = catalogue.operation("decode").complete(dims(config_of(self.name), self.rows, capacity))
            if self.rung.refusal(values, real, self.best, device="cuda") is None:
                tunings.record(
                    self.rung,
                    dtype=real.name,
                    shape=self.name,
                    values=values,
                    tuning=self.best,
                    cold_us=found["us"],
                    default_us=found["default_us"],
                    machine=facts,
                    path=store,
                )


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0] if __doc__ else "")
    parser.add_argument("questions", nargs="+", help='"gpt2-xl bfloat16 10"; a fourth word: number of sequences')
    parser.add_argument("--output", type=Path, required=True)
    parser.add_argument("--store", type=Path)
    parser.add_argument(
        "--start", type=Path, help='an earlier output, whose best are the start; "seeds" names more for each question'
    )
    parser.add_argument("--seconds", type=float, default=60, help="for each question")
    arguments = parser.parse_args()
    before = json.loads(arguments.start.read_text()) if arguments.start else {}
    chosen: dict[str, dict[str, Any]] = {}
    with Compilers() as pool:
        for question in arguments.questions:
            name, dtype, rung, *rows = question.split()
            key = f"{name} {dtype} x {rows[0] if rows else 1}"
            full = catalogue.find(f"decode/{rung}").name
            known = before.get("chosen", {}).get(key, {})
            seeds = [known["tuning"]] if known.get("rung") == full else []
            search = Search(question, pool, arguments.seconds, seeds + before.get("seeds", {}).get(key, []))
            found = search.run()
            if key not in chosen or found["us"] < chosen[key]["us"]:
                chosen[key] = found
            if arguments.store:
                search.keep(arguments.store, found)
            del search
            gc.collect()
            torch.cuda.empty_cache()
            arguments.output.write_text(json.dumps({"chosen": chosen, "machine": machine.facts()}, indent=1))
    for key, found in chosen.items():
        print(f"{key:24s} {found['rung']:22s} {found['default_us']:8.1f} -> {found['us']:8.1f} us {found['tuning']}")


if __name__ == "__main__":
    main()
