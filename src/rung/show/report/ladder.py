"""A ladder's page: its description, its times, and its rungs with idea, finding, source and difference."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from markupsafe import Markup

from rung.errors import first_line
from rung.operation import folders
from rung.profile.resources import Compiled
from rung.results.current import Figure, Figures, Ladder, percent, ratio_text, time_text
from rung.results.row import Row
from rung.rungs import catalogue, difference
from rung.rungs.base import Rung
from rung.show import charts, drawings, predictions
from rung.show.report import plots, sweeps
from rung.show.report.markup import patch, source, story

COLUMNS = ("p20 – p80", "warm, µs", "GB/s", "TFLOP/s", "of limit", "of data sheet", "vs library", "vs before")


def context(
    name: str,
    names: Sequence[str],
    found: Figures | None,
    resources: Mapping[str, Sequence[Compiled]],
    drawn: Mapping[str, Row],
    predicted: Mapping[str, Sequence[Row]],
) -> dict[str, Any]:
    """The template's data for the ladder `name`."""
    operation, place = catalogue.operation(name), names.index(name)
    rungs = catalogue.rungs(name, libraries=False)
    readme = folders()[name] / "README.md"
    measured = found.ladder(name) if found is not None and name in found.names() else None
    panels = [_panel(measured, dtype) for dtype in measured.dtypes()] if measured else []
    dtypes = [panel["dtype"] for panel in panels]
    return {
        "name": name,
        "operation": operation,
        "standing": _standing(measured),
        "panels": panels,
        "plot": plots.ladder(measured, found) if found and measured else {},
        "first": next((d for d in ("bf16", "f32", *dtypes) if d in dtypes), ""),
        "story": story(readme.read_text(encoding="utf-8")) if readme.is_file() else "",
        "rungs": [
            _rung(rung, measured, resources.get(rung.full_name, []), drawn)
            | {"predicted": [predictions.of_row(row) for row in predicted.get(rung.full_name, ())]}
            for rung in rungs
        ],
        "libraries": [r for r in catalogue.rungs(name) if r.kind == "library"],
        "sweeps": sweeps.of(name, found) if found else [],
        "before": names[place - 1] if place else "",
        "after": names[place + 1] if place + 1 < len(names) else "",
    }


def _standing(ladder: Ladder | None) -> dict[str, str]:
    nothing = {"spark": "", "times": "", "where": "", "share": "", "ratio": ""}
    if ladder is None:
        return nothing
    dtype, shape, ours = ladder.ours()
    if not ours:
        return nothing
    best = min(ours, key=lambda f: f.us)
    name = f"{ladder.operation.name} in {dtype}: speed from rung to rung"
    return {
        "spark": charts.sparkline([1 / f.us for f in ours], dtype, name),
        "times": f"{time_text(ours[0].us)} → {time_text(best.us)}",
        "where": f"{dtype}, {shape}",
        "share": percent(best.share),
        "ratio": ratio_text(best.ratio) if best.ratio is not None else "",
    }


def _panel(ladder: Ladder, dtype: str) -> dict[str, Any]:
    """The table of one number format."""
    shapes, main = ladder.shapes(dtype), ladder.headline(dtype)
    figures = ladder.column(dtype, main)
    rows, classes = [], []
    for rung in ladder.rungs:
        cells = [_time(ladder, rung, dtype, shape) for shape in shapes]
        if any(cells):
            library = rung.kind == "library"
            link = rung.name if library else Markup('<a href="#{}">{}</a>').format(_id(rung), rung.name)
            rows.append([link, *cells, *_details(ladder.get(rung.full_name, dtype, main))])
            classes.append("library" if library else "")
    return {
        "dtype": dtype,
        "shape": main,
        "columns": ["rung", *(f"{s}, µs" for s in shapes), *COLUMNS],
        "rows": rows,
        "classes": classes,
        "notes": "; ".join(f"{f.name}: {n}" for f in figures for n in f.row.notes),
    }


def _time(ladder: Ladder, rung: Rung, dtype: str, shape: str) -> str:
    figure = ladder.get(rung.full_name, dtype, shape)
    if figure is None:
        return ladder.instead(rung.full_name, dtype, shape)
    best = figure.us == min(f.us for f in ladder.column(dtype, shape))
    return Markup("<strong>{}</strong>").format(time_text(figure.us)) if best else time_text(figure.us)


def _details(figure: Figure | None) -> list[str]:
    if figure is None:
        return [""] * len(COLUMNS)
    m = figure.row.metrics
    return [
        f"{time_text(m['cold_p20_us'])} – {time_text(m['cold_p80_us'])}" if "cold_p20_us" in m else "",
        time_text(m["warm_us"]) if "warm_us" in m else "",
        f"{m['gbps']:,.0f}" if "gbps" in m else "",
        f"{m['tflops']:.3g}" if "tflops" in m else "",
        percent(figure.share),
        percent(m["of_datasheet"]) if "of_datasheet" in m else "",
        ratio_text(figure.ratio) if figure.ratio is not None else "",
        str(figure.row.detail.get("against_before", "")),
    ]


def _id(rung: Rung) -> str:
    return f"{rung.operation.name}-{rung.name}"


def _rung(
    rung: Rung, measured: Ladder | None, resources: Sequence[Compiled], drawn: Mapping[str, Row]
) -> dict[str, Any]:
    parent, row = catalogue.parent(rung), drawn.get(rung.full_name)
    facts = [("expected", rung.expect), ("found", rung.found), ("a rewrite because", rung.rewrite)]
    facts.append(("by", rung.provenance))
    first = resources[0] if resources else None
    return {
        "rung": rung,
        "id": _id(rung),
        "facts": [(label, value) for label, value in facts if value],
        "tunables": " · ".join(f"{n} = {', '.join(map(str, v))}" for n, v in rung.tune.items()),
        "speed": speed(rung, parent, measured) if measured else [],
        "resources": [_compiled(row) for row in resources],
        "compiled": f"compiled for {first.arch}, {first.dtype}, {first.shape}" if first else "",
        "parent": parent.full_name if parent else "",
        "changes": patch(difference.lines(parent, rung)[2:]) if parent else "",
        "drawn": drawings.card(row, drawn.get(parent.full_name) if parent else None) if row else "",
        "source": source(rung.source, rung.kind),
    }


def speed(rung: Rung, parent: Rung | None, measured: Ladder) -> list[dict[str, str]]:
    """The speed in each number format, also relative to the parent."""
    sentences = []
    for dtype in measured.dtypes():
        shape = measured.headline(dtype)
        figure = measured.get(rung.full_name, dtype, shape)
        if figure is None:
            instead = measured.instead(rung.full_name, dtype, shape)
            sentences += [{"us": "", "dtype": dtype, "instead": instead}] if instead else []
            continue
        earlier = measured.get(parent.full_name, dtype, shape) if parent is not None else None
        gain = ratio_text(earlier.us / figure.us) if earlier is not None else ""
        name = parent.name if parent else ""
        share = percent(figure.share)
        sentences.append({"us": time_text(figure.us), "dtype": dtype, "share": share, "gain": gain, "parent": name})
    return sentences


def _compiled(row: Compiled) -> list[str]:
    if row.registers is None:
        return [row.kernel or row.dtype, "", "", "", "", "", first_line(row.reason)]
    shared = f"{row.static_shared}+{row.dynamic_shared}" if row.dynamic_shared else str(row.static_shared)
    spills = f"{row.spill_stores}+{row.spill_loads}" if row.spills else "0"
    block = " × ".join(str(n) for n in row.block or () if n > 1) or "1"
    limiter = f"limited by {row.limiter}" if row.limiter and (row.occupancy or 0) < 1 else ""
    return [row.kernel, block, str(row.registers), shared, spills, f"{100 * (row.occupancy or 0):.0f} %", limiter]
