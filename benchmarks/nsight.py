"""Nsight Compute's counters that the emulator counts as well: python3 benchmarks/nsight.py -o FOLDER --seconds 280

On a GPU: the twenty kernels of unseen.cu, compared at once, and every CUDA rung at two shapes that has no such row yet,
kernels that use shared memory first. ncu collects only what is compared, several rungs in one process. Rows go to
profile.jsonl in the folder; counters.py counts them, which needs no GPU. They lack a profile's other figures: do not
publish them over rows that have these.
"""

from __future__ import annotations

import argparse
import os
import subprocess
import sys
import time
from collections.abc import Iterable, Iterator, Sequence
from pathlib import Path

import torch

import counter_tables
import gpuless
from gpuless import Settings, load
from gpuless.compile.source import kernels_in
from gpuless.counts.counters_explained import figures
from gpuless.launch import Build, LaunchConfig, Module
from rung.dtypes import dtype
from rung.errors import RungError
from rung.profile import ncu
from rung.profile.counters import LANES, OPCODES, SINGLE, as_result, command, launched, report, split
from rung.results import codes, store
from rung.results.row import Row
from rung.rungs import catalogue
from rung.rungs.base import Rung, Subject

COUNTED = (  # those that the emulator counts as well
    "global_loads", "global_stores", "global_read_requests", "global_write_requests", "global_read_bytes",
    "global_write_bytes", "shared_loads", "shared_stores", "wavefronts_load", "wavefronts_store", "conflicts_load",
    "conflicts_store", "passes_load", "passes_store", "ideal_passes", "bytes_used_load", "bytes_used_store", "fadd",
    "fmul", "ffma", "hmma", "gmma", "instructions",
)  # fmt: skip
METRICS = (OPCODES, LANES, *(SINGLE[name] for name in COUNTED))
UNSEEN = Path(__file__).with_name("unseen.cu")
N, BLOCK = 1 << 14, {"distances": 128}
TOGETHER = 10  # rungs in one process


def subjects(names: Sequence[str]) -> Iterator[Subject]:
    """Each CUDA rung at its two smallest shapes of more than one token."""
    for name in catalogue.operations():
        for rung in catalogue.select(name, None):
            if rung.kind == "cuda" and rung.full_name.startswith(tuple(names)):
                yield from _small(rung)


def unmeasured(every: Iterable[Subject]) -> list[Subject]:
    """Those without a stored row of all figures: kernels that use shared memory, then those that have no row at all."""
    stored: dict[tuple[str, str, str], list[Row]] = {}
    for row in store.published():
        if row.kind == "profile" and row.verdict == "ok" and codes.current(row):
            stored.setdefault((row.what, row.dtype, row.shape), []).append(row)
    chosen = []
    for subject in every:
        rows = stored.get((subject.rung.full_name, subject.dtype.name, subject.shape), [])
        found = [kernel["figures"] for row in rows for kernel in row.detail["kernels"]]
        if not any("passes_load" in figures for figures in found):
            shared = any(figures.get(f"wavefronts_{way}") for figures in found for way in ("load", "store"))
            chosen.append((0 if shared else 2 if rows else 1, subject))
    return [subject for _, subject in sorted(chosen, key=lambda one: one[0])]


def _small(rung: Rung, most: int = 2) -> Iterator[Subject]:
    kind = dtype(rung.dtypes[0])
    fitting = []
    for shape, dims in rung.operation.shapes.items():
        try:
            values = rung.operation.complete(dims)
            cost = rung.operation.cost(values, kind.size)
            if shape != "b1t1" and rung.refused_by_needs(values, kind, None) is None:
                fitting.append((cost.flops + cost.bytes, Subject(rung, shape, values, kind)))
        except RungError:
            continue
    yield from (subject for _, subject in sorted(fitting, key=lambda one: one[0])[:most])


def profiled(chosen: Sequence[Subject], deadline: float) -> Iterator[Row]:
    """ncu's figures of the rungs; those for which time is left."""
    start, pace = 0, 1.5  # seconds a launch
    while start < len(chosen):
        began = time.monotonic()
        left = deadline - began
        if left < 20:
            print(f"no time for {len(chosen) - start} launches", flush=True)
            return
        some = [(subject, None) for subject in chosen[start : start + min(TOGETHER, int(left / pace))]]
        start += len(some)
        try:
            found = split(launched(some, timeout=min(left, 90.0), metrics=METRICS), len(some))
        except RungError as error:
            print(f"{some[0][0].rung.full_name} and others: {error}", flush=True)
            continue
        pace = (time.monotonic() - began) / len(some)
        for (subject, _), launches in zip(some, found, strict=True):
            if launches:
                yield as_result(subject, None, report(subject, launches))


def compiled(chosen: Sequence[Subject], seconds: float) -> None:
    """The cubins of all, by several processes at once, so that none is compiled under ncu."""
    parts = [chosen[start::12] for start in range(12)]
    running = [
        subprocess.Popen(command([(s, None) for s in part]), stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)
        for part in parts
        if part
    ]
    deadline = time.monotonic() + seconds
    for process in running:
        try:
            process.wait(max(0.0, deadline - time.monotonic()))
        except subprocess.TimeoutExpired:
            process.kill()


def launch_unseen(device: str) -> None:
    """The twenty kernels, on a GPU with a marker before each, or on the emulator."""
    source = UNSEEN.read_text()
    build = Build(source, UNSEEN.name, kernels_in(source), ())
    module: Module
    if device == "cuda":
        from rung.cuda.driver import load_module

        module = load_module(build)
        torch.cuda.profiler.start()  # type: ignore[no-untyped-call]
    else:
        module = load(build, settings=Settings(counters=True, poison=False))
    a = torch.linspace(-3, 3, 2 * N, device="cuda" if device == "cuda" else "cpu")
    for kernel in build.kernels:
        out = torch.zeros(2 * N, device=a.device)
        block = BLOCK.get(kernel, 256)
        per_block = block * (2 if kernel == "butterflies" else 4 if "swizzled" in kernel else 1)
        config = LaunchConfig((N // per_block, 1, 1), (block, 1, 1))
        if device == "cuda":
            torch.cuda._sleep(1)  # type: ignore[no-untyped-call]
        module.prepare(kernel, config)
        module.launch(kernel, config, [("pointer", a), ("pointer", out), ("i32", N)])
    if device == "cuda":
        torch.cuda.synchronize()
        torch.cuda.profiler.stop()  # type: ignore[no-untyped-call]


def unseen() -> list[counter_tables.Pair]:
    """The figures of the twenty kernels on both sides."""
    with gpuless.current().recorded() as emulated:
        launch_unseen("emulator")
    found = ncu.run([sys.executable, __file__, "--launch"], METRICS, timeout=120)
    ours_only = set(kernels_in(UNSEEN.read_text()))  # not those by which torch fills tensors
    launches = [launch for launch in found if launch.kernel.partition("(")[0] in ours_only]
    pairs: list[counter_tables.Pair] = []
    for ours, theirs in zip(emulated, launches, strict=False):
        measured = {name: theirs.metrics[m] for name, m in SINGLE.items() if m in theirs.metrics}
        opcodes = dict(theirs.parts.get(OPCODES, {}))
        pairs += counter_tables.compared("unseen", ours.kernel, measured, opcodes, figures(ours))
    return pairs


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("rungs", nargs="*", default=[""], help="beginnings of names (default: all)")
    parser.add_argument("-o", "--output", type=Path, default=Path(os.environ.get("OUT", ".")))
    parser.add_argument("--seconds", type=float, default=280)
    parser.add_argument("--most", type=int, help="launches of rungs (default: as many as time allows)")
    parser.add_argument("--launch", action="store_true", help="only launch unseen.cu (under ncu)")
    asked = parser.parse_args()
    if asked.launch:
        launch_unseen("cuda")
        return 0
    began = time.monotonic()
    deadline = began + asked.seconds
    try:
        every = unseen()
        print(counter_tables.agreement(every), counter_tables.others(every), sep="\n", flush=True)
    except (RungError, OSError) as error:
        print(f"unseen.cu: {error}", flush=True)
    chosen = unmeasured(subjects(asked.rungs or [""]))[: asked.most]
    compiled(chosen, asked.seconds / 4)
    print(f"{len(chosen)} launches are compiled after {time.monotonic() - began:.0f} s", flush=True)
    rows = [store.append(row, asked.output / "profile.jsonl") for row in profiled(chosen, deadline)]
    print(f"{len(rows)} launches are profiled after {time.monotonic() - began:.0f} s", flush=True)
    every = list(counter_tables.pairs([*(r for r in store.published() if r.kind == "count"), *rows]))
    print(counter_tables.agreement(every), flush=True)
    return 0


if __name__ == "__main__":
    sys.exit(main())
