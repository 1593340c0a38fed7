"""The figures to show: the newest result of each rung, number format and shape."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from functools import cached_property
from typing import Any

from gpuless.facts import gpus
from rung.dtypes import DTYPES
from rung.errors import RungError
from rung.operation import Cost, Operation
from rung.results import codes, machine
from rung.results.row import Row, newest
from rung.rungs import catalogue
from rung.rungs.base import Rung

HEADLINE = "b8t1024"  # GPT-2 at eight sequences of 1024 tokens
SMALL = "b4t64"
# A copy of less than this fits into L2 at least in part, and does not measure memory bandwidth.
LARGE = 256e6
TOO_SLOW = "too slow"  # the verdict of a rung that was left out because of its forecast


@dataclass(frozen=True)
class Limits:
    """A GPU's limits: bytes/s and FLOP/s by number format, measured and by its data sheet."""

    gpu: str
    bytes: float
    flops: Mapping[str, float]
    sheet: Mapping[str, float]

    def rate(self, dtype: str, products: str = "") -> float | None:
        """FLOP/s of products in this format: as measured, or by the data sheet for a format that is not measured."""
        measured = machine.rate(self.flops, dtype, products)
        return machine.rate(self.sheet, dtype, products) if measured is None and products else measured

    def share(self, flops: float, size: float, seconds: float, dtype: str, products: str = "") -> float:
        """Share of the nearer of the two ceilings."""
        rate = self.rate(dtype, products)
        shares = [size / seconds / self.bytes] if self.bytes else []
        shares += [flops / seconds / rate] if rate else []
        return max(shares, default=0.0)


@dataclass(frozen=True)
class Figure:
    """One rung's time at one shape and number format, of the present code."""

    row: Row
    rung: Rung
    share: float  # of the measured limit
    bound: str  # "memory" or "compute": which ceiling is the nearer one

    @property
    def name(self) -> str:
        return self.rung.name

    @property
    def us(self) -> float:
        return self.row.metrics["cold_us"]

    @property
    def library(self) -> bool:
        return self.rung.kind == "library"

    @property
    def ratio(self) -> float | None:
        """The best library's time over ours, of the same race."""
        return self.row.metrics.get("vs_library")


@dataclass
class Ladder:
    """The figures of one operation on one GPU."""

    operation: Operation
    rungs: Sequence[Rung]
    found: dict[tuple[str, str, str], Figure] = field(default_factory=dict)  # rung, dtype, shape
    too_slow: dict[tuple[str, str, str], str] = field(default_factory=dict)  # the forecast instead of a time
    changed: dict[tuple[str, str, str], str] = field(default_factory=dict)  # instead of a time: the day it was measured

    def get(self, rung: str, dtype: str, shape: str) -> Figure | None:
        return self.found.get((rung, dtype, shape))

    def instead(self, rung: str, dtype: str, shape: str) -> str:
        """The text in place of a time: a forecast, or the date since which the code differs; usually empty."""
        key = (rung, dtype, shape)
        since = f"code changed since {self.changed[key]}" if key in self.changed else ""
        return self.too_slow.get(key) or since

    def dtypes(self) -> list[str]:
        return [d for d in DTYPES if any(k[1] == d for k in self.found)]

    def shapes(self, dtype: str | None = None) -> list[str]:
        """Shapes in the operation's order, written-out ones last."""
        seen = {k[2] for k in self.found if dtype in (None, k[1])}
        return [s for s in self.operation.shapes if s in seen] + sorted(seen - set(self.operation.shapes))

    def headline(self, dtype: str | None = None) -> str:
        """A ladder's headline shape: GPT-2's usual one, else the largest that most rungs were timed at."""
        shapes = self.shapes(dtype)
        count = Counter(k[2] for k in self.found if dtype in (None, k[1]))
        return HEADLINE if HEADLINE in shapes else max(shapes, key=lambda s: (count[s], self._work(s)))

    def ours(self, dtype: str | None = None) -> tuple[str, str, list[Figure]]:
        """The dtype (bf16 or f32 preferred if none is given), its headline shape, and the rungs' figures there."""
        dtype = dtype or next(d for d in ("bf16", "f32", *self.dtypes()) if d in self.dtypes())
        shape = self.headline(dtype)
        return dtype, shape, [f for f in self.column(dtype, shape) if not f.library]

    def few_shapes(self, dtype: str, most: int = 3) -> list[str]:
        """The headline, the usual small shape, the largest and the smallest, as many as wanted, by their work."""
        shapes = sorted(self.shapes(dtype), key=self._work)
        ranked = dict.fromkeys([self.headline(dtype), SMALL, shapes[-1], shapes[0], *shapes])
        chosen = [s for s in ranked if s in shapes][:most]
        return [s for s in shapes if s in chosen]

    def column(self, dtype: str, shape: str) -> list[Figure]:
        """The figures of the ladder in its order, libraries last."""
        return [f for r in self.rungs if (f := self.get(r.full_name, dtype, shape))]

    def libraries(self, dtype: str, shape: str) -> list[Figure]:
        return [f for f in self.column(dtype, shape) if f.library]

    def best_library(self, dtype: str, shape: str) -> Figure | None:
        return min(self.libraries(dtype, shape), key=lambda f: f.us, default=None)

    def _work(self, shape: str) -> float:
        row = next(f.row for k, f in self.found.items() if k[2] == shape)
        cost = self.operation.cost(dict(row.values), 4)
        return cost.flops + 10 * cost.bytes


@dataclass
class Figures:
    """Everything measured on one GPU, of the present code."""

    gpu: str
    results: list[Row]

    @cached_property
    def limits(self) -> Limits:
        """The highest measured ceilings, including the rates of the `copy` ladder."""
        size, flops = 0.0, dict[str, float]()
        for row in self.results:
            if row.kind == "ceilings":
                size = max(size, row.metrics["copy_bytes_per_s"])
                rates = {d: row.metrics[f"{d}_flops"] for d in DTYPES if f"{d}_flops" in row.metrics}
                flops |= {d: max(rate, flops.get(d, 0.0)) for d, rate in rates.items()}
            elif row.kind == "bench" and row.timed and row.operation == "copy":
                rate = row.metrics["gbps"] * 1e9
                size = max(size, rate if rate * row.metrics["cold_us"] / 1e6 >= LARGE else 0.0)
        return Limits(self.gpu, size, flops, gpus.rates(self.gpu))

    @cached_property
    def _bench(self) -> list[Row]:
        return [r for r in self.results if r.kind == "bench"]

    def names(self) -> list[str]:
        """The ladders with measurements."""
        seen = {r.operation for r in self._bench if r.timed and codes.current(r)}
        return [n for n in catalogue.operations() if n in seen]

    def ladder(self, name: str) -> Ladder:
        """The newest figure of each rung's present code."""
        ladder = Ladder(catalogue.operation(name), catalogue.rungs(name))
        rungs = {r.full_name: r for r in ladder.rungs}
        for row in sorted(self._bench, key=lambda r: r.time):
            rung = rungs.get(row.what)
            if row.operation != name or rung is None:
                continue
            key = (row.what, row.dtype, row.shape)
            if not codes.current(row):
                ladder.changed[key] = row.time[:10]
                continue
            for known in (ladder.found, ladder.too_slow):
                known.pop(key, None)
            if row.timed:
                ladder.found[key] = self._figure(row, rung, ladder.operation)
            elif row.verdict == TOO_SLOW:
                seconds = row.metrics.get("forecast_s", 0.0)
                ladder.too_slow[key] = f"about {seconds:.0f} s" if seconds >= 1 else "under 1 s"
        for key in {**ladder.found, **ladder.too_slow}:
            ladder.changed.pop(key, None)
        return ladder

    def of_kind(self, kind: str, operation: str | None = None) -> list[Row]:
        """The newest rows of another kind, such as "sweep" or "study", of the present code."""
        return [r for r in self._newest(kind, operation) if codes.current(r)]

    def changed(self, kind: str) -> list[Row]:
        """The newest rows of a kind that belong to other code: tables show the date instead."""
        return [r for r in self._newest(kind) if not codes.current(r)]

    def _newest(self, kind: str, operation: str | None = None) -> list[Row]:
        return newest(r for r in self.results if r.kind == kind and operation in (None, r.operation))

    @property
    def machine(self) -> Mapping[str, Any]:
        """The machine, as the newest time describes it, else the newest result."""
        described = max(self._bench or self.results, key=lambda r: r.time, default=None)
        return described.machine if described else {}

    def _figure(self, row: Row, rung: Rung, operation: Operation) -> Figure:
        cost = cost_of(row, rung, operation)
        seconds = row.metrics["cold_us"] / 1e6
        rate = self.limits.rate(row.dtype, rung.products)
        compute = rate is not None and cost.flops / rate > cost.bytes / (self.limits.bytes or 1.0)
        share = self.limits.share(cost.flops, cost.bytes, seconds, row.dtype, rung.products)
        return Figure(row, rung, share, "compute" if compute else "memory")


def cost_of(row: Row, rung: Rung, operation: Operation) -> Cost:
    """The minimum that the rung must compute and move."""
    return operation.cost_with(dict(row.values), DTYPES[row.dtype], rung.binds)


def by_gpu(results: Iterable[Row]) -> dict[str, Figures]:
    """The results of each GPU separately, the one with the most first; those of a CPU are under ''."""
    found: dict[str, Figures] = {}
    for row in results:
        found.setdefault(row.gpu, Figures(row.gpu, [])).results.append(row)
    return dict(sorted(found.items(), key=lambda item: (item[0] == "", -len(item[1].results))))


def of_gpu(results: Sequence[Row], part: str | None) -> Figures:
    """The figures of the GPU whose name contains `part`; by default, of the one with most results."""
    found = by_gpu(results)
    for gpu, figures in found.items():
        if part is None or part.lower() in gpu.lower():
            return figures
    known = ", ".join(g for g in found if g) or "none"
    raise RungError(f"no result was measured on a GPU named {part!r}; there are results of {known}.")


def time_text(us: float) -> str:
    """Microseconds with three significant digits, or all integer digits, in groups of three."""
    if us < 9.995:
        return f"{us:.2f}"
    return f"{us:.1f}" if us < 99.95 else f"{us:,.0f}"


def percent(share: float) -> str:
    """A share of a limit: 87 %, or 0.4 % below one percent."""
    return f"{100 * share:.0f} %" if share >= 0.0095 else f"{100 * share:.1g} %"


def short(idea: str, most: int = 96) -> str:
    """An idea's first clause."""
    for end in (". ", ": ", "; ", ", "):
        head = idea.partition(end)[0]
        if 24 <= len(head) <= most:
            return head.rstrip(".")
    if len(idea) <= most:
        return idea.rstrip(".")
    return idea[: most - 1].rpartition(" ")[0].rstrip(",;:") + " …"


def unit_of(bound: str) -> str:
    return "TFLOP/s" if bound == "compute" else "GB/s"


def bound_of(ladder: Ladder) -> str:
    """The ladder's ceiling: the one that is nearer for most figures at the headline shape."""
    marks = [f.bound for f in ladder.found.values() if f.row.shape == ladder.headline(f.row.dtype)]
    return max(("memory", "compute"), key=marks.count)


def ratio_text(ratio: float) -> str:
    """Speed in units of the best library's: 0.02×, 1.24×, 12×."""
    if ratio >= 9.95:
        return f"{ratio:.0f}×"
    if ratio < 0.00095:
        return "<0.001×"
    return f"{ratio:.2f}×" if ratio >= 0.00995 else f"{ratio:.3f}×"


def label(name: str) -> str:
    """The number and name of a rung; the name of a library."""
    number, _, rest = name.partition("_")
    return f"{number} {rest.replace('_', ' ')}" if number.isdigit() else name
