"""The generated parts and pictures of this package, for `make tables`."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from functools import partial

from rung.results.current import Figures
from rung.results.row import Row
from rung_reproduce import sources
from rung_reproduce.show import attention_text_chart, page, parallel_tables
from rung_reproduce.show.markdown import picture, table, times


def tables(gpu: Figures, cpu: Figures, rows: Sequence[Row]) -> tuple[dict[str, Callable[[], str]], dict[str, str]]:
    """All generated parts by name, and all pictures."""
    on, drawn = page.shown(gpu, rows), page.pictures(gpu)
    makers: dict[str, Callable[[], str]] = {
        "course": partial(course, gpu, short=True),
        "speed:course": partial(course, gpu),
        "beyond:mpi": partial(parallel_tables.mpi, cpu),
        "beyond:strong": partial(parallel_tables.scaling, cpu, "strong"),
        "beyond:weak": partial(parallel_tables.scaling, cpu, "weak"),
        "picture:attention": partial(attention, gpu),
        "picture:attention-text": partial(attention, gpu, "../pictures"),
        "items": partial(page.counted, rows),
    }
    makers |= {f"picture:{name}": partial(page.embedded, drawn, name) for name in page.titles()}
    beyond = parallel_tables
    parts = (beyond.study, beyond.softmax, beyond.pipeline, beyond.ring, beyond.limits, beyond.split)
    makers |= {f"beyond:{make.__name__}": partial(make, gpu) for make in parts}
    for name in beyond.CHARTS:
        makers[f"picture:{name}"] = partial(beyond.embedded, gpu, cpu, name)
        makers[f"picture:beyond-{name}"] = partial(beyond.embedded, gpu, cpu, name, "../pictures")
    for name in sources.documents():
        makers[f"first:{name}"] = partial(page.first, name, on)
        makers[f"every:{name}"] = partial(page.every, name, on)
        makers[f"items:{name}"] = partial(page.covered, rows, name)
    return makers, pictures(gpu) | parallel_tables.pictures(gpu, cpu) | drawn


def pictures(found: Figures) -> dict[str, str]:
    """Text written with each attention rung in turn, if that was measured."""
    rows = attention_text_chart.steps(found.of_kind("climb"))
    if not any("seconds" in row.metrics for row in rows):
        return {}
    return {"attention-rung-by-rung": attention_text_chart.chart(rows[0].what, rows)}


def attention(found: Figures, folder: str = "pictures") -> str:
    """That picture, for a page that finds pictures in `folder`; empty if it was not measured."""
    alt_text = "Seconds over tokens of text for some variants of attention, and the time of every rung"
    return picture("attention-rung-by-rung", alt_text, folder) if pictures(found) else ""


def course(found: Figures, *, short: bool = False) -> str:
    """The climb of the course project, with the project's own speeds; `short` keeps the steps that have one."""
    theirs = {
        figure.ours[0].what: figure.value
        for experiment in sources.experiments()
        for figure in experiment.figures
        if figure.value and len(figure.ours) == 1 and figure.ours[0].kind == "course"
    }
    lines, before = [], None
    for row in page.steps(found):
        own, kernels = theirs.get(row.part), row.metrics.get("kernel_ms")
        if own or not short:
            gain = times(before / kernels) if before and kernels else ""
            rate = f"{row.metrics['tokens_per_s']:,.0f}"
            spent = [f"{kernels:.3g}" if kernels else "", gain]
            spent = spent[: 1 if short else 2]
            lines.append([row.part, *spent, rate, f"{own:.3g}" if own else ""])
        before = kernels
    if not lines:
        return ""
    heads = ("step", "kernels, ms a token", "gain over the step before", "tokens/s with the host", "theirs, on an A40")
    caption = f"Ours: {row.what}, {row.weights} weights, {row.options['new_tokens']} tokens, on an {row.gpu}.\n\n"
    return table(heads[:2] + heads[3:] if short else heads, lines) + caption
