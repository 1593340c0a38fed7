"""Out of any number of results, the figure to show: the newest of each rung, number format and shape."""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from functools import cached_property
from typing import Any

from rung.dtypes import DTYPES
from rung.errors import RungError
from rung.operation import Cost, Operation
from rung.results.machine import DATASHEET
from rung.results.store import Result, same_source, source_of
from rung.rungs import catalogue
from rung.rungs.base import Rung

HEADLINE = "b8t1024"  # GPT-2 at eight sequences of 1024 tokens
SMALL = "b4t64"
# A copy of less than this fits the L2 at least in part, and tells nothing of the memory.
LARGE = 256e6


@dataclass(frozen=True)
class Limits:
    """What a GPU can do: bytes/s and FLOP/s by number format, seen there and by its data sheet."""

    gpu: str
    bytes: float
    flops: Mapping[str, float]
    sheet: Mapping[str, float]

    def share(self, flops: float, size: float, seconds: float, dtype: str) -> float:
        """Of the nearer of the two measured ceilings."""
        rate = self.flops.get(dtype)
        shares = [size / seconds / self.bytes] if self.bytes else []
        shares += [flops / seconds / rate] if rate else []
        return max(shares, default=0.0)


@dataclass(frozen=True)
class Figure:
    """One rung's time at one shape and number format."""

    row: Mapping[str, Any]
    rung: Rung | None  # None when the ladder no longer has it
    share: float  # of the measured limit
    bound: str  # "memory" or "compute": which ceiling is the nearer one

    @property
    def name(self) -> str:
        return str(self.row["rung"]).partition("/")[2]

    @property
    def us(self) -> float:
        return float(self.row["cold_us"])

    @property
    def old(self) -> bool:
        """Whether the rung's source, or what it reaches in its headers, has changed since."""
        return self.rung is None or not same_source(self.row, source_of(self.rung))

    @property
    def library(self) -> bool:
        return self.row.get("rung_kind") == "library"

    @property
    def ratio(self) -> float | None:
        """The best library's time over ours, of the same race."""
        value = self.row.get("library_ratio")
        return float(value) if value else None


@dataclass
class Ladder:
    """The figures of one operation on one GPU."""

    operation: Operation
    rungs: Sequence[Rung]
    found: dict[tuple[str, str, str], Figure] = field(default_factory=dict)  # rung, dtype, shape
    too_slow: dict[tuple[str, str, str], str] = field(default_factory=dict)  # the forecast instead of a time

    def get(self, rung: str, dtype: str, shape: str) -> Figure | None:
        return self.found.get((rung, dtype, shape))

    def dtypes(self) -> list[str]:
        return [d for d in DTYPES if any(k[1] == d for k in self.found)]

    def shapes(self, dtype: str | None = None) -> list[str]:
        """In the operation's order, written-out ones last."""
        seen = {k[2] for k in self.found if dtype in (None, k[1])}
        return [s for s in self.operation.shapes if s in seen] + sorted(seen - set(self.operation.shapes))

    def headline(self, dtype: str | None = None) -> str:
        """The shape by which a ladder is judged: GPT-2's usual one, else the largest that most rungs were timed at."""
        shapes = self.shapes(dtype)
        count = Counter(k[2] for k in self.found if dtype in (None, k[1]))
        return HEADLINE if HEADLINE in shapes else max(shapes, key=lambda s: (count[s], self._work(s)))

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
        cost = self.operation.cost(dict(row["values"]), 4)
        return cost.flops + 10 * cost.bytes


@dataclass
class Figures:
    """Everything measured on one GPU."""

    gpu: str
    results: list[Result]

    @cached_property
    def limits(self) -> Limits:
        """The highest ceilings seen, among them whatever a copy of the `copy` ladder reached."""
        size, flops = 0.0, dict[str, float]()
        for row in self._bench:
            ceilings = row.get("ceilings") or _implied(row)
            size = max(size, ceilings.get("bytes", 0.0))
            for dtype, rate in ceilings.get("flops", {}).items():
                flops[dtype] = max(flops.get(dtype, 0.0), rate)
            if row["operation"] == "copy" and row["gbps"] * 1e3 * row["cold_us"] >= LARGE:
                size = max(size, row["gbps"] * 1e9)
        return Limits(self.gpu, size, flops, DATASHEET.get(self.gpu, {}))

    @cached_property
    def _bench(self) -> list[Result]:
        return [r for r in self.results if r.get("kind") == "bench" and _timed(r)]

    def names(self) -> list[str]:
        """The ladders of which something was measured."""
        seen = {r["operation"] for r in self._bench}
        return [n for n in catalogue.operations() if n in seen]

    def ladder(self, name: str) -> Ladder:
        """The newest figure of each rung, of its present source where there is one."""
        ladder = Ladder(catalogue.operation(name), catalogue.rungs(name))
        rungs = {r.full_name: r for r in ladder.rungs}
        sources = {r.full_name: source_of(r) for r in ladder.rungs}
        rows: dict[tuple[str, str, str], Result] = {}
        newest: dict[tuple[str, str, str], tuple[bool, str]] = {}
        for row in self.results:
            if row.get("kind") != "bench" or row.get("operation") != name:
                continue
            key = (row["rung"], row["dtype"], row["shape"])
            if row.get("verdict") == "refused":
                forecast = re.search(r"would take (about [\d.]+ s)", row.get("reason", ""))
                # Half a second and less is rounded to none in files of some benches.
                told = forecast[1].replace("about 0 s", "under 1 s") if forecast else ""
                ladder.too_slow |= {key: told} if told else {}
                continue
            rung = rungs.get(row["rung"])
            rank = (rung is not None and same_source(row, sources[row["rung"]]), row.get("time", ""))
            if key not in newest or rank >= newest[key]:
                newest[key], rows[key] = rank, row
        for key, row in rows.items():
            if _timed(row):
                ladder.found[key] = self._figure(row, rungs.get(row["rung"]), ladder.operation)
        return ladder

    def of_kind(self, kind: str, operation: str | None = None) -> list[Result]:
        """The rows of another sort, such as "sweep" or "study"."""
        return [
            r
            for r in self.results
            if r.get("kind") == kind and (operation is None or str(r.get("rung", "")).partition("/")[0] == operation)
        ]

    @property
    def machine(self) -> Mapping[str, Any]:
        """The machine, as the newest result describes it."""
        newest = max(self.results, key=lambda r: r.get("time", ""), default={})
        return dict(newest.get("machine", {}))

    def _figure(self, row: Result, rung: Rung | None, operation: Operation) -> Figure:
        cost = cost_of(row, rung, operation)
        seconds = row["cold_us"] / 1e6
        rate = self.limits.flops.get(row["dtype"], 0.0)
        compute = bool(rate) and cost.flops / rate > cost.bytes / (self.limits.bytes or 1.0)
        share = self.limits.share(cost.flops, cost.bytes, seconds, row["dtype"])
        return Figure(row, rung, share, "compute" if compute else "memory")


def cost_of(row: Mapping[str, Any], rung: Rung | None, operation: Operation) -> Cost:
    """What the rung must compute and move; of one that the ladder no longer has, what the operation must."""
    binds = rung.binds if rung is not None else frozenset[str]()
    return operation.cost_with(dict(row["values"]), DTYPES[row["dtype"]], binds)


def _timed(row: Result) -> bool:
    return bool(row.get("cold_us")) and row.get("verdict", "ok") == "ok"


def _implied(row: Result) -> dict[str, Any]:
    """The ceilings that a row's shares were taken of."""
    found: dict[str, Any] = {"flops": {}}
    if row.get("of_bandwidth"):
        found["bytes"] = row["gbps"] * 1e9 / row["of_bandwidth"]
    if row.get("of_rate"):
        found["flops"][row["dtype"]] = row["tflops"] * 1e12 / row["of_rate"]
    return found


def by_gpu(results: Iterable[Result]) -> dict[str, Figures]:
    """The results of each GPU by itself, the best known first; times on a CPU stand under ''."""
    found: dict[str, Figures] = {}
    for row in results:
        gpu = row.get("machine", {}).get("gpu", "")
        found.setdefault(gpu, Figures(gpu, [])).results.append(row)
    return dict(sorted(found.items(), key=lambda item: (item[0] == "", -len(item[1].results))))


def of_gpu(results: Sequence[Result], wanted: str | None) -> Figures:
    """The figures of the GPU whose name holds `wanted`; without it, of the one most was measured on."""
    found = by_gpu(results)
    for gpu, figures in found.items():
        if wanted is None or wanted.lower() in gpu.lower():
            return figures
    known = ", ".join(g for g in found if g) or "none"
    raise RungError(f"no result was measured on a GPU named {wanted!r}; there are results of {known}.")


def time_text(us: float) -> str:
    """Microseconds with three digits, or all that stand before the point."""
    if us < 9.995:
        return f"{us:.2f}"
    return f"{us:.1f}" if us < 99.95 else f"{us:.0f}"


def percent(share: float) -> str:
    """A share of a limit: 87 %, and 0.4 % where that is all."""
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
