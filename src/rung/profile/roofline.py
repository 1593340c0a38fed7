"""Where rungs stand under the machine's ceilings: arithmetic intensity against rate, as a chart and a table.

A rung's intensity comes from the cost model, in which every number moves once; where a profile counted the
bytes that really moved, the rung has a second, hollow point.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from rung.results.current import Figure, Limits, cost_of, percent, time_text
from rung.results.store import Result, same_source
from rung.show import charts
from rung.show.charts import Point, Roof
from rung.show.climb_chart import label


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


def roofs(limits: Limits, dtypes: Sequence[str]) -> list[Roof]:
    """The measured ceiling of each number format, and the data sheet's where there is but one format."""
    found = [
        Roof(_roof_label(d, "measured", limits.bytes, limits.flops[d]), limits.bytes, limits.flops[d], d)
        for d in dtypes
        if limits.flops.get(d) and limits.bytes
    ]
    sheet = limits.sheet
    if len(dtypes) == 1 and dtypes[0] in sheet:
        label = _roof_label(dtypes[0], "data sheet", sheet["bytes"], sheet[dtypes[0]])
        found.append(Roof(label, sheet["bytes"], sheet[dtypes[0]], "muted", dashed=True))
    return found


def _roof_label(dtype: str, what: str, size: float, flops: float) -> str:
    return f"{dtype} {what}: {flops / 1e12:.0f} TFLOP/s, {size / 1e12:.2f} TB/s; ridge {flops / size:.0f}"


def place(figures: Iterable[Figure], profiles: Sequence[Result] = ()) -> list[Placed]:
    """The figures with what the operation must compute and move, and what was counted."""
    placed = []
    for figure in figures:
        row = figure.row
        cost = cost_of(row, figure.rung, _operation(figure))
        if cost.flops > 0 and cost.bytes > 0:
            counted = _counted(row, profiles)
            placed.append(Placed(figure, row["dtype"], row["shape"], cost.flops, cost.bytes, counted))
    return placed


def _operation(figure: Figure) -> Any:
    from rung.rungs import catalogue

    return catalogue.operation(figure.row["operation"])


def _counted(row: Mapping[str, Any], profiles: Sequence[Result]) -> float | None:
    of = [p for p in profiles if p.get("dram_bytes") and same_source(p, row)]
    found = [p for p in of if all(p.get(n) == row.get(n) for n in ("rung", "dtype", "values"))]
    newest = max(found, key=lambda p: p.get("time", ""), default=None)
    return float(newest["dram_bytes"]) if newest else None


def chart(placed: Sequence[Placed], limits: Limits, *, title: str = "", width: float = 760, least: float = 480) -> str:
    """The chart; points are named by rung, and by ladder, number format and shape where those differ."""
    dtypes = list(dict.fromkeys(p.dtype for p in placed))
    names = _names(placed)
    points = []
    for one, name in zip(placed, names, strict=True):
        colour = "library" if one.figure.library else one.dtype
        tip = f"{name}: {one.rate / 1e12:.3g} TFLOP/s at {one.intensity:.3g} FLOP/byte, "
        tip += f"{percent(one.figure.share)} of the measured limit"
        points.append(Point(name, one.intensity, one.rate, colour, tip=tip))
        if one.counted:
            told = f"{name}, bytes as counted: {one.flops / one.counted:.3g} FLOP/byte"
            points.append(Point("", one.flops / one.counted, one.rate, colour, hollow=True, tip=told))
    lines = roofs(limits, dtypes)
    return charts.roofline(
        lines,
        points,
        title=title or f"Roofline on an {limits.gpu}",
        description=_told(placed, lines),
        width=width,
        height=max(least, 150 + 14.5 * len(placed)),
    )


def _names(placed: Sequence[Placed]) -> list[str]:
    """The rung, and as much of its ladder, number format and shape as tells it from the others."""
    several = len({p.figure.row["operation"] for p in placed}) > 1
    names = []
    for one in placed:
        ladder = one.figure.row["operation"]
        same = [p for p in placed if p.figure.row["operation"] == ladder]
        extra = [one.dtype] if len({p.dtype for p in same}) > 1 else []
        extra += [one.shape] if len({p.shape for p in same}) > 1 else []
        name = f"{ladder} {label(one.figure.name)}" if several else label(one.figure.name)
        names.append(name + (f" ({', '.join(extra)})" if extra else ""))
    return names


def _told(placed: Sequence[Placed], lines: Sequence[Roof]) -> str:
    ceilings = "; ".join(f"{r.label} FLOP/byte" for r in lines)
    found = "; ".join(
        f"{label(p.figure.name)} {p.rate / 1e12:.3g} TFLOP/s at {p.intensity:.3g} FLOP/byte" for p in placed
    )
    return f"Ceilings: {ceilings}. Rungs: {found}."


COLUMNS = ("rung", "dtype", "shape", "FLOP/byte", "counted", "us", "TFLOP/s", "GB/s", "bound by", "of limit",
           "of data sheet")  # fmt: skip


def table(placed: Sequence[Placed]) -> list[tuple[str, ...]]:
    """A line for each rung, in words and numbers."""
    lines: list[tuple[str, ...]] = []
    for one in placed:
        sheet = one.figure.row.get("of_datasheet")
        lines.append(
            (
                str(one.figure.row["rung"]),
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
                "rung": p.figure.row["rung"],
                "dtype": p.dtype,
                "shape": p.shape,
                "intensity": p.intensity,
                "counted_intensity": p.flops / p.counted if p.counted else None,
                "flops_per_second": p.rate,
                "share": p.figure.share,
                "bound": p.figure.bound,
                "earlier_version": p.figure.old,
            }
            for p in placed
        ],
    }
