"""Charts as SVG, written by hand: bars, curves and the log-log plane of a roofline.

A plotting library (matplotlib, plotly) provides neither text that a page can restyle by CSS variables and a screen
reader can read, nor columns of numbers next to bars, and is larger than all of rung. These files are viewed on GitHub
without a script.

Colours are CSS variables, so that a page can change them with its scheme; `standalone` inserts those of one scheme, for
a picture without a page. Every chart describes itself in `title` and `desc`.
"""

from __future__ import annotations

import hashlib
import html
import math
import re
from collections.abc import Iterable, Sequence
from dataclasses import dataclass

# Chosen to be told apart by colour-blind readers, on white and on GitHub's black (contrast at least 3 : 1).
SCHEMES: dict[str, dict[str, str]] = {
    "light": {
        "ink": "#1f2328",
        "muted": "#59636e",
        "grid": "#d1d9e0",
        "surface": "#ffffff",
        "f32": "#0969da",
        "tf32": "#1a7f37",
        "f16": "#9a6700",
        "bf16": "#8250df",
        "library": "#8c959f",
        "behind": "#b9c4d0",
        "limit": "#cf222e",
    },
    "dark": {
        "ink": "#f0f6fc",
        "muted": "#9198a1",
        "grid": "#3d444d",
        "surface": "#0d1117",
        "f32": "#4493f8",
        "tf32": "#3fb950",
        "f16": "#d29922",
        "bf16": "#ab7df8",
        "library": "#7d8590",
        "behind": "#39424d",
        "limit": "#f85149",
    },
}
FONT = "system-ui, -apple-system, 'Segoe UI', Roboto, 'Helvetica Neue', Arial, sans-serif"


def escape(text: str) -> str:
    """Text that is safe inside an element or an attribute."""
    return html.escape(text, quote=True)


def standalone(svg: str, scheme: str) -> str:
    """The chart as a file of its own, in the colours of one scheme."""
    colours = SCHEMES[scheme]
    return re.sub(r"var\(--(\w+)\)", lambda m: colours[m.group(1)], svg) + "\n"


def width_of(text: str, size: float = 13) -> float:
    """Approximate width of a text; a little more than in most fonts."""
    narrow = sum(text.count(c) for c in "iljtfr.,:;'|()[] ")
    wide = sum(text.count(c) for c in "mwMWQO@%—")
    return size * (0.62 * len(text) - 0.24 * narrow + 0.26 * wide)


class Canvas:
    """Elements in the order in which they are painted."""

    def __init__(self, width: float, height: float) -> None:
        self.width, self.height = width, height
        self.elements: list[str] = []

    def text(
        self,
        x: float,
        y: float,
        text: str,
        *,
        colour: str = "ink",
        size: float = 13,
        anchor: str = "start",
        bold: bool = False,
        halo: bool = False,
    ) -> None:
        weight = ' font-weight="600"' if bold else ""
        weight += ' paint-order="stroke" stroke="var(--surface)" stroke-width="4"' if halo else ""
        self.elements.append(
            f'<text x="{_n(x)}" y="{_n(y)}" font-size="{_n(size)}" text-anchor="{anchor}"{weight} '
            f'fill="var(--{colour})">{escape(text)}</text>'
        )

    def rect(self, x: float, y: float, w: float, h: float, colour: str, *, tip: str = "") -> None:
        self.elements.append(
            f'<rect x="{_n(x)}" y="{_n(y)}" width="{_n(max(w, 1))}" height="{_n(h)}" rx="2" '
            f'fill="var(--{colour})">{_tip(tip)}</rect>'
        )

    def line(
        self,
        x1: float,
        y1: float,
        x2: float,
        y2: float,
        colour: str = "grid",
        *,
        width: float = 1,
        dashed: bool = False,
    ) -> None:
        dash = ' stroke-dasharray="5 4"' if dashed else ""
        self.elements.append(
            f'<line x1="{_n(x1)}" y1="{_n(y1)}" x2="{_n(x2)}" y2="{_n(y2)}" stroke="var(--{colour})" '
            f'stroke-width="{_n(width)}"{dash}/>'
        )

    def path(
        self,
        points: Iterable[tuple[float, float]],
        colour: str,
        *,
        width: float = 2,
        dashed: bool = False,
        tip: str = "",
    ) -> None:
        commands = " L".join(f"{_n(x)} {_n(y)}" for x, y in points)
        dash = ' stroke-dasharray="5 4"' if dashed else ""
        self.elements.append(
            f'<path d="M{commands}" fill="none" stroke="var(--{colour})" stroke-width="{_n(width)}" '
            f'stroke-linejoin="round"{dash}>{_tip(tip)}</path>'
        )

    def dot(self, x: float, y: float, colour: str, *, radius: float = 4, hollow: bool = False, tip: str = "") -> None:
        fill = "surface" if hollow else colour
        self.elements.append(
            f'<circle cx="{_n(x)}" cy="{_n(y)}" r="{_n(radius)}" fill="var(--{fill})" '
            f'stroke="var(--{colour})" stroke-width="1.5">{_tip(tip)}</circle>'
        )

    def svg(self, title: str, description: str) -> str:
        body = "".join(self.elements)
        number = hashlib.sha256((title + body).encode()).hexdigest()[:8]  # the same chart has the same text
        return (
            f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {_n(self.width)} {_n(self.height)}" '
            f'width="{_n(self.width)}" height="{_n(self.height)}" role="img" '
            f'aria-labelledby="t{number} d{number}" font-family="{FONT}">'
            f'<title id="t{number}">{escape(title)}</title><desc id="d{number}">{escape(description)}</desc>'
            f"{body}</svg>"
        )


def _n(value: float) -> str:
    return f"{value:.1f}".removesuffix(".0")


def _tip(text: str) -> str:
    return f"<title>{escape(text)}</title>" if text else ""


@dataclass(frozen=True)
class Scale:
    """Maps values to positions along an axis."""

    low: float
    high: float
    start: float
    end: float
    log: bool = True

    def __call__(self, value: float) -> float:
        value = min(max(value, self.low), self.high)
        if self.log:
            part = math.log(value / self.low) / math.log(self.high / self.low)
        else:
            part = (value - self.low) / (self.high - self.low)
        return self.start + part * (self.end - self.start)

    def ticks(self, most: int = 8) -> list[float]:
        """Round values, not too many."""
        if self.log:
            for steps in ((1, 2, 5), (1, 3), (1,)):
                found = _decades(self.low, self.high, steps)
                if len(found) <= most:
                    return found
            return found[:: math.ceil(len(found) / most)]
        step = nice_step((self.high - self.low) / most)
        first = math.ceil(self.low / step - 1e-9)
        last = math.floor(self.high / step + 1e-9)
        return [i * step for i in range(first, last + 1)]


def _decades(low: float, high: float, steps: Sequence[int]) -> list[float]:
    first, last = math.floor(math.log10(low)), math.ceil(math.log10(high))
    values = [s * 10.0**e for e in range(first, last + 1) for s in steps]
    return [v for v in values if low * 0.999 <= v <= high * 1.001]


def nice_step(rough: float) -> float:
    """The smallest of 1, 2, 5, 10 ... that is at least `rough`."""
    power = 10.0 ** math.floor(math.log10(rough))
    return next(m * power for m in (1, 2, 5, 10) if m * power >= rough * 0.999)


def log_scale(values: Iterable[float], start: float, end: float, *, room: float = 1.0) -> Scale:
    """From a round number below the smallest value to one above the largest."""
    found = [v for v in values if v > 0]
    low, high = min(found) / (1 + 0.6 * room), max(found) * (1 + 0.2 * room)
    below = max((v for v in _decades(low / 10, low * 1.001, (1, 2, 5))), default=low)
    return Scale(below, high, start, end)


def tick_text(value: float) -> str:
    """A short number: 0.5, 20, 3 k."""
    for limit, unit in ((1e12, " T"), (1e9, " G"), (1e6, " M"), (1e4, " k")):
        if abs(value) >= limit:
            base = 1e3 if limit == 1e4 else limit
            return f"{value / base:g}{unit}"
    return f"{value:g}"


def sparkline(values: Sequence[float], colour: str, title: str, *, width: float = 96) -> str:
    """Bars without an axis, for a line of text: how a value grows, its logarithm to scale."""
    low, high = min(values) / 2, max(values)
    height = Scale(low, high, 0, 22) if high > low else Scale(0, high, 0, 22, log=False)
    step = width / max(len(values), 4)
    canvas = Canvas(width, 24)
    for index, value in enumerate(values):
        tall = height(value)
        canvas.rect(index * step, 23 - tall, step * 0.75, tall, colour)
    return canvas.svg(title, f"From 1 to {max(values) / values[0]:.3g} times the speed.")


@dataclass(frozen=True)
class Roof:
    """Two ceilings: bytes/s times intensity, and FLOP/s."""

    label: str
    bytes: float
    flops: float
    colour: str = "limit"
    dashed: bool = False

    def at(self, intensity: float) -> float:
        return min(self.bytes * intensity, self.flops)

    @property
    def ridge(self) -> float:
        return self.flops / self.bytes


@dataclass(frozen=True)
class Point:
    label: str
    intensity: float  # FLOP/byte
    rate: float  # FLOP/s
    colour: str
    hollow: bool = False
    tip: str = ""


def roofline(
    roofs: Sequence[Roof],
    points: Sequence[Point],
    *,
    title: str,
    description: str,
    width: float = 760,
    height: float = 480,
) -> str:
    """Rate over arithmetic intensity, both logarithmic, under the machine's ceilings."""
    left, right, bottom = 52.0, width - 10, height - 44
    top = 30.0 + 18 * len(roofs)
    intensities = [*(p.intensity for p in points), *(r.ridge for r in roofs)]
    low = min(min(intensities) / 2, max(min(r.ridge for r in roofs) / 4, 1e-3))
    labels = max(width_of(p.label, 12) for p in points) + 30  # right of the last points
    reach = math.log(max(intensities) * 1.15 / low) / max(0.25, 1 - labels / (right - left))
    x = Scale(low, low * math.exp(reach), left, right)
    floor = min([*(p.rate for p in points), min(r.at(x.low) for r in roofs)])
    y = log_scale([floor, max(r.flops for r in roofs)], bottom, top, room=0.3)
    canvas = Canvas(width, height)
    for tick in x.ticks(8):
        canvas.line(x(tick), top, x(tick), bottom)
        anchor = "end" if x(tick) > width - 16 else "middle"
        canvas.text(x(tick), bottom + 17, tick_text(tick), colour="muted", size=12, anchor=anchor)
    for tick in y.ticks(8):
        canvas.line(left, y(tick), right, y(tick))
        canvas.text(left - 7, y(tick) + 4, tick_text(tick / 1e12), colour="muted", size=12, anchor="end")
    canvas.text(right, bottom + 35, "FLOP / byte", colour="muted", size=12, anchor="end")
    canvas.text(4, top - 10, "TFLOP/s", colour="muted", size=12)
    for index, roof in enumerate(roofs):
        _roof(canvas, roof, x, y, 12 + 18 * index, right)
    _labelled(canvas, points, x, y, top, bottom)
    return canvas.svg(title, description)


def _roof(canvas: Canvas, roof: Roof, x: Scale, y: Scale, level: float, right: float) -> None:
    start = max(x.low, y.low / roof.bytes)
    line = [(x(start), y(roof.at(start))), (x(roof.ridge), y(roof.flops)), (right, y(roof.flops))]
    canvas.path(line, roof.colour, width=1.5 if roof.dashed else 2, dashed=roof.dashed, tip=roof.label)
    canvas.line(x(roof.ridge), y(roof.flops), x(roof.ridge), y.start, roof.colour, width=0.75, dashed=True)
    canvas.line(4, level, 24, level, roof.colour, width=2, dashed=roof.dashed)
    canvas.text(30, level + 4, roof.label, size=12)


def _labelled(canvas: Canvas, points: Sequence[Point], x: Scale, y: Scale, top: float, bottom: float) -> None:
    """Points of one intensity are above each other; their labels are spread until they do not overlap."""
    columns: dict[int, list[Point]] = {}
    for point in sorted((p for p in points if p.label), key=lambda p: p.intensity):
        near = next((k for k in columns if abs(k - x(point.intensity)) < 40), round(x(point.intensity)))
        columns.setdefault(near, []).append(point)
    for column in columns.values():
        ordered = sorted(column, key=lambda p: -p.rate)
        places = spread([y(p.rate) for p in ordered], 14, top + 6, bottom - 4)
        to = max(x(p.intensity) for p in ordered) + 18
        for point, place in zip(ordered, places, strict=True):
            canvas.line(x(point.intensity), y(point.rate), to, place, point.colour, width=0.75)
            canvas.text(to + 3, place + 4, point.label, size=12, halo=True)
    for point in points:
        canvas.dot(x(point.intensity), y(point.rate), point.colour, hollow=point.hollow, tip=point.tip)


def spread(places: Sequence[float], gap: float, low: float, high: float) -> list[float]:
    """Ascending positions moved apart to at least `gap`, as little as needed, within low and high."""
    groups: list[tuple[list[float], float]] = []  # members, and the position of the first
    for place in places:
        members = [place]
        while True:
            middle = sum(m - i * gap for i, m in enumerate(members)) / len(members)
            first = min(max(middle, low), high - (len(members) - 1) * gap)
            if not groups or groups[-1][1] + len(groups[-1][0]) * gap <= first:
                break
            members = groups.pop()[0] + members
        groups.append((members, first))
    return [first + i * gap for members, first in groups for i in range(len(members))]
