"""The tables and pictures of ladders: in each ladder's README, and the overview and the climbs of docs/figures.md."""

from __future__ import annotations

import climb_chart
from rung.results import current
from rung.results.current import Figure, Figures, Ladder
from rung.results.row import Row
from rung.rungs import catalogue
from rung.show import model_chart, verdicts
from rung.show.verb_tables import cases_left_out
from rung_reproduce.show import markdown
from rung_reproduce.show.model_chart import chart

CLIMBS = ("attention", "matmul", "layernorm")
SHOWN_CLIMB = "attention"  # the README's picture: the fastest so far
SHOWN = "layernorm"  # the ladder whose check the README shows


def pictures(found: Figures) -> dict[str, str]:
    """The climbs of some ladders, and that of the whole model."""
    charts = {f"climb-{n}": climb_chart.climb(found.ladder(n), found.limits) for n in CLIMBS if n in found.names()}
    if SHOWN_CLIMB in found.names():
        charts[f"steps-{SHOWN_CLIMB}"] = climb_chart.steps(found.ladder(SHOWN_CLIMB), found.limits)
    steps = model_chart.steps(found.of_kind("climb"))
    return charts | ({"climb-model": chart(steps)} if steps else {})


def times(found: Figures, name: str) -> str:
    """A ladder's tables of times; empty if nothing was measured."""
    if name not in found.names():
        return ""
    ladder = found.ladder(name)
    parts = [_caption(found, ladder), *(_table(ladder, dtype) for dtype in ladder.dtypes())]
    notes = _notes(ladder)
    return "\n" + "\n".join(parts) + ("\n" + notes + "\n" if notes else "\n")


PASSED = "More than 100 %: the limit is a copy's rate, which a kernel passes that mostly reads, or finds data in L2.\n"


def _caption(found: Figures, ladder: Ladder) -> str:
    machine, limits = max((f.row for f in ladder.found.values()), key=lambda r: r.time).machine, found.limits
    rates = ", ".join(f"{limits.flops[d] / 1e12:.0f} TFLOP/s in {d}" for d in ladder.dtypes() if d in limits.flops)
    return (
        f"Cold times on an {found.gpu} (driver {machine.get('driver')}, CUDA {machine.get('cuda')}, "
        f"torch {machine.get('torch')}), as `rung bench {ladder.operation.name}` takes them, each of the code as it "
        f"is. The limit is the highest that was measured on such a machine: a copy at {limits.bytes / 1e12:.2f} TB/s, "
        f"products at {rates}; the share and the comparison with the best library are those of the column in bold.\n"
    )


def _table(ladder: Ladder, dtype: str) -> str:
    shapes, main = ladder.few_shapes(dtype), ladder.headline(dtype)
    heads = [dtype, "idea", *(f"**{s}**, µs" if s == main else f"{s}, µs" for s in shapes), "of limit", "vs library"]
    lines = []
    for rung in filter(catalogue.shipped, ladder.rungs):
        row = [ladder.get(rung.full_name, dtype, s) for s in shapes]
        others = [ladder.instead(rung.full_name, dtype, s) for s in shapes]
        if not any(row) and not any(others):
            continue
        chief = ladder.get(rung.full_name, dtype, main)
        library = rung.kind == "library"
        name = f"*{rung.name}*" if library else f"[{rung.name}]({rung.path.name if rung.path else ''})"
        cells = [name, "" if library else markdown.plain(current.short(rung.idea))]
        cells += [_cell(f, ladder) if f else other for f, other in zip(row, others, strict=True)]
        lines.append([*cells, current.percent(chief.share) if chief else "", versus(chief)])
    return markdown.table(heads, lines, words=2).strip("\n") + "\n"


def _cell(figure: Figure, ladder: Ladder) -> str:
    text = current.time_text(figure.us)
    best = figure.us == min(f.us for f in ladder.column(figure.row.dtype, figure.row.shape))
    return f"**{text}**" if best else text


def versus(figure: Figure | None) -> str:
    """The speed relative to the best library's of the same race; empty if there was none."""
    return current.ratio_text(figure.ratio) if figure is not None and figure.ratio is not None else ""


def _notes(ladder: Ladder) -> str:
    shown = [f for k, f in ladder.found.items() if k[2] in ladder.few_shapes(k[1])]
    return PASSED if any(_passes(f) for f in shown) else ""


def _passes(figure: Figure) -> bool:
    return round(figure.share, 2) > 1  # as printed


def climb(found: Figures, name: str) -> str:
    """The picture of a ladder's climb, or of the model's."""
    if name == "model":
        steps = model_chart.steps(found.of_kind("climb"))
        alt_text = f"The climb of the whole model: {model_chart.summary(steps)}" if steps else ""
    else:
        alt_text = f"The climb of {name}: {summary(found.ladder(name))}" if name in found.names() else ""
    return markdown.picture(f"climb-{name}", alt_text, "pictures") if alt_text else ""


def steps(found: Figures) -> str:
    """The README's picture."""
    if SHOWN_CLIMB not in found.names():
        return ""
    alt_text = f"{SHOWN_CLIMB}, the fastest so far, step by step: {summary(found.ladder(SHOWN_CLIMB))}"
    return markdown.picture(f"steps-{SHOWN_CLIMB}", alt_text, "docs/pictures")


def summary(ladder: Ladder) -> str:
    """First, best and library in each number format, in words."""
    sentences = []
    for dtype in ladder.dtypes():
        _, shape, ours = ladder.ours(dtype)
        library = ladder.best_library(dtype, shape)
        if not ours:
            continue
        best = min(ours, key=lambda f: f.us)
        text = f"in {dtype} from {current.time_text(ours[0].us)} µs ({ours[0].name}) "
        text += f"to {current.time_text(best.us)} µs ({best.name})"
        sentences.append(text + (f", {library.name} {current.time_text(library.us)} µs" if library else ""))
    return "; ".join(sentences)


def overview(found: Figures) -> str:
    """All ladders: what they compute, the number of rungs, and their best results."""
    measured = set(found.names())
    lines = []
    for name, operation in catalogue.operations().items():
        cells = [operation.story, "", ""]
        if name in measured:
            cells = best_cells(found.ladder(name)) or cells
        page = f"[{name}](../src/rung/ladders/{name}/README.md)"
        lines.append([page, sum(map(catalogue.shipped, catalogue.rungs(name, libraries=False))), *cells])
    heads = ("ladder", "rungs", "from naive to best", "of limit", "vs library")
    made = markdown.table(heads, lines)
    made = made.replace("| --- | ---: | ---: | ---: | ---: |", "| --- | ---: | --- | ---: | ---: |")
    columns = [found.ladder(name).ours()[2] for name in measured]
    return f"{made}{PASSED}\n" if any(_passes(min(c, key=lambda f: f.us)) for c in columns if c) else made


def best_cells(ladder: Ladder) -> list[str]:
    """First and best rung at the headline, and the best's speed relative to the limit and to the best library."""
    dtype, shape, ours = ladder.ours()
    if not ours:
        return []
    best = min(ours, key=lambda f: f.us)
    path = f"{current.time_text(ours[0].us)} → {current.time_text(best.us)} µs ({dtype}, {shape})"
    return [path, current.percent(best.share), versus(best)]


def checked(found: Figures) -> str:
    """The result of `rung check` for one ladder, and for all, of its last run on a GPU."""
    every = [r for r in found.of_kind("check") if r.verdict in ("ok", "failed") and _offered(r)]
    if not every:
        return ""
    some = sorted((r for r in every if r.operation == SHOWN and r.dtype == "f32"), key=lambda r: r.what)
    width = max((len(r.what) for r in some), default=0)
    lines = [
        verdicts.head(
            f"{r.what:{width}}", r.dtype, r.metrics["cases"], r.metrics.get("error_element", 0.0), r.verdict,
            cases_left_out(r.what, left_out) if (left_out := r.detail.get("left_out")) else "",
        )
        for r in some
    ]  # fmt: skip
    right = sum(r.verdict == "ok" for r in every)
    commits = sorted({r.commit[:7] for r in every})
    where = f"{found.gpu} (commit {', '.join(commits)})" if len(commits) == 1 else found.gpu
    shown = "\n".join([f"$ rung check {SHOWN} --dtype f32", *lines])
    sentence = f"{right} of {len(every)} implementations and number formats are right on an {where}"
    return f"\n```text\n{shown}\n```\n\n{sentence}.\n\n"


def _offered(row: Row) -> bool:
    """Whether its rung still supports the row's number format, which is not part of a library's text."""
    return row.dtype in catalogue.find(row.what).dtypes
