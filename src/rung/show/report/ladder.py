"""One ladder's page: its story, its times, and its rungs with idea, finding, source and difference."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from rung.profile import roofline
from rung.profile.resources import Row
from rung.results.current import Figure, Figures, Ladder, percent, time_text
from rung.rungs import catalogue, difference
from rung.rungs.base import Rung
from rung.show import climb_chart, roofline_chart
from rung.show.report import sweeps
from rung.show.report.markup import patch, prose, source, story, table, text


def page(
    name: str,
    measured: Ladder | None,
    found: Figures | None,
    resources: Mapping[str, list[Row]],
    around: tuple[str | None, str | None],
) -> str:
    """The page of the ladder `name`; `around` are its neighbours."""
    operation = catalogue.operation(name)
    rungs = catalogue.rungs(name, libraries=False)
    readme = catalogue.folders()[name] / "README.md"
    told = story(readme.read_text(encoding="utf-8")) if readme.is_file() else ""
    parts = [
        f'<section class="page" id="{name}"><h1 tabindex="-1">{name}</h1>',
        f'<p class="summary"><code>{text(operation.summary)}</code></p><p>{prose(operation.story)}</p>',
        _measured(measured, found) if measured is not None and found is not None else _unmeasured(name),
        f'<details class="story"><summary>The story of this ladder</summary>{told}</details>' if told else "",
        _contents(rungs),
        "<h2>The rungs</h2>",
        *(_rung(rung, measured, resources.get(rung.full_name, [])) for rung in rungs),
        _libraries(name),
        sweeps.section(name, found) if found is not None else "",
        _neighbours(around),
        "</section>\n",
    ]
    return "".join(parts)


def _unmeasured(name: str) -> str:
    return f"<p>Not measured here yet: <code>rung bench {name}</code> on a GPU does.</p>"


def _neighbours(around: tuple[str | None, str | None]) -> str:
    before, after = around
    left = f'<a href="#{before}">← {before}</a>' if before else "<span></span>"
    right = f'<a href="#{after}">{after} →</a>' if after else "<span></span>"
    return f'<p class="neighbours">{left}<a href="#index">Overview</a>{right}</p>'


def _contents(rungs: Sequence[Rung]) -> str:
    items = "".join(f'<li><a href="#{_id(r)}">{text(r.name)}</a></li>' for r in rungs)
    return f'<details class="contents"><summary>Jump to a rung</summary><ol>{items}</ol></details>'


def _id(rung: Rung) -> str:
    return f"{rung.operation.name}-{rung.name}"


def _measured(ladder: Ladder, found: Figures) -> str:
    """Charts and tables, one number format at a time."""
    dtypes = ladder.dtypes()
    name = ladder.operation.name
    first = next((d for d in ("bf16", "f32") if d in dtypes), dtypes[0])
    choices = "".join(
        f'<label><input type="radio" name="dtype-{name}" value="{d}"{" checked" if d == first else ""}> {d}</label>'
        for d in dtypes
    )
    panels = "".join(_panel(ladder, found, dtype) for dtype in dtypes)
    return f"""<h2>Times</h2>
<div class="tabs"><fieldset><legend>Number format</legend>{choices}</fieldset>
{panels}</div>"""


def _panel(ladder: Ladder, found: Figures, dtype: str) -> str:
    shape = ladder.headline(dtype)
    figures = ladder.column(dtype, shape)
    picture = (
        f'<figure class="chart">{climb_chart.time_chart(ladder, found.limits, dtype, shape)}'
        "<figcaption>Bars: speed. Numbers: cold time, and speed against the best library.</figcaption></figure>"
    )
    placed = roofline.place(figures, found.of_kind("profile"))
    roof = ""
    if placed and found.limits.flops.get(dtype):
        title = f"Roofline of {ladder.operation.name} in {dtype} at {shape}"
        drawn = roofline_chart.chart(placed, found.limits, title=title, width=440, least=380)
        roof = (
            f'<figure class="chart">{drawn}'
            "<figcaption>Each rung under the ceilings; intensity by the cost model.</figcaption></figure>"
        )
    return (
        f'<div class="panel" data-dtype="{dtype}"><div class="charts">{picture}{roof}</div>'
        f"{_table(ladder, dtype)}{_notes(figures)}</div>"
    )


def _table(ladder: Ladder, dtype: str) -> str:
    shapes, main = ladder.shapes(dtype), ladder.headline(dtype)
    columns = ["rung", *(f"{s}, µs" for s in shapes), "p20 – p80", "warm, µs", "GB/s", "TFLOP/s", "of limit",
               "of data sheet", "vs library", "vs before"]  # fmt: skip
    rows, classes = [], []
    for rung in ladder.rungs:
        times = [ladder.get(rung.full_name, dtype, s) for s in shapes]
        slow = [ladder.too_slow.get((rung.full_name, dtype, s), "") for s in shapes]
        if not any(times) and not any(slow):
            continue
        anchor = text(rung.name) if rung.kind == "library" else f'<a href="#{_id(rung)}">{text(rung.name)}</a>'
        cells = [_time(f, ladder, dtype, s) or forecast for f, s, forecast in zip(times, shapes, slow, strict=True)]
        rows.append([anchor, *cells, *_details(ladder.get(rung.full_name, dtype, main))])
        classes.append("library" if rung.kind == "library" else "")
    numbers = range(1, len(columns) - 1)
    label = f"{ladder.operation.name} in {dtype}, all shapes; from p20 on: {main}"
    caption = f'<p class="caption">Cold medians; the columns from p20 on tell of {text(main)}.</p>'
    return table(columns, rows, numbers=list(numbers), label=label, classes=classes) + caption


def _time(figure: Figure | None, ladder: Ladder, dtype: str, shape: str) -> str:
    if figure is None:
        return ""
    told = time_text(figure.us) + ("†" if figure.old else "")
    best = figure.us == min(f.us for f in ladder.column(dtype, shape))
    return f"<strong>{told}</strong>" if best else told


def _details(figure: Figure | None) -> list[str]:
    if figure is None:
        return [""] * 8
    row = figure.row
    spread = f"{time_text(row['cold_p20_us'])} – {time_text(row['cold_p80_us'])}" if row.get("cold_p20_us") else ""
    warm, sheet = row.get("warm_us"), row.get("of_datasheet")
    return [
        spread,
        time_text(warm) if warm else "",
        f"{row['gbps']:.0f}",
        f"{row['tflops']:.3g}",
        percent(figure.share),
        percent(sheet) if sheet else "",
        climb_chart.ratio_text(figure.ratio) if figure.ratio is not None else "",
        text(row.get("against_before") or ""),
    ]


def _notes(figures: Sequence[Figure]) -> str:
    notes = [f"{f.name}: {n}" for f in figures for n in f.row.get("notes") or ()]
    if any(f.old for f in figures):
        notes.append("† measured on an earlier version of the rung")
    return f'<p class="caption">{text("; ".join(notes))}.</p>' if notes else ""


def _rung(rung: Rung, measured: Ladder | None, resources: Sequence[Row]) -> str:
    parent = catalogue.parent(rung)
    facts = [("expected", rung.expect), ("found", rung.found), ("a leap because", rung.leap), ("by", rung.provenance)]
    told = "".join(f"<dt>{label}</dt><dd>{prose(value)}</dd>" for label, value in facts if value)
    chips = "".join(f"<li>{text(m)}</li>" for m in (rung.kind, *rung.dtypes))
    needs = "".join(f"<li><code>{text(n)}</code></li>" for n in rung.needs)
    told += f"<dt>needs</dt><dd><ul>{needs}</ul></dd>" if needs else ""
    tunables = " · ".join(f"{n} = {', '.join(map(str, v))}" for n, v in rung.tune.items())
    changes = ""
    if parent is not None:
        changes = (
            f"<details><summary>What changed from {text(parent.full_name)}</summary>"
            f"{patch(difference.lines(parent, rung)[2:])}</details>"
        )
    return f"""<article class="rung" id="{_id(rung)}">
<h3><a href="#{_id(rung)}">{text(rung.name.replace("_", " "))}</a></h3>
<p class="idea">{prose(rung.idea)}</p>
<ul class="chips">{chips}</ul>
{_speed(rung, parent, measured)}
<dl>{told}{f"<dt>tunables</dt><dd>{text(tunables)}</dd>" if tunables else ""}</dl>
{_resources(resources)}
{changes}
<details><summary>Source</summary>{source(rung.source, rung.kind)}</details>
</article>
"""


def _speed(rung: Rung, parent: Rung | None, measured: Ladder | None) -> str:
    """One line: how fast in each number format, and how much against the rung that it is from."""
    if measured is None:
        return ""
    told = []
    for dtype in measured.dtypes():
        shape = measured.headline(dtype)
        figure = measured.get(rung.full_name, dtype, shape)
        if figure is None:
            continue
        line = f"<strong>{time_text(figure.us)} µs</strong>{'†' if figure.old else ''} in {dtype}"
        line += f", {percent(figure.share)} of the limit"
        earlier = measured.get(parent.full_name, dtype, shape) if parent is not None else None
        if earlier is not None and parent is not None:
            line += f", {climb_chart.ratio_text(earlier.us / figure.us)} the speed of {text(parent.name)}"
        told.append(f"<li>{line}</li>")
    return f'<ul class="speed">{"".join(told)}</ul>' if told else ""


def _resources(rows: Sequence[Row]) -> str:
    if not rows:
        return ""
    shown = []
    for row in rows:
        if row.registers is None:
            shown.append([text(row.kernel or row.dtype), "", "", "", "", "", text(row.reason.splitlines()[0])])
            continue
        shared = f"{row.static_shared}+{row.dynamic_shared}" if row.dynamic_shared else str(row.static_shared)
        spills = f"{row.spill_stores}+{row.spill_loads}" if row.spills else "0"
        block = " × ".join(str(n) for n in row.block or () if n > 1) or "1"
        limiter = f"limited by {row.limiter}" if row.limiter and (row.occupancy or 0) < 1 else ""
        occupancy = f"{100 * (row.occupancy or 0):.0f} %"
        shown.append([text(row.kernel), block, str(row.registers), shared, spills, occupancy, text(limiter)])
    first = rows[0]
    columns = ("kernel", "block", "registers", "shared, B", "spills, B", "occupancy", "")
    label = f"compiled for {first.arch}, {first.dtype}, {first.shape}"
    inner = table(columns, shown, numbers=(1, 2, 3, 4, 5), label=label)
    return f"<details><summary>Registers and occupancy</summary>{inner}<p class=caption>{text(label)}</p></details>"


def _libraries(name: str) -> str:
    libraries = [r for r in catalogue.rungs(name) if r.kind == "library"]
    if not libraries:
        return ""
    items = "".join(f"<li><strong>{text(r.name)}</strong>: {prose(r.idea)}</li>" for r in libraries)
    return f"<h2>The libraries</h2><ul>{items}</ul>"
