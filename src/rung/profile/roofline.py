"""The roofline: rate over arithmetic intensity. A rung's intensity comes from the cost model, in which every number
moves once; if a profile counted the bytes actually moved, the rung has a second, hollow point.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import Any

from rung.errors import RungError
from rung.results.current import Figure, Figures, Limits, cost_of, percent, time_text
from rung.results.row import Row
from rung.rungs import catalogue


@dataclass(frozen=True)
class Placed:
    """A measured rung in the plane of the roofline."""

    figure: Figure
    dtype: str
    shape: str
    flops: float
    bytes: float
    counted: float | None  # bytes of DRAM traffic, when profiled

    @property
    def intensity(self) -> float:
        return self.flops / self.bytes

    @property
    def rate(self) -> float:
        return self.flops / self.figure.us * 1e6


def place(figures: Iterable[Figure], profiles: Sequence[Row] = ()) -> list[Placed]:
    """The figures with the operation's FLOPs and bytes, and the counted bytes."""
    placed = []
    for figure in figures:
        row = figure.row
        cost = cost_of(row, figure.rung, _operation(figure))
        if cost.flops > 0 and cost.bytes > 0:
            counted = _counted(row, profiles)
            placed.append(Placed(figure, row.dtype, row.shape, cost.flops, cost.bytes, counted))
    return placed


def _operation(figure: Figure) -> Any:
    return catalogue.operation(figure.row.operation)


def _counted(row: Row, profiles: Sequence[Row]) -> float | None:
    of = [p for p in profiles if p.metrics.get("dram_bytes") and p.what == row.what and p.dtype == row.dtype]
    newest = max((p for p in of if p.values == row.values), key=lambda p: p.time, default=None)
    return newest.metrics["dram_bytes"] if newest else None


COLUMNS = ("rung", "dtype", "shape", "FLOP/byte", "counted", "us", "TFLOP/s", "GB/s", "bound by", "of limit",
           "of data sheet")  # fmt: skip


def table(placed: Sequence[Placed]) -> list[tuple[str, ...]]:
    """A line for each rung."""
    lines: list[tuple[str, ...]] = []
    for one in placed:
        sheet = one.figure.row.metrics.get("of_datasheet")
        lines.append(
            (
                one.figure.row.what,
                one.dtype,
                one.shape,
                f"{one.intensity:.3g}",
                f"{one.flops / one.counted:.3g}" if one.counted else "",
                time_text(one.figure.us),
                f"{one.rate / 1e12:.3g}",
                f"{one.bytes / one.figure.us / 1e3:.0f}",
                one.figure.bound,
                percent(one.figure.share),
                "" if sheet is None else percent(sheet),
            )
        )
    return lines


def as_json(placed: Sequence[Placed], limits: Limits) -> dict[str, Any]:
    """The same for programs."""
    return {
        "gpu": limits.gpu,
        "measured": {"bytes": limits.bytes, "flops": dict(limits.flops)},
        "datasheet": dict(limits.sheet),
        "rungs": [
            {
                "rung": p.figure.row.what,
                "dtype": p.dtype,
                "shape": p.shape,
                "intensity": p.intensity,
                "counted_intensity": p.flops / p.counted if p.counted else None,
                "flops_per_second": p.rate,
                "share": p.figure.share,
                "bound": p.figure.bound,
            }
            for p in placed
        ],
    }


def chosen(found: Figures, spec: str, dtypes: Sequence[str] | None, shapes: Sequence[str] | None) -> list[Figure]:
    """The figures of OP or OP/RUNG at the wanted formats and shapes."""
    name = catalogue.operation(spec.partition("/")[0]).name
    only = catalogue.find(spec).full_name if "/" in spec else None
    ladder = found.ladder(name)
    kinds = dtypes or ladder.dtypes()[:1]
    if only and not dtypes:
        kinds = [d for d in ladder.dtypes() if any(k[:2] == (only, d) for k in ladder.found)][:1]
    chosen = [
        figure
        for kind in kinds
        if kind in ladder.dtypes()
        for shape in shapes or [ladder.headline(kind)]
        for figure in ladder.column(kind, shape)
        if only is None or figure.row.what == only or figure.library
    ]
    if not any(only is None or f.row.what == only for f in chosen):
        where = " ".join([*(shapes or ()), *(dtypes or ())])
        raise RungError(
            f"{spec}{' at ' + where if where else ''} was not measured on {found.gpu or 'a GPU'}; "
            f"`rung bench {spec}` there does."
        )
    return chosen
