"""One attention on one core, over the processes of a host, and by CUDA: causal and full, strong and weak scaling."""

from __future__ import annotations

import json
import math
import os
import tempfile
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from rung.rungs import catalogue, identity
from rung_reproduce.parallel import data, launch, ring
from rung_reproduce.show import charts
from rung_reproduce.show.charts import Found
from rung_reproduce.studies import attention
from rung_reproduce.studies.common import Runner, times
from rung_reproduce.studies.contestants import ON_A_GPU, on_a_gpu, sequential, truth, vectorised

N, D = 8192, 64
RANKS = (1, 2, 4, 8, 16)
NODES = (1, 2, 4, 8, 16, 32, 64)
KINDS = {True: "causal", False: "full"}
COLOURS = {True: ("f32", "tf32"), False: ("bf16", "f16")}
CUDA = ("CUDA, tree softmax", "CUDA, flash")
Seconds = Mapping[tuple[str, int], float]  # strong or weak, and ranks


@dataclass(frozen=True)
class Kind:
    """All measurements with one mask: seconds of the ring, and of implementations in one process."""

    ring: Seconds
    alone: Mapping[str, float]


def run(runner: Runner, *, n: int | None = None, ranks: Sequence[int] = RANKS) -> Found:
    """The same inputs for all implementations; each result is compared with float64."""
    n = n or (1024 if runner.quick else N)
    ranks = [r for r in ranks if r <= (os.cpu_count() or 1)]
    problem = launch.available()
    measured = {}
    for causal in KINDS:
        ring = _mpi(n, ranks, causal) if problem is None else _gloo(n, ranks, causal)
        measured[causal] = Kind(ring, _alone(runner, n, causal))
    by = "MPI" if problem is None else f"torch.distributed's gloo, since {problem.rstrip('.')}"
    whole = report(measured, n, by)
    if runner.gpu:
        whole.texts = {ON_A_GPU[name]: identity.text(catalogue.find(ON_A_GPU[name])) for name in CUDA}
    return whole


def weak(n: int, ranks: int) -> int:
    """The same number of query-key pairs per rank for any number of ranks."""
    return int(n / 2 * math.sqrt(ranks) + 0.5)


def _mpi(n: int, ranks: Sequence[int], causal: bool) -> Seconds:
    """The ring of rung_reproduce.parallel.mpi."""
    options = attention.Options(n=(n,), causal=causal, mpi=True, ranks=tuple(ranks))
    found: dict[tuple[str, int], float] = {}
    for row in attention.ranked(options, weak):
        if row["part"] in ("sizes", "weak"):
            found["strong" if row["part"] == "sizes" else "weak", row["ranks"]] = row["computing"]
    return found


def _gloo(n: int, ranks: Sequence[int], causal: bool) -> Seconds:
    """The ring of rung_reproduce.parallel.nccl between processes of this host's CPU, a core for each."""
    found: dict[tuple[str, int], float] = {}
    for count in ranks:
        with tempfile.TemporaryDirectory(prefix="rung-ranks-") as folder:
            file = Path(folder) / "rows.json"
            words = [str(n), str(weak(n, count)), "--heads", "1", "--head-size", str(D), "--dtype", "f32"]
            words += ["--repeats", "3", "--device", "cpu", "--output", str(file), *(["--causal"] if causal else [])]
            launch.torchrun("rung_reproduce.parallel.nccl", words, count, limit=120)
            strong, grown = json.loads(file.read_text(encoding="utf-8"))
        found |= {("strong", count): strong["seconds"], ("weak", count): grown["seconds"]}
    return found


def _alone(runner: Runner, n: int, causal: bool) -> dict[str, float]:
    """One core, and the GPU if there is one; computing only, like the ring's times."""
    qkv = data.load_or_make(None, n, D, 1, 0)
    right = truth(qkv, causal)
    some = [
        sequential(qkv, right, causal=causal, limit=0.5),
        vectorised(qkv, right, causal=causal, threads=1, limit=0.5),
        *(on_a_gpu(name, qkv, right, causal=causal) for name in (CUDA if runner.gpu else ())),
    ]
    return {m.name: m.computing for m in some if m.computing is not None}


def report(measured: Mapping[bool, Kind], n: int, by: str) -> Found:
    """One chart of strong scaling with both masks, and one of weak."""
    title = f"Attention of N = {n}, d = {D}: one core, a ring of ranks, CUDA"
    whole = _part(measured, "strong", lambda ranks: n, title)
    whole.more["weak"] = _part(
        measured, "weak", lambda ranks: weak(n, ranks), "Weak scaling: N grows with the root of the ranks"
    )
    for part in (whole, whole.more["weak"]):
        part.finding += (
            f" The ranks are processes of one host of {os.cpu_count()} cores, joined by {by}. The dashed lines up to "
            f"{NODES[-1]} are a forecast: nodes like one such rank, a message in {ring.Node(1).latency * 1e6:g} us + "
            f"{ring.Node(1).bandwidth / 1e9:g} GB/s."
        )
    return whole


def _part(measured: Mapping[bool, Kind], part: str, size: Any, title: str) -> Found:
    rows: list[tuple[Any, ...]] = []
    series: list[charts.Series] = []
    sentences = []
    for causal, kind in measured.items():
        name, seen = KINDS[causal], {r: s for (p, r), s in kind.ring.items() if p == part}
        one = seen[min(seen)]
        n = size(1)
        node = ring.Node(pairs=(n * (n + 1) / 2 if causal else n * n) / one)
        fitting = [r for r in NODES if size(r) >= r]
        expected = {r: ring.forecast(node, n=size(r), d=D, heads=1, ranks=r, causal=causal).seconds for r in fitting}
        if part == "strong":
            for who, seconds in kind.alone.items():
                rows.append((name, who, "", n, f"{seconds * 1e3:.3f}", times(one / seconds), ""))
                if who in CUDA[1:] or who.startswith("vectorised"):
                    ends = [(float(r), seconds * 1e3) for r in (NODES[0], NODES[-1])]
                    colour = "library" if who in CUDA else "muted"
                    series.append(charts.Series(f"{who}, {name}", ends, colour, dashed=not causal))
        for r in sorted({*seen, *expected}):
            shown = f"{seen[r] * 1e3:.3f}" if r in seen else ""
            rows.append((name, "ring", r, size(r), shown, times(one / seen[r]) if r in seen else "",
                         f"{expected[r] * 1e3:.3f}" if r in expected else ""))  # fmt: skip
        colour, pale = COLOURS[causal]
        series.append(charts.Series(f"ring, {name}", [(float(r), s * 1e3) for r, s in sorted(seen.items())], colour))
        series.append(
            charts.Series(f"forecast, {name}", [(float(r), s * 1e3) for r, s in expected.items()], pale, dashed=True)
        )
        most = max(seen)
        sentences.append(f"{name}: {most} ranks take {seen[most] / one:.2f} of one rank's time")
        if part == "strong" and CUDA[1] in kind.alone:
            sentences[-1] += f", and CUDA is {times(one / kind.alone[CUDA[1]])} as fast as one rank"
    text = "; ".join(sentences)
    return Found(
        title,
        ("mask", "who", "ranks", "N", "measured ms", "against one rank", "forecast ms"),
        rows,
        text[:1].upper() + text[1:] + ".",
        series,
        "ranks",
        "ms, computing",
    )
