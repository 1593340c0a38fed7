"""Counts of the emulator beside Nsight Compute's of the same launches: docs/counters.md.

A count differs for one of few reasons, which the hardware's own figures tell apart; what fits none is listed as such.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass
from functools import partial

from rung.results.row import Row
from rung.show import markdown

COMPARED = (
    ("requests of global loads", "global_read_requests"),
    ("sectors of global loads", "global_read_bytes"),
    ("requests of global stores", "global_write_requests"),
    ("sectors of global stores", "global_write_bytes"),
    ("wavefronts of shared loads, without conflicts", "ideal_load"),
    ("wavefronts of shared stores, without conflicts", "ideal_store"),
    ("conflicts of shared loads", "conflicts_load"),
    ("conflicts of shared stores", "conflicts_store"),
    ("global load instructions", "global_loads"),
    ("global store instructions", "global_stores"),
    ("shared load instructions", "shared_loads"),
    ("shared store instructions", "shared_stores"),
    ("FADD", "fadd"),
    ("FFMA", "ffma"),
    ("MUFU", "mufu"),
    ("HMMA", "hmma"),
)
BOUNDS = (0.0, 0.01, 0.05)


@dataclass(frozen=True)
class Pair:
    """One figure of one kernel, measured and counted."""

    what: str
    kernel: str
    figure: str
    measured: float
    counted: float

    @property
    def off(self) -> float:
        return abs(self.measured - self.counted) / max(self.measured, self.counted, 1.0)


def parts(rows: Iterable[Row]) -> dict[str, Callable[[], str]]:
    """The page's generated parts."""
    every = list(pairs(rows))
    return {"counters:agreement": partial(agreement, every), "counters:others": partial(others, every)}


def pairs(rows: Iterable[Row]) -> Iterator[Pair]:
    """Figures of rows that count the launches of a measured row, if neither is zero throughout."""
    every = list(rows)
    counted = {_launches(r): r for r in every if r.kind == "count"}
    for row in every:
        other = counted.get(_launches(row)) if row.kind == "profile" else None
        if other is None or row.verdict != "ok" or other.verdict != "ok":
            continue
        for measured, ours in zip(row.detail["kernels"], other.detail["kernels"], strict=False):
            if measured["kernel"] != ours["kernel"]:
                continue
            what = f"{row.what} {row.dtype} {row.shape}"
            yield from compared(what, ours["kernel"], measured["figures"], measured["opcodes"], ours["figures"])


def compared(
    what: str, kernel: str, measured: Mapping[str, float], opcodes: Mapping[str, float], counted: Mapping[str, float]
) -> Iterator[Pair]:
    """The figures of one launch that both sides have, if neither is zero."""
    # The hardware's counter of HMMA contains moves of constants by that pipe.
    warps = {"mufu": opcodes.get("MUFU", 0.0), "hmma": opcodes.get("HMMA", 0.0)}
    hardware, emulated = _with_ideal(measured) | warps, _with_ideal(counted)
    for _, figure in COMPARED:
        if figure in ("fadd", "ffma", *warps) and figure not in counted:
            continue
        a, b = hardware.get(figure), emulated.get(figure, 0.0)
        if a is not None and (a or b):
            yield Pair(what, kernel, figure, a, b)


def _launches(row: Row) -> tuple[str, ...]:
    return (row.what, row.dtype, row.shape, str(sorted(row.values.items())), str(sorted(row.tuning.items())))


def _with_ideal(figures: Mapping[str, float]) -> dict[str, float]:
    made = dict(figures)
    for kind in ("load", "store"):
        made[f"ideal_{kind}"] = figures.get(f"wavefronts_{kind}", 0.0) - figures.get(f"conflicts_{kind}", 0.0)
    return made


def agreement(every: list[Pair]) -> str:
    """How many kernels' figures are equal, and within 1 % and 5 %."""
    if not every:
        return "\nNot counted yet.\n\n"
    lines = []
    for title, figure in COMPARED:
        some = [p for p in every if p.figure == figure]
        if some:
            within = [sum(p.off <= bound for p in some) for bound in BOUNDS]
            lines.append((title, f"{len(some)}", *(f"{n} ({n / len(some):.0%})" for n in within)))
    return markdown.table(("figure", "kernels", "equal", "within 1 %", "within 5 %"), lines)


def others(every: list[Pair]) -> str:
    """The figures that differ by more than 1 %, with the likely reason."""
    titles = {figure: title for title, figure in COMPARED}
    lines = [
        (p.what, p.kernel, titles[p.figure], f"{p.measured:,.0f}", f"{p.counted:,.0f}", reason(p))
        for p in every
        if p.off > BOUNDS[1]
    ]
    if not lines:
        return "\nNone.\n\n"
    return markdown.table(("rung", "kernel", "figure", "measured", "counted", "likely reason"), sorted(lines))


def reason(pair: Pair) -> str:
    """Why a count may differ, as far as the figures tell."""
    if pair.figure.startswith("conflicts"):
        if not pair.counted:
            return "waiting for other warps, which the hardware's counter contains"
        return "partly waiting for other warps" if pair.measured > pair.counted else "not known"
    if pair.figure.startswith("ideal"):
        return "nvcc keeps other values in registers than g++, or copies make wavefronts too"
    if pair.figure.endswith("write_bytes") and pair.off < 0.05:
        return "lanes of a loop that ends at different times store together or apart"
    more = "nvcc unrolls or splits loops whose lanes end at different times"
    return more if pair.measured > pair.counted else "nvcc keeps values that g++ loads again"
