"""The tables and pictures of docs/reproduce.md and docs/coverage.md: what the documents found and did, beside ours."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence

from rung.operation import folders
from rung.profile.roofline import place
from rung.results import codes, store
from rung.results.current import Figures, by_gpu
from rung.results.row import Row
from rung.rungs import catalogue
from rung.show import charts, roofline_chart
from rung.show.charts import Bar, Panel, Series
from rung.show.markdown import picture, plain, table
from rung_reproduce import findings, items, sources
from rung_reproduce.show.parallel_tables import study_of

ROOT = store.ROOT
FORMATS = {"float32": "f32", "tf32": "tf32"}  # colours
ROOFED = ("residual", "gelu", "layernorm", "softmax", "attention", "matmul")  # the best of each
TILED = ("01_naive", "03_shared_tiles", "05_register_tiles")  # and these of the last
SWEEP = "Threads per block of "
DRAWN = {  # pictures of experiments, theirs beside ours: title, unit
    "throughput": ("Throughput before and after the reduction", "% of each GPU's rate"),
    "occupancy": ("Occupancy of the residual's kernel", "% of each GPU's warps"),
}


def document(found: Figures, name: str, rows: Sequence[Row] = ()) -> str:
    """What a document found and what is found here; its experiments in their order, each with what differs; the
    commands that repeat ours.

    Of all `rows`, those of another GPU have a column in the tables that they fill.
    """
    ours = [row for row in found.results if codes.current(row)]
    counts = [row for row in rows if row.kind == "count" and codes.current(row)]
    others = {gpu: [r for r in f.results if codes.current(r)] for gpu, f in by_gpu(rows).items() if gpu != found.gpu}
    parts, again = [_findings(name, ours)], dict[str, None]()
    for e in (e for e in sources.experiments() if e.document.name == name):
        columns = {gpu: [cells[2] for cells in e.table(of)] for gpu, of in others.items() if gpu}
        columns["emulated"] = [cells[3] for cells in e.table([], counts)]
        columns = {name: cells for name, cells in columns.items() if any(cells)}
        lines = [
            (plain(what), theirs, mine, *more, unit)
            for (what, theirs, mine, _, unit, _), *more in zip(e.table(ours), *columns.values(), strict=True)
        ]
        again |= dict.fromkeys(c for f in e.figures for c in f.command.split("; ") if not f.reason)
        reasons = dict.fromkeys(f.reason for f in e.figures if f.reason and f.reason != "as above")
        heads = ("", f"theirs, {e.gpu}", f"ours, {found.gpu or 'no GPU yet'}", *columns, "unit")
        by = f" By {', '.join(map(link, e.rungs))}." if e.rungs else ""
        head = f'<a id="{e.anchor}"></a>\n\n### {e.section}: {plain(e.title)}'
        parts.append(f"\n{head}\n\n{plain(e.differs)}{by}\n{table(heads, lines)}")
        if reasons:
            parts.append("\nWithout ours: " + plain("; ".join(reasons)) + ".\n")
    for study in sources.documents()[name].studies:
        what, _, part = study.partition("/")
        if told := study_of(found, part, what):
            lines = [tuple(plain(str(cell)) for cell in line) for line in told["rows"]]
            title = f"{charts.escape(told['title'])} (`rung study {what}`)".replace("`", "")
            parts.append(f"\n<details><summary>{title}</summary>\n\n{plain(told['finding'])}\n")
            parts.append(f"{table([plain(c) or ' ' for c in told['columns']], lines)}</details>\n")
    listed, head = "\n".join(again), "<details><summary>The commands that measure ours</summary>"
    parts.append(f"\n{head}\n\n```sh\n{listed}\n```\n\n</details>\n")
    return "".join(parts) + "\n"


def _findings(name: str, rows: Sequence[Row]) -> str:
    of = [f for f in findings.findings() if f.document.name == name]
    counts = Counter(f.verdict for f in of)
    words = ", ".join(f"{counts[v]} {said}" for v, said in findings.VERDICTS.items() if counts[v])
    lines = []
    for finding in of:
        says, *cells = (plain(cell) for cell in finding.line(rows))
        where = next((e.anchor for e in sources.experiments() for f in e.figures if f in finding.figures), "")
        lines.append((f"[{says}](#{where})" if where else says, *cells))
    told = f"{plain(findings.takeaways()[name])} Of its {len(of)} findings: {words}."
    return f"\n{told}\n\n### Its findings, and ours\n{table(findings.COLUMNS, lines, words=3)}"


def link(name: str) -> str:
    """What shows an item, with a link to its code or to its figures."""
    kind, _, rest = name.partition(" ")
    if kind == items.FIGURES:
        some = [e for e in sources.experiments() if e.figures[0] in items.figures(rest)]
        return f"[figures](reproduce.md#{some[0].anchor})"
    if name.startswith(items.FILES):
        path, _, test = name.partition("::")
        target = path.removeprefix("docs/") if path.startswith("docs/") else f"../{path}"
        return f"[{test.replace('_', ' ') or path}]({target})"
    if rest:
        return f"`{name}`"
    rung = catalogue.find(name)
    file = rung.path or folders()[rung.operation.name] / "operation.py"  # of a library's call
    return f"[{name}](../{file.relative_to(ROOT).as_posix()})"


def covered(rows: Sequence[Row], name: str) -> str:
    """A document's items: what shows each, how it agrees, and whether all of that is there."""
    right = [row for row in rows if codes.current(row)]
    lines = []
    for item in (i for i in items.items() if i.document == name):
        empty = ", ".join(item.empty(right))
        told = plain(item.closed or item.outcome) + (f" Without a row of ours: {empty}." if empty else "")
        lines.append((item.section, item.what, ", ".join(map(link, item.shown_by)), item.state(right), told))
    return table(("section", "technique, kernel or experiment", "shown by", "state", "outcome"), lines, words=5)


def counted(rows: Sequence[Row]) -> str:
    """How many items are as described, partly so, wait for a row, or are closed."""
    right = [row for row in rows if codes.current(row)]
    every = Counter(item.state(right).split()[0] for item in items.items())
    done = f"{every['as']} are as described, {every['partly']} partly"
    states = f"{done}, {every['waits']} wait for a row, {every['closed']} are closed"
    where = "What the documents found, and what is found here, is in [reproduce.md](reproduce.md)."
    return f"\nOf {every.total()} items {states}. {where}\n\n"


def course(found: Figures) -> str:
    """The picture of the course's climb; empty if it was not measured."""
    return picture("climb-course", "Tokens per second, step by step", "pictures") if steps(found) else ""


def embedded(found: Figures, name: str) -> str:
    """The picture in both colour schemes; empty if it was not measured."""
    return picture(f"reproduce-{name}", _ALTS[name], "pictures") if f"reproduce-{name}" in pictures(found) else ""


_ALTS = {
    **{name: f"{title}: theirs and ours" for name, (title, _) in DRAWN.items()},
    "sweep": "Time of a forward pass's calls over the threads of a block: theirs and ours",
    "roofline": "The best kernel of each operation, and a product's way up, under the roofline",
}


def steps(found: Figures) -> list[Row]:
    """The course's climb, in its order."""
    some = (r for r in found.of_kind("climb") if r.options.get("study") == "course" and "tokens_per_s" in r.metrics)
    return sorted(some, key=lambda r: int(r.detail["step"]))


def pictures(found: Figures) -> dict[str, str]:
    """The course's climb, throughputs and occupancy as bars, the sweep as curves, products under the roofline."""
    rows = [row for row in found.results if codes.current(row)]
    drawn = {"climb-course": _climb(found)} if steps(found) else {}
    for name, (title, unit) in DRAWN.items():
        (e,) = (e for e in sources.experiments() if e.title == title)
        bars = [
            Bar(f"{f.what}, {whose}", value, (sources.number(value),), colour)
            for f in e.figures
            if f.unit == "%" and f.value
            for whose, value, colour in (("theirs", f.value, "library"), ("ours", f.beside(rows), "f32"))
        ]
        if all(b.value for b in bars):
            drawn[f"reproduce-{name}"] = charts.bars(
                [Panel(f"{e.gpu} and {found.gpu}", bars, [])], title=_ALTS[name], description=e.differs, unit=unit,
                columns=("%",),
            )  # fmt: skip
    swept = [e for e in sources.experiments() if e.title.startswith(SWEEP)]
    series = [
        Series(f"{e.title.removeprefix(SWEEP).partition(',')[0].partition(':')[0]}, {whose}", points, colour, dashed)
        for e, colour in zip(swept, charts.SERIES, strict=False)
        for whose, dashed, points in (
            ("ours", False, [(float(f.what.split()[0]), f.beside(rows)) for f in e.figures]),
            ("theirs", True, [(float(f.what.split()[0]), f.value) for f in e.figures]),
        )
    ]
    if any(value for s in series if not s.dashed for _, value in s.points):
        drawn["reproduce-sweep"] = charts.curves(
            series, title=_ALTS["sweep"], description=f"{swept[0].gpu} dashed, {found.gpu} solid.",
            x_label="threads of a block", y_label="us", width=860, height=420,
        )  # fmt: skip
    columns = [found.ladder(name).column("bf16", "b8t1024") for name in ROOFED]
    kernels = [[f for f in column if not f.library] for column in columns]
    points = [min(column, key=lambda f: f.us) for column in kernels if column]
    points += [f for f in kernels[-1] if f.name in TILED]
    if points and found.limits.bytes:
        drawn["reproduce-roofline"] = roofline_chart.chart(place(points), found.limits, title=_ALTS["roofline"])
    return drawn


def _climb(found: Figures) -> str:
    rows = steps(found)
    host = [row.metrics["tokens_per_s"] for row in rows]
    rates = [1e3 / row.metrics["kernel_ms"] if "kernel_ms" in row.metrics else 0.0 for row in rows]
    rates = rates if all(rates) else host
    bars = [
        Bar(row.part, rate, (f"{rate:,.1f}", f"{slow:,.1f}"), FORMATS.get(row.dtype, "f32"), tip=row.detail["idea"])
        for row, rate, slow in zip(rows, rates, host, strict=True)
    ]
    first = rows[0]
    title = f"{first.what}, one sequence, a cache in the last step only, {found.gpu}"
    return charts.bars(
        [Panel(title, bars, [])],
        title="The climb of the two course reports",
        description=f"From {rates[0]:,.1f} to {rates[-1]:,.1f} tokens per second in {len(rows)} steps.",
        unit="tokens per second of the kernels' time",
        columns=("tokens/s", "with the host"),
        width=860,
    )
