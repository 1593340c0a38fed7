"""How long a counted launch takes beside a plain one: python3 benchmarks/counting_speed.py [-o FILE] [RUNG ...]

Every CUDA rung on the emulator, at its largest shape or case of so much work; CPU seconds, the least of two. The row
goes to the store (or -o).
"""

from __future__ import annotations

import argparse
import contextlib
import statistics
import sys
import time
from pathlib import Path

import torch

import gpuless
from rung.check.operands import Operands
from rung.dtypes import dtype
from rung.errors import RungError
from rung.profile import emulated
from rung.profile.counted import PATIENCE
from rung.results import machine, store
from rung.results.row import Row
from rung.rungs import catalogue
from rung.rungs.base import Rung, Subject

TIMES = 2


def seconds(subject: Subject, counting: bool) -> float:
    """Of CPU time, of all launches of a rung, compiled before."""
    rung, values, real = subject.rung, subject.values, subject.dtype
    operands = Operands(rung.operation, values, real, rung.operand_names, 1, device="cpu")
    found = []
    with contextlib.ExitStack() as here:
        here.enter_context(gpuless.under(counters=counting, poison=False, seconds=PATIENCE))
        if counting:
            here.enter_context(gpuless.current().recorded())
        prepared = rung.prepare(operands.tensors, values, real, device="emulator")
        for _ in range(TIMES + 1):
            began = time.process_time()
            prepared.run()
            found.append(time.process_time() - began)
    return min(found[1:])


def of(rung: Rung, most: float) -> Subject:
    """The rung at its operation's largest shape or case of so much work, or at the smallest."""
    kind, operation = dtype(rung.dtypes[0]), rung.operation
    every = [*operation.shapes.items(), *(("", case.values) for case in operation.cases if kind.name in case.dtypes)]
    fitting: list[tuple[float, int, Subject]] = []
    for shape, dims in every:
        with contextlib.suppress(RungError):
            subject = Subject(rung, shape, operation.complete(dims), kind)
            if rung.refused_by_needs(subject.values, kind, None) is None:
                fitting.append((emulated.work(subject, subject.values), len(fitting), subject))
    return max((f for f in fitting if f[0] <= most), default=min(fitting))[2]


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("rungs", nargs="*", default=[""], help="beginnings of names (default: all)")
    parser.add_argument("-o", "--output", type=Path, help="the file of rows (default: the store)")
    parser.add_argument("--work", type=float, default=1e7, help="most operations and numbers of a shape (default: 1e7)")
    chosen = parser.parse_args()
    torch.set_num_threads(1)
    every: list[Rung] = [rung for name in catalogue.operations() for rung in catalogue.select(name, None)]
    ratios: dict[str, float] = {}
    for rung in every:
        if rung.kind != "cuda" or not rung.full_name.startswith(tuple(chosen.rungs)):
            continue
        try:
            subject = of(rung, chosen.work)
            plain = seconds(subject, False)
            ratios[rung.full_name] = seconds(subject, True) / plain
        except RungError as error:
            print(f"{rung.full_name}: {error}", flush=True)
            continue
        where = subject.shape or subject.values
        print(f"{rung.full_name} {where}: {plain:.3f} s, {ratios[rung.full_name]:.1f} times", flush=True)
    by_ratio = sorted(ratios, key=lambda name: ratios[name])
    metrics = {"rungs": len(ratios), "median": statistics.median(ratios.values()), "worst": ratios[by_ratio[-1]]}
    metrics["within_6"] = sum(ratio <= 6 for ratio in ratios.values())
    facts = {**machine.facts(), "gpu": ""}
    row = Row(kind="study", what="counters/speed", verdict="ok", metrics=metrics, machine=facts)
    store.append(row, chosen.output or store.default_path())
    print(metrics, by_ratio[-5:])
    return 0


if __name__ == "__main__":
    sys.exit(main())
