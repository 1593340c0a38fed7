"""The roofline as a picture: the machine's ceilings, and rungs as points beneath them."""

from __future__ import annotations

from collections.abc import Sequence

from rung.profile.roofline import Placed
from rung.results.current import Limits, label, percent
from rung.show import charts
from rung.show.charts import Point, Roof


def roofs(limits: Limits, dtypes: Sequence[str]) -> list[Roof]:
    """The measured ceiling of each number format, and the data sheet's if there is only one format."""
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
            label = f"{name}, bytes as counted: {one.flops / one.counted:.3g} FLOP/byte"
            points.append(Point("", one.flops / one.counted, one.rate, colour, hollow=True, tip=label))
    lines = roofs(limits, dtypes)
    return charts.roofline(
        lines,
        points,
        title=title or f"Roofline on an {limits.gpu}",
        description=_description(placed, lines),
        width=width,
        height=max(least, 150 + 14.5 * len(placed)),
    )


def _names(placed: Sequence[Placed]) -> list[str]:
    """The rung, and as much of its ladder, number format and shape as distinguishes it from the others."""
    several = len({p.figure.row.operation for p in placed}) > 1
    names = []
    for one in placed:
        ladder = one.figure.row.operation
        same = [p for p in placed if p.figure.row.operation == ladder]
        extra = [one.dtype] if len({p.dtype for p in same}) > 1 else []
        extra += [one.shape] if len({p.shape for p in same}) > 1 else []
        name = f"{ladder} {label(one.figure.name)}" if several else label(one.figure.name)
        names.append(name + (f" ({', '.join(extra)})" if extra else ""))
    return names


def _description(placed: Sequence[Placed], lines: Sequence[Roof]) -> str:
    ceilings = "; ".join(f"{r.label} FLOP/byte" for r in lines)
    found = "; ".join(
        f"{label(p.figure.name)} {p.rate / 1e12:.3g} TFLOP/s at {p.intensity:.3g} FLOP/byte" for p in placed
    )
    return f"Ceilings: {ceilings}. Rungs: {found}."
