"""The tables and pictures of docs/reproduce/ and docs/coverage.md: what the documents found and did, beside ours."""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from itertools import cycle
from typing import Any

from gpuless.facts import limits
from rung.operation import folders
from rung.profile.roofline import place
from rung.results import codes, store
from rung.results.current import Figures, by_gpu
from rung.results.row import Row
from rung.rungs import catalogue
from rung.show import roofline_chart
from rung.show.charts import escape
from rung_reproduce import findings, items, sources
from rung_reproduce.show import charts, forms
from rung_reproduce.show.charts import Bar, Panel, Series
from rung_reproduce.show.markdown import picture, plain, table

ROOT = store.ROOT
FORMATS = {"float32": "f32", "tf32": "tf32"}  # colours
ROOFED = ("residual", "gelu", "layernorm", "softmax", "attention", "matmul")  # the best of each
TILED = ("01_naive", "03_shared_tiles", "05_register_tiles")  # and these of the last
WIDEST = 80  # characters of a cell in a study's table
SWEEP = "Threads per block of "


@dataclass(frozen=True)
class Shown:
    """Rows of the present code: of the GPU that is shown, of others, and counts without one."""

    gpu: str
    rows: Sequence[Row]
    others: Mapping[str, Sequence[Row]]
    counts: Sequence[Row]

    @property
    def judged(self) -> Sequence[Row]:
        """What findings are judged by: this GPU's rows, and counts that need no GPU."""
        return [*self.rows, *self.counts] if self.rows else []

    @property
    def columns(self) -> forms.Ours:
        return forms.columns_of(self.rows, self.counts, self.others, self.gpu)


def shown(found: Figures, rows: Sequence[Row] = ()) -> Shown:
    ours = [row for row in found.results if codes.current(row)]
    counts = [row for row in rows if row.kind == "count" and codes.current(row)]
    of = by_gpu(rows)
    others = {gpu: [r for r in f.results if codes.current(r)] for gpu, f in of.items() if gpu and gpu != found.gpu}
    return Shown(found.gpu, ours, others, counts)


def first(name: str, on: Shown) -> str:
    """A document's first screen: its headlines with theirs and ours, reversals first, and its exact counts."""
    lines = [
        tuple(map(plain, (f.says, *f.cells(on.judged), f.verdict(on.judged))))
        for f in findings.headlines(name, on.judged)
    ]
    heads = ("they found", f"theirs, {_short(sources.documents()[name].gpu)}", f"ours, {on.gpu or 'no GPU'}", "")
    made = table(heads, lines).replace("| --- | ---: | ---: | ---: |", "| --- | ---: | ---: | --- |")
    takeaway, exact = (findings.told(name, key) for key in ("takeaway", "exact"))
    count = Counter(f.judged(on.judged) for f in findings.of_document(name))
    said = ", ".join(f"{count[v]} {word}" for v, word in findings.VERDICTS.items() if count[v])
    link = f"All {count.total()} findings ({said}), with reasons, and every table:"
    rule = "A verdict is made from the two figures by [one rule](../reproduce.md#what-a-verdict-is)."
    return f"\n{plain(takeaway)}\n{made}**Counts:** {exact}\n\n{rule} {link} [{name}-all.md]({name}-all.md).\n\n"


def _short(gpu: str) -> str:
    return gpu.removeprefix("NVIDIA ")


def every(name: str, on: Shown) -> str:
    """All that a document found, and what is found here; its tables in their order and form, each with what differs;
    whole tables of our studies; the commands that repeat ours."""
    of = findings.of_document(name)
    lines = []
    for finding in of:
        says, *cells = (plain(cell) for cell in finding.line(on.judged))
        where = next((e.anchor for e in _own(name) for f in e.figures if f in finding.figures), "")
        lines.append((f"[{says}](#{where})" if where else says, *cells))
    rule = f"{findings.RULE} [The other verdicts](../reproduce.md#what-a-verdict-is)."
    parts = [f"\n## Its findings, and ours\n\n{rule}\n{table(findings.COLUMNS, lines, words=3)}"]
    for form in forms.forms(name, on.columns):
        parts.append(_form(form))
    for study in sources.documents()[name].studies:
        what, _, part = study.partition("/")
        rows = [r for r in on.rows if r.kind == "study" and (r.what, r.part) == (what, part)]
        if rows:
            parts.append(_study(study, rows[-1].detail))
    again = dict.fromkeys(c for e in _own(name) for f in e.figures for c in f.command.split("; ") if not f.reason)
    listed, head = "\n".join(again), "<details><summary>The commands that measure ours</summary>"
    parts.append(f"\n{head}\n\n```sh\n{listed}\n```\n\n</details>\n")
    return "".join(parts) + "\n"


def _study(study: str, told: Mapping[str, Any]) -> str:
    """A whole table of a study of ours, folded."""
    without, reason = sources.left_out(study)
    shown = [i for i, column in enumerate(told["columns"]) if column not in without]
    body = [tuple(plain(_cut(str(line[i]))) for i in shown) for line in told["rows"]]
    title = escape(sources.title(study, told["title"])) + f" (rung study {study.partition('/')[0]})"
    heads = [plain(told["columns"][i]) or " " for i in shown]
    said = " ".join(filter(None, (plain(told["finding"]), reason)))
    return f"\n<details><summary>{title}</summary>\n\n{said}\n{table(heads, body)}</details>\n"


def _cut(cell: str) -> str:
    """The beginning of a kernel's name where templates make it long."""
    return cell if len(cell) <= WIDEST else f"{cell[:WIDEST]} ..."


def _own(name: str) -> list[sources.Experiment]:
    return [e for e in sources.experiments() if e.document.name == name]


def _form(form: forms.Form) -> str:
    """A table under its section, with what differs and the kernels that ours are of."""
    anchors = "".join(f'<a id="{e.anchor}"></a>\n' for e in form.experiments)
    rungs = dict.fromkeys(rung for e in form.experiments for rung in e.rungs)
    by = f" By {', '.join(link(rung, '../../') for rung in rungs)}." if rungs else ""
    figures = [f for e in form.experiments for f in e.figures]
    reasons = dict.fromkeys(f.reason for f in figures if f.reason and f.reason != "as above")
    made = table(form.heads, [tuple(map(plain, line)) for line in form.lines])
    rest = table(forms.REST, [tuple(map(plain, line)) for line in form.rest])
    without = "\nWithout ours: " + plain("; ".join(reasons)) + ".\n" if reasons else ""
    head = f"### {form.experiment.section}: {plain(form.title)}"
    return f"\n{anchors}\n{head}\n\n{plain(form.differs)}{by}\n{made}{rest}{without}"


def link(name: str, root: str = "../") -> str:
    """What shows an item, with a link to its code or figures, from a page whose way to the repository is `root`."""
    kind, _, rest = name.partition(" ")
    if kind == items.FIGURES:
        some = [e for e in sources.experiments() if e.figures[0] in items.figures(rest)]
        return f"[figures](reproduce/{some[0].document.name}-all.md#{some[0].anchor})"
    if name.startswith(items.FILES):
        path, _, test = name.partition("::")
        target = path.removeprefix("docs/") if path.startswith("docs/") else f"{root}{path}"
        return f"[{test.replace('_', ' ') or path}]({target})"
    if rest:
        return f"`{name}`"
    rung = catalogue.find(name)
    file = rung.path or folders()[rung.operation.name] / "operation.py"  # of a library's call
    return f"[{name}]({root}{file.relative_to(ROOT).as_posix()})"


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


def embedded(drawn: Mapping[str, str], name: str) -> str:
    """The picture in both colour schemes, for a page in docs/reproduce/; empty if it was not measured."""
    return picture(name, titles()[name], "../pictures") if name in drawn else ""


def titles() -> dict[str, str]:
    """Each picture's title."""
    drawn = {f"reproduce-{_name(e)}": _drawn(e) for e in sources.experiments() if e.drawn}
    gains = {f"reproduce-{d.name}": f"{GAINS}: theirs and ours" for d in sources.documents().values() if d.gains}
    return {
        **drawn, **gains, "climb-course": "The climb of the two course reports, step by step",
        "reproduce-sweep": "Time of a forward pass's calls over the threads of a block: theirs and ours",
        "reproduce-scaling": "Softmax and attention over N, linear and tree: theirs and ours",
        "reproduce-ranks": "Attention of 8,192 rows over ranks of one host, measured and forecast, and by CUDA",
        "reproduce-registers": "Warps of a multiprocessor over the registers of a thread, on the report's architecture",
        "reproduce-roofline": "The best kernel of each operation, and a product's way up, under the roofline",
    }  # fmt: skip


def _drawn(e: sources.Experiment) -> str:
    """The title of its picture, with whose figures it has where it does not say so itself."""
    theirs = any(f.value is not None for f in e.figures if f.unit == e.unit)
    return e.drawn if ":" in e.drawn else f"{e.drawn}: {'theirs and ours' if theirs else 'ours'}"


WHOSE = ("theirs", "ours")
SCALING = ("linear", "tree", "computing, linear", "computing, tree")  # columns of the milestone's tables, over N
REGISTERS, BLOCKS, SEEN = range(16, 129, 4), (64, 128, 256), "sm_86"  # of the third milestone's chart of occupancy
GAINS = "Times as fast as before"


def _name(e: sources.Experiment) -> str:
    return "-".join(e.drawn.lower().partition(":")[0].split()[:3])


def steps(found: Figures) -> list[Row]:
    """The course's climb, in its order."""
    some = (r for r in found.of_kind("climb") if r.options.get("study") == "course" and "tokens_per_s" in r.metrics)
    return sorted(some, key=lambda r: int(r.detail["step"]))


def pictures(found: Figures) -> dict[str, str]:
    """The course's climb, bars of theirs and ours, the sweep as curves, products under the roofline."""
    rows = [row for row in found.results if codes.current(row)]
    drawn = {"climb-course": _climb(found)} if steps(found) else {}
    for e in (e for e in sources.experiments() if e.drawn):
        cells = [(f.what, f.value, f.beside(rows)) for f in e.figures if f.unit == e.unit]
        if any(ours for *_, ours in cells):
            drawn[f"reproduce-{_name(e)}"] = _bars(_drawn(e), cells, f"{e.gpu} and {found.gpu}", e.unit, e.differs)
    for d in (d for d in sources.documents().values() if d.gains):
        some = [(label, findings.figure(d.name, key)) for label, key in d.gains]
        cells = [(label, f.value, f.beside(rows)) for label, f in some]
        if any(ours for *_, ours in cells):
            drawn[f"reproduce-{d.name}"] = _bars(GAINS, cells, f"{d.gpu} and {found.gpu}", "times as fast", d.title)
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
            series, title=titles()["reproduce-sweep"], description=f"{swept[0].gpu} dashed, {found.gpu} solid.",
            x_label="threads of a block", y_label="us", width=860, height=420,
        )  # fmt: skip
    drawn |= _scaling(found, rows) | _ranks(found, rows) | _registers()
    columns = [found.ladder(name).column("bf16", "b8t1024") for name in ROOFED]
    kernels = [[f for f in column if not f.library] for column in columns]
    points = [min(column, key=lambda f: f.us) for column in kernels if column]
    points += [f for f in kernels[-1] if f.name in TILED]
    if points and found.limits.bytes:
        title = titles()["reproduce-roofline"]
        drawn["reproduce-roofline"] = roofline_chart.chart(place(points), found.limits, title=title)
    return drawn


def _scaling(found: Figures, rows: Sequence[Row]) -> dict[str, str]:
    """The milestone's figure 1, on logarithmic scales: its two tables over N."""
    name, own = "reproduce-scaling", [f for e in _own("milestone") if e.form == ": " for f in e.figures]
    series = []
    for column, colour in zip(SCALING, charts.SERIES, strict=False):
        cells = [f for f in own if f.what.partition(": ")[2] == column]
        at = [float(f.what.partition(": ")[0].removeprefix("N = ")) for f in cells]
        label = column if "computing" in column else f"softmax, {column}"
        for whose, values in zip(WHOSE, ([f.value for f in cells], [f.beside(rows) for f in cells]), strict=True):
            points = list(zip(at, values, strict=True))
            series.append(Series(f"{label}, {whose}", points, colour, whose == WHOSE[0]))
    if not any(value for s in series if not s.dashed for _, value in s.points):
        return {}
    return {name: charts.curves(
        series, title=titles()[name], description=f"Its GPU, not named, dashed, {found.gpu} solid.", x_label="N",
        y_label="ms", width=860, height=460,
    )}  # fmt: skip


def _ranks(found: Figures, rows: Sequence[Row]) -> dict[str, str]:
    """A ring of ranks, as far as it was measured and as forecast, and the same attention by CUDA."""
    name = "reproduce-ranks"
    told = [r.detail for r in rows if (r.kind, r.what, r.part) == ("study", "ranks", "")]
    if not told:
        return {}
    lines = [dict(zip(told[-1]["columns"], map(str, line), strict=True)) for line in told[-1]["rows"]]
    ring = [line for line in lines if line["who"] == "ring"]
    ends = [float(line["ranks"]) for line in ring]
    colours = cycle(charts.SERIES)
    series = []
    for mask in dict.fromkeys(line["mask"] for line in lines):
        colour = next(colours)
        for column, dashed in (("measured ms", False), ("forecast ms", True)):
            points = [(float(x["ranks"]), float(x[column])) for x in ring if x["mask"] == mask and x[column]]
            series.append(Series(f"ring, {mask}, {column.split()[0]}", points, colour, dashed))
        for line in (x for x in lines if x["mask"] == mask and x["who"].startswith("CUDA")):
            points = [(at, float(line["measured ms"])) for at in (min(ends), max(ends))]
            series.append(Series(f"{line['who']}, {mask}", points, next(colours)))
    return {name: charts.curves(
        series, title=titles()[name], description=f"Ranks are processes of one host; CUDA is an {found.gpu}.",
        x_label="ranks", y_label="ms, computing", width=860, height=420,
    )}  # fmt: skip


def _registers() -> dict[str, str]:
    """What Nsight Compute draws for a launch: how many warps fit, from the limits of the architecture alone."""
    name = "reproduce-registers"
    series = []
    for threads, colour in zip(BLOCKS, charts.SERIES, strict=False):
        points = [(float(n), float(limits.occupancy(SEEN, threads, n, 0).warps)) for n in REGISTERS]
        series.append(Series(f"blocks of {threads}", points, colour))
    return {name: charts.curves(
        series, title=titles()[name], description=f"{SEEN}: 48 warps, 16 blocks, 65,536 registers.",
        x_label="registers of a thread", y_label="warps", width=860, height=360, log_x=False, log_y=False, marks=False,
    )}  # fmt: skip


def _bars(
    title: str, cells: Sequence[tuple[str, float | None, float | None]], gpus: str, unit: str, description: str
) -> str:
    """Theirs and ours below each other. Times of two GPUs are told as shares of their first."""
    scaled = unit in ("ms", "us", "s")
    columns = list(zip(*(c[1:] for c in cells), strict=True))
    whole = [next((v for v in column if v), 1.0) if scaled else 1.0 for column in columns]
    bars = [
        Bar(f"{what}, {whose}", value / of, (sources.number(value),), colour)
        for what, *both in cells
        for value, of, whose, colour in zip(both, whole, WHOSE, ("library", "f32"), strict=True)
        if value
    ]
    axis = "of the first" if scaled else unit
    axis += f" ({whose})" if (whose := title.partition(": ")[2]) not in ("", "theirs and ours") else ""
    return charts.bars([Panel(gpus, bars, [])], title=title, description=description, unit=axis, columns=(unit,))


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
