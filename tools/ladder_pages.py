"""The ladders' pages of the documentation site: a drawing, the climb step by step, and the rungs as cards. What is
measured comes from the rows of a GPU, what is counted from those of the emulator.
"""

from __future__ import annotations

import re
from collections.abc import Sequence
from functools import cache
from html import escape

import climb_chart
from rung.results import store
from rung.results.current import Figures, Ladder, label, of_gpu, short, time_text
from rung.results.row import Row
from rung.rungs import catalogue, difference
from rung.rungs.base import Rung
from rung.show import charts, colours, drawings
from rung.show.report.ladder import speed
from rung.show.report.markup import patch, prose

MOST_CHANGES = 160  # lines of a difference that are shown
PLACE = re.compile(r'<div id="(back|drawing|climb|rungs)-here"></div>')


@cache
def _rows() -> tuple[Figures, dict[str, Row]]:
    rows = store.published()
    return of_gpu(rows, None), drawings.stored(rows)


def markdown(readme: str, name: str) -> str:
    """A ladder's README with places for the drawing, the climb and the cards after its first paragraph."""
    title, _, rest = readme.partition("\n\n")
    first, _, rest = rest.partition("\n\n")
    story, _, times = rest.partition("<!-- times -->")
    heads = {"drawing": "", "climb": "## The climb", "rungs": "## The rungs"}
    if name not in _rows()[0].names():
        del heads["climb"]
    parts = [title, '<div id="back-here"></div>', f"`{catalogue.operation(name).summary}`", first]
    parts += [f'{head}\n\n<div id="{place}-here"></div>' for place, head in heads.items()]
    parts += [f"## The story\n\n{story}"] * bool(story.strip())
    parts += [f"## Times\n\n<!-- times -->{times}"] * bool(times.strip())
    return "\n\n".join(parts)


def filled(page: str, name: str) -> str:
    """The page with what stands at these places."""
    return PLACE.sub(lambda place: html(name, place[1]), page)


def html(name: str, place: str) -> str:
    """The drawing, the climb or the cards of a ladder, or the way back to all of them."""
    if place == "back":
        return '<a href="../">All ladders</a>'
    figures, drawn = _rows()
    rungs = catalogue.rungs(name, libraries=False)
    ladder = figures.ladder(name) if name in figures.names() else None
    if place == "drawing":
        return _opening(rungs, ladder, drawn)
    if place == "rungs":
        return "".join(_card(rung, ladder, drawn) for rung in rungs)
    assert ladder is not None
    return f'<div class="chart">{climb_chart.climb(ladder, figures.limits)}</div>{_steps(ladder)}'


def _opening(rungs: Sequence[Rung], ladder: Ladder | None, drawn: dict[str, Row]) -> str:
    """Who computes what in the first rung that is drawn, and in the fastest."""
    known = [r for r in rungs if r.full_name in drawn and drawn[r.full_name].detail["work"]]
    times = {f.rung.full_name: f.us for f in ladder.ours()[2]} if ladder is not None else {}
    best = min((r for r in known if r.full_name in times), key=lambda r: times[r.full_name], default=None)
    parts = []
    for rung in dict.fromkeys(r for r in (known[0] if known else None, best) if r is not None):
        row = drawn[rung.full_name]
        title = f'<a href="#{rung.name}">{escape(label(rung.name))}</a>'
        where = f"<small>{escape(f'{row.dtype} {row.shape}')}, as the emulator ran it</small>"
        head = f"<p><strong>Who computes what: {title}</strong> {where}</p>"
        parts.append(f'<div class="drawn">{head}{row.detail["work"]}</div>')
    return "".join(parts)


def _steps(ladder: Ladder) -> str:
    """Each measured step's sentence, marked as the fastest so far or as a dead end."""
    dtype, shape, ours = ladder.ours()
    items, best = [], ours[0].us * 2 if ours else 0.0
    leader = ""
    for figure in ours:
        ahead = figure.us < best
        mark = "fastest so far" if ahead else f"slower than {label(leader)}"
        if ahead:
            best, leader = figure.us, figure.name
        items.append(
            f'<li class="{"ahead" if ahead else "behind"}"><a href="#{figure.name}">'
            f"{escape(label(figure.name))}</a> <b>{time_text(figure.us)} µs</b> <em>{escape(mark)}</em><br>"
            f"{prose(short(figure.rung.idea))}.</li>"
        )
    gpu = ours[0].row.gpu if ours else ""
    return f'<p>{escape(f"{dtype} at {shape}, on an {gpu}:")}</p><ul class="climb">{"".join(items)}</ul>'


def _card(rung: Rung, ladder: Ladder | None, drawn: dict[str, Row]) -> str:
    parent, row = catalogue.parent(rung), drawn.get(rung.full_name)
    measured = speed(rung, parent, ladder) if ladder is not None else []
    times = [s for s in measured if s["us"]]
    first = f"{times[0]['us']} µs in {times[0]['dtype']}" if times else rung.kind
    facts = [("Idea", rung.idea), ("Expected", rung.expect), ("Found", rung.found), ("A rewrite because", rung.rewrite)]
    body = "".join(f"<dt>{label}</dt><dd>{prose(value)}</dd>" for label, value in facts if value)
    if measured:
        body += f"<dt>Measured</dt><dd>{'<br>'.join(map(_speed, measured))}</dd>"
    card = f"<dl>{body}</dl>"
    if row is not None:
        card += drawings.card(row, drawn.get(parent.full_name) if parent is not None else None)
    if parent is not None:
        changes = difference.lines(parent, rung)[2:]
        more = f"<p>{len(changes) - MOST_CHANGES:,} more lines: <code>rung show {rung.full_name} --diff</code></p>"
        card += f"<p>What changed from {escape(parent.full_name)}:</p>"
        card += f"<div data-search-exclude>{patch(changes[:MOST_CHANGES])}</div>" + more * (len(changes) > MOST_CHANGES)
    return (
        f'<details class="rung" id="{rung.name}"><summary><b>{escape(label(rung.name))}</b> '
        f"<span>{escape(first)}</span><br>{prose(short(rung.idea))}.</summary>{card}</details>"
    )


def _speed(one: dict[str, str]) -> str:
    if not one["us"]:
        return escape(f"{one['dtype']}: {one['instead']}")
    gain = f", {one['gain']} the speed of {one['parent']}" if one["gain"] else ""
    return escape(f"{one['us']} µs in {one['dtype']}, {one['share']} of the limit{gain}")


def style() -> str:
    """The colours of charts and drawings in both schemes of the site, and the drawings' rules."""
    schemes = {"light": "default", "dark": "slate"}
    found = [
        f'[data-md-color-scheme="{there}"] {{ {colours.variables(ours)} '
        + " ".join(f"--{n}: {c};" for n, c in charts.SCHEMES[ours].items()) + " }"
        for ours, there in schemes.items()
    ]  # fmt: skip
    return "\n".join(found) + colours.RULES
