"""Pictures of a warp's accesses, from the most expensive request of each line: lanes over sectors of global memory, and
over the banks of shared memory, pass by pass. One HTML file without scripts, for light and dark screens.
"""

from __future__ import annotations

import itertools
from collections.abc import Iterable, Mapping, Sequence
from html import escape

from rung.emulator.counters import Access, Counts, Launched, Sample
from rung.emulator.counters_explained import per_request, reason
from rung.profile.emulated import Counted

BANKS, SECTOR, WORD = 32, 32, 4
MOST_LINES = 6  # drawn of a rung
MOST_PASSES, MOST_SECTORS = 32, 64
MOST_EVENTS, MOST_WARPS = 380, 16
_CELL = 20
_EVENTS = {  # their colour, and what is said of them
    "copy": ("--p0", "issues a copy"),
    "group": ("--p0", "closes a group of cp.async"),
    "product": ("--p2", "issues a product of tensor cores"),
    "barrier": ("--p3", "arrives at a barrier of the block"),
    "wait for bytes": ("--p1", "waits until copies have arrived"),
    "wait for group": ("--p1", "waits for a group of cp.async"),
    "wait for products": ("--p1", "waits for products"),
}
_LEGEND = (("copies", "--p0"), ("products of tensor cores", "--p2"), ("barriers", "--p3"), ("waits", "--p1"))
_STYLE = """
:root { color-scheme: light dark; --ink: #1b1f24; --soft: #59636e; --paper: #fff; --box: #eaeef2; --edge: #afb8c1;
  --used: #2f81f7; --on: #fff; --p0: #2f81f7; --p1: #bf5700; --p2: #1a7f37; --p3: #8250df; }
@media (prefers-color-scheme: dark) { :root { --ink: #e6edf3; --soft: #9198a1; --paper: #0d1117; --box: #21262d;
  --edge: #484f58; --used: #58a6ff; --on: #0d1117; --p0: #58a6ff; --p1: #f0883e; --p2: #56d364; --p3: #d2a8ff; } }
body { background: var(--paper); color: var(--ink); font: 16px/1.5 system-ui, sans-serif; margin: 0 auto; padding: 1rem;
  max-width: 90rem; }
main { display: grid; grid-template-columns: repeat(auto-fit, minmax(min(100%, 36rem), 1fr)); gap: 2rem; }
section { min-width: 0; } h2 { margin-bottom: 0; } h1 { font-size: 1.6rem; overflow-wrap: anywhere; }
p { margin: .4rem 0; } .soft { color: var(--soft); }
pre { overflow-x: auto; background: var(--box); padding: .4rem .6rem; border-radius: .3rem; }
.drawing { overflow-x: auto; }
svg { display: block; max-width: 100%; min-width: 28rem; height: auto; }
svg text { font: 10px system-ui, sans-serif; fill: var(--ink); }
svg .box { fill: var(--box); stroke: var(--edge); } svg .lane { fill: var(--on); text-anchor: middle; }
svg .soft { fill: var(--soft); }
"""


def page(every: Sequence[Counted], sources: Mapping[str, str], sizes: Mapping[str, int]) -> str:
    """The page of one or more rungs side by side; `sources` are their files' texts by name."""
    title = " and ".join(c.rung for c in every)
    rungs = "".join(_rung(counted, sources, sizes) for counted in every)
    return (
        f'<!doctype html>\n<html lang="en"><head><meta charset="utf-8"><title>{escape(title)}</title>'
        f'<meta name="viewport" content="width=device-width, initial-scale=1"><style>{_STYLE}</style></head><body>'
        f"<h1>{escape(title)}: what a warp asks of memory</h1>"
        '<p class="soft">Counted on the emulator, not measured. Each picture shows the request of the line that costs '
        "most; a number is a lane of the warp.</p>"
        f"<main>{rungs}</main></body></html>\n"
    )


def _rung(counted: Counted, sources: Mapping[str, str], sizes: Mapping[str, int]) -> str:
    drawn = "".join(
        _line(access, counts, sample, sources.get(access.file, ""), sizes) for access, counts, sample in costly(counted)
    )
    drawn += "".join(
        f'<p>The first block of {escape(k.kernel)}:</p><div class="drawing">{timeline(k)}</div>'
        for k in counted.kernels
        if asynchronous(k)
    )
    where = escape(f"{counted.dtype} {counted.shape}")
    return (
        f'<section><h2>{escape(counted.rung)}</h2><p class="soft">{where}</p>{drawn or "<p>No access.</p>"}</section>'
    )


def costly(counted: Counted) -> list[tuple[Access, Counts, Sample]]:
    """The accesses that are drawn: those with most sectors and wavefronts, in the order of their lines."""
    every = [(a, c, k.worst[a]) for k in counted.kernels for a, c in k.accesses.items() if a in k.worst]
    most = sorted(every, key=lambda found: -(found[1].sectors + found[1].wavefronts))[:MOST_LINES]
    return sorted(most, key=lambda found: found[0])


def asynchronous(kernel: Launched) -> bool:
    """Whether its first block copies or multiplies while its threads go on."""
    return any(event.what in ("copy", "group", "wait for products") for event in kernel.events)


def timeline(kernel: Launched) -> str:
    """The first block, event by event: copies under way, and what each warp does. The order is the emulator's."""
    events = kernel.events[:MOST_EVENTS]
    warps = sorted({event.warp for event in events})[:MOST_WARPS]
    begun = {event.copy: at for at, event in enumerate(events) if event.what == "copy"}
    ended = {event.copy: at for at, event in enumerate(events) if event.what == "arrived"}
    rows: list[int] = []  # of copies: where the last one of a row ends
    step = 760 / max(len(events), 1)
    parts = []
    for copy, at in begun.items():
        until = ended.get(copy, len(events))
        row = next((i for i, end in enumerate(rows) if end <= at), len(rows))
        rows[row : row + 1] = [until]
        x, width = 90 + at * step, max((until - at) * step, 2)
        parts.append(
            f'<rect style="fill: var(--p0); opacity: .6" x="{x:.1f}" y="{24 + row * 8}" width="{width:.1f}" height="6">'
            f"<title>a copy of {events[at].amount:,} bytes, issued by warp {events[at].warp}</title></rect>"
        )
    top = 24 + 8 * len(rows) + (12 if rows else 0)
    if rows:
        parts.append('<text class="soft" x="0" y="30">copies</text>')
    for number, warp in enumerate(warps):
        y = top + number * 18
        parts.append(f'<text class="soft" x="0" y="{y + 12}">warp {warp}</text>')
        parts.append(f'<rect class="box" x="90" y="{y}" width="760" height="14"/>')
        for at, event in enumerate(events):
            if event.warp != warp or event.what == "arrived":
                continue
            colour, said = _EVENTS[event.what]
            parts.append(
                f'<rect style="fill: var({colour})" x="{90 + at * step:.1f}" y="{y}" width="{max(step, 2):.1f}" '
                f'height="14"><title>{said}</title></rect>'
            )
    bottom = top + len(warps) * 18 + 16
    for number, (title, colour) in enumerate(_LEGEND):
        x = 90 + number * 190
        parts.append(f'<rect style="fill: var({colour})" x="{x}" y="{bottom - 9}" width="10" height="10"/>')
        parts.append(f'<text x="{x + 14}" y="{bottom}">{title}</text>')
    head = (
        f'<text class="soft" x="0" y="12">block 0 of {kernel.kernel}, {len(events):,} events from left to right</text>'
    )
    return _svg(860, bottom + 8, [head, *parts], f"what the first block of {kernel.kernel} does")


def picture(counted: Counted) -> str:
    """One picture of a rung that stands alone, light and dark: the time line of an asynchronous kernel, else the
    request of the line that costs most; empty without an access."""
    kernel = next((k for k in counted.kernels if asynchronous(k)), None)
    drawn = costly(counted)
    if kernel is None and not drawn:
        return ""
    if kernel is not None:
        svg = timeline(kernel)
    else:
        access, _, sample = max(drawn, key=lambda found: (found[1].waste, found[1].sectors + found[1].wavefronts))
        svg = banks(sample) if access.memory == "shared" else sectors(sample)
    style = _STYLE.replace(":root", "svg").replace("svg svg", "svg")
    head, _, rest = svg.partition(">")
    return f"{head}><style>{style[: style.index('body')]}{style[style.index('svg text') :]}</style>{rest}"


def _line(access: Access, counts: Counts, sample: Sample, source: str, sizes: Mapping[str, int]) -> str:
    lines = source.splitlines()
    text = lines[access.line - 1].strip() if 0 < access.line <= len(lines) else access.file
    cost, unit = per_request(access, counts)
    verb = {"read": "load from", "write": "store to"}[access.direction]
    head = f"Line {access.line}, {verb} {access.memory} memory: {counts.requests:,} requests, {cost:.2f} {unit}."
    why = reason(access, sample, sizes)
    said = f"{head} {why[:1].upper()}{why[1:]}." if why else head
    drawing = banks(sample) if access.memory == "shared" else sectors(sample)
    return f'<pre>{escape(text)}</pre><p>{escape(said)}</p><div class="drawing">{drawing}</div>'


def passes(sample: Sample) -> list[dict[int, list[int]]]:
    """For each pass over the banks, the lanes that each bank serves (runtime/counters.cpp has the rule)."""
    found: list[dict[int, list[int]]] = []
    for lanes in _groups(sample):
        words: dict[int, list[int]] = {}
        for lane in lanes:
            start = sample.phase + sample.lanes[lane]
            for word in range(start // WORD, (start + sample.size - 1) // WORD + 1):
                words.setdefault(word, []).append(lane)
        deep: dict[int, int] = {}
        group: list[dict[int, list[int]]] = []
        for word in sorted(words):
            bank = word % BANKS
            number = deep[bank] = deep.get(bank, -1) + 1
            if number == len(group):
                group.append({})
            group[number][bank] = words[word]
        found += group
    return found


def _groups(sample: Sample) -> Iterable[list[int]]:
    """The lanes that pass together: all, or half warps, or quarters."""
    lanes = sorted(sample.lanes)
    if sample.size <= WORD:
        return [lanes]
    wide = 32 if sample.size <= 8 else 16
    groups = []
    for first in range(0, 32, wide):
        some = [lane for lane in lanes if first <= lane < first + wide]
        pairs = any(
            all(sample.lanes[a] == sample.lanes[a ^ apart] for a in some if a ^ apart in sample.lanes)
            for apart in (1, 2)
        )
        half = first + wide // 2
        groups += [some] if pairs else [[a for a in some if a < half], [a for a in some if a >= half]]
    return [group for group in groups if group]


def banks(sample: Sample) -> str:
    """A row for each pass, a column for each bank; a cell names the lane, or how many lanes share its word."""
    rows = passes(sample)
    many = "1 pass" if len(rows) == 1 else f"{len(rows)} passes"
    shown = rows[:MOST_PASSES]
    height = (len(shown) + 2) * _CELL
    parts = [f'<text class="soft" x="60" y="14">banks 0 to 31; {many}</text>']
    for number, row in enumerate(shown):
        y = (number + 1) * _CELL
        parts.append(f'<text class="soft" x="0" y="{y + 14}">pass {number + 1}</text>')
        for bank in range(BANKS):
            x = 60 + bank * _CELL
            lanes = row.get(bank)
            if not lanes:
                parts.append(f'<rect class="box" x="{x}" y="{y}" width="{_CELL}" height="{_CELL}"/>')
                continue
            label = str(lanes[0]) if len(lanes) == 1 else f"{len(lanes)}x"
            names = escape(f"bank {bank}: lanes {', '.join(map(str, lanes))}")
            style = f"fill: var(--p{number % 4}); stroke: var(--paper)"
            parts.append(
                f'<rect style="{style}" x="{x}" y="{y}" width="{_CELL}" height="{_CELL}"><title>{names}</title></rect>'
                f'<text class="lane" x="{x + _CELL / 2}" y="{y + 14}">{label}</text>'
            )
    return _svg(60 + BANKS * _CELL, height, parts, f"{many} over 32 banks")


def sectors(sample: Sample) -> str:
    """Every sector that is touched, four in a row; what is asked for is filled, from the lanes that are named."""
    used: dict[int, list[int]] = {}
    for lane, apart in sorted(sample.lanes.items()):
        start = sample.phase + apart
        for sector in range(start // SECTOR, (start + sample.size - 1) // SECTOR + 1):
            used.setdefault(sector, []).append(lane)
    wide, tall, gap = 160, 34, 8
    parts = [f'<text class="soft" x="0" y="14">{len(used)} sectors of 32 bytes; filled: asked for</text>']
    for number, (sector, lanes) in enumerate(itertools.islice(sorted(used.items()), MOST_SECTORS)):
        x, y = number % 4 * (wide + gap), 24 + number // 4 * (tall + gap)
        parts.append(f'<rect class="box" x="{x}" y="{y}" width="{wide}" height="{tall / 2}"/>')
        for lane in lanes:
            start = sample.phase + sample.lanes[lane] - sector * SECTOR
            begin, end = max(start, 0), min(start + sample.size, SECTOR)
            left, width = x + begin * wide / SECTOR, (end - begin) * wide / SECTOR
            parts.append(
                f'<rect style="fill: var(--used); stroke: var(--paper)" x="{left}" y="{y}" width="{width}" '
                f'height="{tall / 2}"><title>lane {lane}</title></rect>'
            )
        some = f"lane {lanes[0]}" if len(lanes) == 1 else f"lanes {lanes[0]} to {lanes[-1]}"
        parts.append(f'<text class="soft" x="{x}" y="{y + tall - 4}">{some}</text>')
    rows = -(-min(len(used), MOST_SECTORS) // 4)
    return _svg(4 * (wide + gap), 24 + rows * (tall + gap), parts, f"{len(used)} sectors")


def _svg(width: float, height: float, parts: Iterable[str], label: str) -> str:
    size = f'width="{width}" height="{height}" viewBox="0 0 {width} {height}"'
    return f'<svg xmlns="http://www.w3.org/2000/svg" role="img" aria-label="{label}" {size}>{"".join(parts)}</svg>'
