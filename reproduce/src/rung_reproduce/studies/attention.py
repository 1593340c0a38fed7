"""Attention from sequential C++ to CUDA and MPI: time, transfers, softmax, and how it scales over ranks."""

from __future__ import annotations

import json
import math
import os
import tempfile
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import numpy as np
import torch

from rung.dtypes import dtype as dtype_named
from rung.errors import RungError
from rung.rungs import catalogue, identity
from rung_reproduce import sources
from rung_reproduce.parallel import data, launch, pipeline, ring
from rung_reproduce.parallel.mpi_rank import Case, Job
from rung_reproduce.parallel.mpi_rank import run as run_ranks
from rung_reproduce.show import charts
from rung_reproduce.show.charts import Found
from rung_reproduce.studies.common import Runner, times
from rung_reproduce.studies.contestants import ON_A_GPU, SEQUENTIAL, Measured, on_a_gpu, sequential, truth, vectorised

LINEAR, TREE = "CUDA, linear softmax", "CUDA, tree softmax"
NODES = (1, 2, 4, 8, 16, 32, 64)
CORES = 64  # per node, as usual in clusters
COLOURS = ("ink", *charts.SERIES)


@dataclass(frozen=True)
class Options:
    """The command line's options."""

    n: tuple[int, ...] = (256, 512, 1024, 2048, 4096, 8192)
    d: int = 64
    heads: int = 1
    causal: bool = False
    data: Path | None = None
    seed: int = 0
    mpi: bool = False
    ranks: tuple[int, ...] = (1, 2)
    threads: int = 1  # per rank
    patience: float = 60.0

    def check(self) -> None:
        """Refuse impossible options."""
        if not self.n or min(self.n) < 1 or self.d < 1 or self.heads < 1:
            raise RungError("--n, --d and --heads are at least 1.")
        if min(self.ranks) < 1 or self.threads < 1 or self.patience <= 0:
            raise RungError("--ranks, --threads and --patience are positive.")

    def check_ranks(self, ranks: int) -> None:
        if ranks > min(self.n):
            raise RungError(f"{ranks} ranks are more than the {min(self.n)} rows of the sequence; use fewer ranks.")


def run(runner: Runner, **given: Any) -> Found:
    """Every implementation that this machine can run, on the same inputs; the others are listed. `given` are fields of
    `Options`.
    """
    options = Options(**given)
    options.check()
    if runner.quick:
        options = replace(options, n=tuple(n for n in options.n if n <= 1024) or options.n[:1])
    mpi_rows = ranked(options) if options.mpi else []
    measured: list[Measured] = []
    left_out: list[str] = []
    if not options.mpi:
        left_out.append("MPI (add --mpi)")
    if not runner.gpu:
        left_out.append(f"{', '.join(ON_A_GPU)} (no CUDA device)")
    left_out.append(_several_gpus())
    for n in options.n:
        qkv = data.load_or_make(options.data, n, options.d, options.heads, options.seed)
        right = truth(qkv, options.causal)
        limit = 0.2 if runner.quick else 1.0
        measured.append(sequential(qkv, right, causal=options.causal, limit=limit))
        for threads in sorted({1, os.cpu_count() or 1}):
            measured.append(vectorised(qkv, right, causal=options.causal, threads=threads, limit=limit))
        if runner.gpu:
            measured += [on_a_gpu(name, qkv, right, causal=options.causal) for name in ON_A_GPU]
    measured += [_as_measured(row) for row in mpi_rows if row["part"] == "sizes"]
    whole = found(options, measured, mpi_rows, left_out)
    if runner.gpu:
        whole.texts = {rung: identity.text(catalogue.find(rung)) for rung in ON_A_GPU.values()}
        units = 48 if runner.quick else 192
        rows = pipeline.measure(units=units, T=1024, HS=options.d, dtype=dtype_named("f32"), causal=options.causal)
        whole.more["pipeline"] = pipelined(rows, f"{units} heads of 1024 x {options.d}")
    return whole


def _several_gpus() -> str:
    count = torch.cuda.device_count()
    if count < 2:
        return f"the ring over several GPUs ({count} here, two are needed)"
    return "the ring over several GPUs (torchrun --nproc-per-node N -m rung_reproduce.parallel.nccl measures it)"


# --- MPI


def ranked(options: Options, size_of: Callable[[int, int], int] | None = None) -> list[dict[str, Any]]:
    """One row for each case and number of ranks. Launched here, or as a rank of the job that is running.

    `size_of` gives the size of the weakly scaled case from the largest size and the ranks.
    """
    if launch.inside_a_job():
        return _inside(options)
    problem = launch.available()
    if problem:
        raise RungError(problem)
    rows: list[dict[str, Any]] = []
    for ranks in options.ranks:
        options.check_ranks(ranks)
        with tempfile.TemporaryDirectory(prefix="rung-study-") as folder:
            results, job = Path(folder) / "results.json", Path(folder) / "job.json"
            replace(_job(options, ranks, size_of), results=str(results)).write(job)
            pairs = sum(c.n**2 for c in _cases(options, ranks, size_of)) * options.heads
            limit = options.patience + 120 + pairs / 1e6
            launch.run(["-m", "rung_reproduce.parallel.mpi_rank", str(job)], ranks, limit=limit)
            rows += _labelled(json.loads(results.read_text(encoding="utf-8")), options)
    return rows


def _inside(options: Options) -> list[dict[str, Any]]:
    """Only rank 0 returns; for the others the study ends here."""
    from rung_reproduce.parallel import mpi

    engine = mpi.engine()
    comm = engine.COMM_WORLD
    with mpi.report_once(comm):
        tasks = int(os.environ.get("SLURM_STEP_NUM_TASKS", "1"))
        if tasks > 1 and comm.size == 1:
            raise RungError(
                f"srun started {tasks} tasks that do not see each other; `srun --mpi=pmix` joins them for Open MPI, "
                "`--mpi=pmi2` for MPICH."
            )
        options.check_ranks(comm.size)
        rows = run_ranks(_job(options, comm.size), mpi.Ranks(comm, options.patience))
    rank = comm.rank
    engine.Finalize()  # now, since ranks that wait for the end of the job would keep cores busy
    if rank != 0:
        raise SystemExit(0)
    return _labelled(rows, options)


def _job(options: Options, ranks: int, size_of: Callable[[int, int], int] | None = None) -> Job:
    return Job(
        cases=_cases(options, ranks, size_of),
        d=options.d,
        heads=options.heads,
        seed=options.seed,
        data=str(options.data.resolve()) if options.data else None,
        threads=options.threads,
        repeats=3,
        patience=options.patience,
    )


def _cases(options: Options, ranks: int, size_of: Callable[[int, int], int] | None = None) -> list[Case]:
    """All sizes; with a mask, the largest also without zig-zag; then a size that grows with the ranks."""
    cases = [Case(n, options.causal) for n in options.n]
    if options.causal:
        cases.append(Case(max(options.n), True, placement="contiguous"))
    grown = size_of(max(options.n), ranks) if size_of else _weak(options, ranks)
    return [*cases, Case(grown, options.causal)]


def _weak(options: Options, ranks: int) -> int:
    """The same number of query-key pairs per rank for any number of ranks."""
    return int(sorted(options.n)[len(options.n) // 2] * math.sqrt(ranks) + 0.5)


def _labelled(rows: list[dict[str, Any]], options: Options) -> list[dict[str, Any]]:
    sizes = len(options.n)
    return [
        {**row, "part": "sizes" if i < sizes else "weak" if i == len(rows) - 1 else "contiguous"}
        for i, row in enumerate(rows)
    ]


def _as_measured(row: dict[str, Any]) -> Measured:
    name = f"MPI ring, {row['ranks']} rank{'s' * (row['ranks'] > 1)}"
    return Measured(row["n"], name, row["computing"], row["total"], None, row["error"])


# --- Report


def found(options: Options, measured: list[Measured], mpi_rows: list[dict[str, Any]], left_out: list[str]) -> Found:
    """The table of everything, and further tables and charts that follow from it."""
    by = {(m.name, m.n): m for m in measured}
    names = list(dict.fromkeys(m.name for m in measured))
    rows = [_row(m, by.get((SEQUENTIAL, m.n))) for m in sorted(measured, key=lambda m: (m.n, names.index(m.name)))]
    kind = "causal" if options.causal else "full"
    heads = f", {options.heads} heads" if options.heads > 1 else ""
    title = f"Attention ({kind}, d = {options.d}{heads}): time over N"

    def series(value: Any) -> list[charts.Series]:
        return [
            charts.Series(
                name,
                [(float(n), value(by.get((name, n)), n)) for n in sorted(options.n)],
                COLOURS[i % len(COLOURS)],
                dashed=i >= len(COLOURS),
            )
            for i, name in enumerate(names)
        ]

    def speed_up(m: Measured | None, n: int) -> float | None:
        base = by.get((SEQUENTIAL, n))
        return base.total / m.total if m and m.total and base and base.total else None

    whole = Found(
        title,
        ("N", "implementation", "computing ms", "total ms", "softmax ms", "speed-up", "error", "remark"),
        rows,
        sentence(options, by, names) + (f" Left out: {'; '.join(left_out)}." if left_out else ""),
        series(lambda m, n: m.total * 1e3 if m and m.total else None),
        "N (rows)",
        "ms, transfers included",
    )
    fast = Found(
        f"Attention ({kind}, d = {options.d}{heads}): speed-up over sequential C++",
        ("N", *names),
        [(n, *(_times(speed_up(by.get((name, n)), n)) for name in names)) for n in sorted(options.n)],
        "Totals are compared, transfers included.",
        series(speed_up),
        "N (rows)",
        "times as fast as sequential C++",
    )
    whole.more = {"speedup": fast}
    if any(m.softmax for m in measured):
        whole.more["softmax"] = softmax(by, sorted(options.n))
    if mpi_rows:
        whole.more |= scaling(options, mpi_rows)
    return whole


def _row(m: Measured, base: Measured | None) -> tuple[Any, ...]:
    speed = base.total / m.total if base and base.total and m.total else None
    return (
        m.n,
        m.name,
        _ms(m.computing),
        _ms(m.total),
        _ms(m.softmax),
        _times(speed),
        "" if m.error is None else f"{m.error:.1e}",
        m.reason,
    )


def _ms(seconds: float | None) -> str:
    return "" if seconds is None else f"{seconds * 1e3:.3f}"


def _times(factor: float | None) -> str:
    return "" if factor is None else f"{factor:.2f}x"


def sentence(options: Options, by: dict[tuple[str, int], Measured], names: Sequence[str]) -> str:
    """Which implementation is fastest at the largest size."""
    n = max(options.n)
    base = by.get((SEQUENTIAL, n))
    right = {name: m for name in names if (m := by.get((name, n))) and m.total}
    if not base or not base.total or len(right) < 2:
        return "Nothing could be compared here."
    best = min(right, key=lambda name: right[name].total or 0)
    return (
        f"At N = {n} the fastest is {best}, {times(base.total / (right[best].total or 1))} as fast as sequential "
        f"C++ with transfers; every time here is of a result that agrees with torch in float64."
    )


def softmax(by: dict[tuple[str, int], Measured], sizes: Sequence[int]) -> Found:
    """The softmax kernels inside attention, with the figures of the original project."""
    rows: list[tuple[Any, ...]] = []
    gains: list[tuple[float, float | None]] = []
    source: list[tuple[float, float | None]] = []
    for n in sizes:
        linear, tree = (by.get((name, n)) for name in (LINEAR, TREE))
        if not (linear and tree and linear.softmax and tree.softmax):
            continue
        theirs = sources.softmax().get(n)
        gains.append((float(n), linear.softmax / tree.softmax))
        source.append((float(n), theirs[2] if theirs else None))
        rows.append((n, _ms(linear.softmax), _ms(tree.softmax), _times(gains[-1][1]), *map(_times, (source[-1][1],))))
    ends = f"{gains[0][1]:.2f}x at {gains[0][0]:g}, {gains[-1][1]:.2f}x at {gains[-1][0]:g}" if gains else ""
    return Found(
        "The softmax inside attention: linear against tree",
        ("N", "linear ms", "tree ms", "tree gains", "source's tree gains"),
        rows,
        f"The tree gains {ends}; the source saw 5.07x at 256 and 1.80x at 8192.",
        [charts.Series("here", gains, "f32"), charts.Series("the source", source, "library", dashed=True)],
        "N (rows)",
        "linear time / tree time",
        log_y=False,
    )


def pipelined(rows: Sequence[pipeline.Pipelined], what: str) -> Found:
    """Chunks over streams against everything at once, and against the busiest part alone; the first row is serial."""
    serial = rows[0]
    best = min(rows[1:], key=lambda r: r.seconds)
    table = [
        (
            "all at once" if r is serial else r.chunk,
            r.streams,
            _ms(r.seconds),
            _times(serial.seconds / r.seconds),
            *map(_ms, (r.overlap.copying_in, r.overlap.computing, r.overlap.copying_out, r.overlap.bound)),
            f"{r.overlap.reached:.0%}",
        )
        for r in rows
    ]
    streams = sorted({r.streams for r in rows[1:]})
    curves = [
        charts.Series(
            f"{s} streams",
            [(float(r.chunk), r.seconds * 1e3) for r in sorted(rows[1:], key=lambda r: r.chunk) if r.streams == s],
            COLOURS[1 + i % len(charts.SERIES)],
        )
        for i, s in enumerate(streams)
    ]
    ends = [float(min(r.chunk for r in rows[1:])), float(max(r.chunk for r in rows[1:]))]
    curves += [
        charts.Series("serial", [(x, serial.seconds * 1e3) for x in ends], "muted", dashed=True),
        charts.Series("bound", [(x, serial.overlap.bound * 1e3) for x in ends], "limit", dashed=True),
    ]
    return Found(
        f"Pipelining over streams: {what}, copies included",
        ("chunk", "streams", "total ms", "speed-up", "in ms", "compute ms", "out ms", "bound ms", "overlap"),
        table,
        f"Chunks of {best.chunk} over {best.streams} streams take {best.seconds * 1e3:.3f} ms, "
        f"{serial.seconds / best.seconds:.2f} times as fast as all at once; the busiest part alone takes "
        f"{serial.overlap.bound * 1e3:.3f} ms. Every bit of the result is the same.",
        curves,
        "units in a chunk",
        "ms, copies included",
    )


def scaling(options: Options, rows: list[dict[str, Any]]) -> dict[str, Found]:
    """Strong and weak scaling: measured on this machine, and forecast by the model for many nodes."""
    n = max(options.n)
    strong = {r["ranks"]: r for r in rows if r["part"] == "sizes" and r["n"] == n}
    weak = {r["ranks"]: r for r in rows if r["part"] == "weak"}
    fewest = min(strong)
    node = ring.Node(pairs=rate(strong[fewest], options))
    cores = os.cpu_count() or 1
    parts = {
        "strong": _scaling(
            f"Strong scaling of the MPI ring at N = {n}",
            {r: (n, strong.get(r)) for r in sorted({*NODES, *strong})},
            node,
            options,
            fewest,
            weak=False,
        ),
        "weak": _scaling(
            "Weak scaling of the MPI ring: N grows with the root of the ranks, as many pairs for each",
            {r: (_weak(options, r), weak.get(r)) for r in sorted({*NODES, *weak})},
            node,
            options,
            fewest,
            weak=True,
        ),
    }
    for part in parts.values():
        part.finding += (
            f" Measured: ranks that share one machine of {cores} cores, {options.threads} thread(s) each, other load "
            f"included. Forecast: nodes like one such rank, {node.pairs / 1e6:.0f} M pairs per second, or of {CORES} "
            f"such; a message in {node.latency * 1e6:g} us + {node.bandwidth / 1e9:g} GB/s on a wire of its own, while "
            "both ends compute."
        )
    return parts


def rate(row: dict[str, Any], options: Options) -> float:
    """Measured query-key pairs per second of one rank."""
    rows = ring.place(row["placement"], row["n"], row["ranks"])
    pairs = ring.pairs(rows, options.causal).sum(axis=1) * options.heads
    return float(np.mean([p / r["work"] for p, r in zip(pairs, row["per_rank"], strict=True)]))


def _scaling(
    title: str,
    sizes: dict[int, tuple[int, dict[str, Any] | None]],
    node: ring.Node,
    options: Options,
    fewest: int,
    *,
    weak: bool,
) -> Found:
    rows: list[tuple[Any, ...]] = []
    measured: list[tuple[float, float | None]] = []
    expected: list[tuple[float, float | None]] = []
    large: list[tuple[float, float | None]] = []
    many_cores = replace(node, pairs=node.pairs * CORES)
    for ranks, (n, row) in sizes.items():
        if n < ranks:
            continue
        guess, wide = (
            ring.forecast(one, n=n, d=options.d, heads=options.heads, ranks=ranks, causal=options.causal)
            for one in (node, many_cores)
        )
        expected.append((float(ranks), guess.seconds * 1e3))
        large.append((float(ranks), wide.seconds * 1e3))
        computing = row["computing"] if row else None
        measured.append((float(ranks), computing * 1e3 if computing else None))
        hidden = _hidden(row) if row else None
        shown = "" if hidden is None else f"{hidden:.0%}"
        working = "" if row is None else f"{max(r['work'] for r in row['per_rank']) / row['computing']:.0%}"
        forecasts = (cell for f in (guess, wide) for cell in (_ms(f.seconds), f"{f.busy:.0%}"))
        rows.append((ranks, n, _ms(computing), working, shown, *forecasts))
    first = next((v for r, v in measured if r == fewest), None)
    last = max((r for r, v in measured if v), default=0)
    at_last = dict(measured).get(last)
    text = f"{last:g} ranks take {at_last / first:.2f} of the time of {fewest}" if first and at_last else ""
    text += " for as many times the work; " if weak else "; "
    nodes, one, many = expected[-1][0], expected[0][1] or 0.0, expected[-1][1] or 1.0
    if weak:
        text += f"on {nodes:g} nodes {many / one:.2f} of one's time is expected."
    else:
        wide_gain = (large[0][1] or 0.0) / (large[-1][1] or 1.0)
        text += f"on {nodes:g} nodes {one / many:.3g} times the speed of one is expected, and {wide_gain:.3g} times "
        text += f"where a node has {CORES} such cores, and sooner waits for its messages."
    return Found(
        title,
        (
            *("ranks", "N", "measured ms", "of it working", "messages hidden"),
            *("forecast ms", "busy", f"{CORES} cores ms", f"{CORES} cores busy"),
        ),
        rows,
        text,
        [
            charts.Series("measured here", measured, "f32"),
            charts.Series("forecast", expected, "limit", dashed=True),
            charts.Series(f"forecast, nodes of {CORES} cores", large, "bf16", dashed=True),
        ],
        "ranks",
        "ms, computing",
    )


def _hidden(row: dict[str, Any]) -> float | None:
    """The part of the communication time that overlaps computing."""
    passing = sum(r["passing"] for r in row["per_rank"])
    exposed = sum(r["exposed"] for r in row["per_rank"])
    return None if passing == 0 else 1 - min(1.0, exposed / passing)
