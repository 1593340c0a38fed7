"""The tables of docs/reproduce.md: each figure of the five documents, theirs and ours, and the course's climb."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence

from rung.results import codes, findings, items, sources
from rung.results.current import Figures, by_gpu
from rung.results.row import Row
from rung.show import charts
from rung.show.charts import Bar, Panel
from rung.show.markdown import picture, plain, table

FORMATS = {"float32": "f32", "tf32": "tf32"}  # colours


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
        differs = f"{plain(e.differs)}\n" if e.differs else ""
        parts.append(f"\n### {e.section}: {plain(e.title)}\n\n{differs}{table(heads, lines)}")
        if reasons:
            parts.append("\nWithout ours: " + plain("; ".join(reasons)) + ".\n")
    listed, head = "\n".join(again), "<details><summary>The commands that measure ours</summary>"
    parts.append(f"\n{head}\n\n```sh\n{listed}\n```\n\n</details>\n")
    return "".join(parts) + "\n"


def _findings(name: str, rows: Sequence[Row]) -> str:
    of = [f for f in findings.findings() if f.document.name == name]
    counts = Counter(f.verdict for f in of)
    words = ", ".join(f"{counts[v]} {said}" for v, said in findings.VERDICTS.items() if counts[v])
    lines = [tuple(plain(cell) for cell in finding.line(rows)) for finding in of]
    told = f"{plain(findings.takeaways()[name])} Of its {len(of)} findings: {words}."
    return f"\n{told}\n\n### Its findings, and ours\n{table(findings.COLUMNS, lines, words=3)}"


def covered(rows: Sequence[Row], name: str) -> str:
    """A document's items: what shows each, and whether that is there."""
    right = [row for row in rows if codes.current(row)]
    lines = []
    for item in (i for i in items.items() if i.document == name):
        missing = item.missing(right)
        waits = f"waits for {', '.join(f'`{m}`' for m in missing)}"
        empty = ", ".join(item.empty(right))
        partly = f"partly: {empty} without a row of ours, for the reason given" if empty else ""
        state = f"closed: {item.closed}" if item.closed else waits if missing else partly or "as described"
        lines.append((item.section, item.what, ", ".join(f"`{n}`" for n in item.shown_by), state))
    return table(("section", "technique, kernel or experiment", "shown by", "state"), lines, words=4)


def counted(rows: Sequence[Row]) -> str:
    """How many items are as described, wait for a row, or are closed."""
    right = [row for row in rows if codes.current(row)]
    closed = sum(bool(item.closed) for item in items.items())
    waiting = sum(bool(item.missing(right)) for item in items.items())
    every = len(items.items())
    partly = sum(bool(item.empty(right)) and not item.missing(right) for item in items.items())
    done = every - closed - waiting - partly
    states = f"{done} are as described, {partly} partly, {waiting} wait for a row and {closed} are closed"
    where = "What the documents found, and what is found here, is in [reproduce.md](reproduce.md)."
    return f"\nOf {every} items {states}. {where}\n\n"


def course(found: Figures) -> str:
    """The picture of the course's climb; empty if it was not measured."""
    return picture("climb-course", "Tokens per second, step by step", "pictures") if steps(found) else ""


def steps(found: Figures) -> list[Row]:
    """The course's climb, in its order."""
    some = (r for r in found.of_kind("climb") if r.options.get("study") == "course" and "tokens_per_s" in r.metrics)
    return sorted(some, key=lambda r: int(r.detail["step"]))


def pictures(found: Figures) -> dict[str, str]:
    """The course's climb as bars."""
    rows = steps(found)
    if not rows:
        return {}
    host = [row.metrics["tokens_per_s"] for row in rows]
    rates = [1e3 / row.metrics["kernel_ms"] if "kernel_ms" in row.metrics else 0.0 for row in rows]
    rates = rates if all(rates) else host
    bars = [
        Bar(row.part, rate, (f"{rate:,.1f}", f"{slow:,.1f}"), FORMATS.get(row.dtype, "f32"), tip=row.detail["idea"])
        for row, rate, slow in zip(rows, rates, host, strict=True)
    ]
    first = rows[0]
    title = f"{first.what}, one sequence, a cache in the last step only, {found.gpu}"
    drawn = charts.bars(
        [Panel(title, bars, [])],
        title="The climb of the two course reports",
        description=f"From {rates[0]:,.1f} to {rates[-1]:,.1f} tokens per second in {len(rows)} steps.",
        unit="tokens per second of the kernels' time",
        columns=("tokens/s", "with the host"),
        width=860,
    )
    return {"climb-course": drawn}
