"""Predicted times beside measured ones: docs/time.md, and the errors that predictions are shown with."""

from __future__ import annotations

import math
import statistics
from collections import defaultdict
from collections.abc import Callable, Iterable, Mapping, Sequence
from functools import partial
from typing import NamedTuple

import counter_tables
from rung.profile.prediction import Error
from rung.results import codes, current
from rung.results.row import Row
from rung.rungs import catalogue
from rung_reproduce.show import markdown

CLASSES = ("plain", "mma.sync", "wgmma, TMA", "blocks that wait for blocks")
_SAMPLES = 100  # of a kernel, from which its largest share is known
_LEAST = 5  # rungs of a ladder whose order is compared


class Pair(NamedTuple):
    """A rung's time, predicted and measured."""

    row: Row
    gpu: str
    ladder: str
    kind: str
    predicted: float
    measured: float

    @property
    def off(self) -> float:
        return abs(self.predicted / self.measured - 1)


def half(ladder: str) -> str:
    """Ladders at even places of the alphabet may be looked at to fit constants; the others may not."""
    return ("fitted", "held")[sorted(catalogue.operations()).index(ladder) % 2]


def parts(rows: Sequence[Row]) -> dict[str, Callable[[], str]]:
    """The page's generated parts."""
    found = pairs([r for r in rows if r.kind == "prediction" and codes.current(r)], rows)
    return {
        "time:errors": partial(by_class, found),
        "time:order": partial(order, found),
        "time:stalls": partial(stalls, rows),
        "time:worst": partial(worst, found),
    }


def pairs(predicted: Iterable[Row], rows: Iterable[Row]) -> list[Pair]:
    """The newest prediction of each rung beside the measured time of the same code."""
    figures = current.by_gpu(list(rows))
    newest = {(r.options["predicted"], counter_tables.launches(r)): r for r in predicted if r.verdict == "ok"}
    found = []
    for gpu, of in figures.items():
        for ladder in catalogue.operations():
            for figure in counter_tables.headline(of, ladder):
                row = newest.get((gpu, counter_tables.launches(figure.row)))
                if row:
                    kind, us = row.detail["class"], row.metrics["predicted_us"]
                    found.append(Pair(row, str(gpu), ladder, kind, us, figure.us))
    return found


def error(some: Sequence[Pair]) -> Error:
    off = sorted(p.off for p in some)
    ninetieth = off[min(len(off) - 1, round(0.9 * (len(off) - 1)))]
    return Error(len(off), statistics.mean(off), statistics.median(off), ninetieth, off[-1])


def errors(predicted: Iterable[Row], rows: Iterable[Row]) -> dict[str, Error]:
    """Of each class, on ladders on which nothing was fitted, whichever GPU."""
    found = [p for p in pairs(predicted, rows) if half(p.ladder) == "held"]
    return {kind: error(some) for kind in CLASSES if (some := [p for p in found if p.kind == kind])}


def by_class(found: Sequence[Pair]) -> str:
    lines = []
    for gpu in sorted({p.gpu for p in found}, reverse=True):
        for side in ("held", "fitted"):
            for kind in CLASSES:
                some = [p for p in found if (p.gpu, half(p.ladder), p.kind) == (gpu, side, kind)]
                if some:
                    e, cpu = error(some), statistics.median(p.row.metrics["cpu_s"] for p in some)
                    shares = (f"{x:.0%}" for x in (e.mean, e.median, e.ninetieth, e.worst))
                    lines.append((gpu, side, kind, str(e.rungs), *shares, f"{cpu:.1f}"))
    heads = ("GPU", "ladders", "class", "rungs", "mean error", "median", "90th percentile", "worst", "CPU s, median")
    return markdown.table(heads, lines) if lines else "\nNot predicted yet.\n\n"


def order(found: Sequence[Pair]) -> str:
    """Kendall's tau of the rungs of a ladder by predicted and by measured time."""
    of: dict[tuple[str, str], list[Pair]] = defaultdict(list)
    for pair in found:
        of[pair.gpu, pair.ladder].append(pair)
    lines = []
    for (gpu, ladder), some in sorted(of.items(), reverse=True):
        if len(some) >= _LEAST:
            tau = kendall([p.predicted for p in some], [p.measured for p in some])
            lines.append((gpu, ladder, half(ladder), str(len(some)), f"{tau:.2f}"))
    return markdown.table(("GPU", "ladder", "", "rungs", "Kendall's tau"), lines) if lines else "\nNone.\n\n"


def worst(found: Sequence[Pair], most: int = 12) -> str:
    lines = [
        (p.row.what, p.gpu, half(p.ladder), p.kind, f"{p.predicted:.3g}", f"{p.measured:.3g}")
        for p in sorted(found, key=lambda p: -p.off)[:most]
    ]
    return markdown.table(("rung", "GPU", "ladders", "class", "predicted, us", "measured, us"), lines)


def stalls(rows: Iterable[Row]) -> str:
    """How often the largest share of a kernel's stalls is where Nsight Compute's samples have it."""
    right: dict[tuple[str, str], list[tuple[bool, ...]]] = defaultdict(list)
    for row in rows:
        if row.kind != "stalls" or not codes.current(row):
            continue
        kernels = {k["kernel"]: k for k in row.detail["kernels"] if k["samples"] >= _SAMPLES}
        for kernel in kernels.values():
            ours, theirs = kernel["ours"], {at: n for at, n in kernel["theirs"].items() if not at.endswith(" other")}
            if theirs:
                three = sorted(ours, key=lambda at: -ours[at])[:3]
                parts = (_first(_by(ours, part)) == _first(_by(theirs, part)) for part in (0, 1))
                agree = (*parts, three[0] == _first(theirs), _first(theirs) in three)
                right[row.options["predicted"], half(row.what.partition("/")[0])].append(agree)
    heads = ("GPU", "ladders", "kernels", "line", "reason", "line and reason", "Nsight's is in our three")
    lines = [
        (*of, str(len(some)), *(f"{statistics.mean(one[i] for one in some):.0%}" for i in range(4)))
        for of, some in sorted(right.items(), reverse=True)
    ]
    return markdown.table(heads, lines) if lines else "\n\n"


def _by(shares: Mapping[str, float], part: int) -> dict[str, float]:
    """By line (0) or by reason (1)."""
    found: dict[str, float] = defaultdict(float)
    for at, share in shares.items():
        found[at.split()[part]] += share
    return found


def _first(shares: Mapping[str, float]) -> str:
    return max(shares, key=lambda at: shares[at])


def kendall(a: Sequence[float], b: Sequence[float]) -> float:
    """Kendall's tau-b of two orders; pairs that are equal on one side count half."""
    pairs = [(i, j) for i in range(len(a)) for j in range(i)]
    signs = [((a[i] > a[j]) - (a[i] < a[j]), (b[i] > b[j]) - (b[i] < b[j])) for i, j in pairs]
    left, right = sum(x != 0 for x, _ in signs), sum(y != 0 for _, y in signs)
    return sum(x * y for x, y in signs) / math.sqrt(left * right) if left and right else 0.0
