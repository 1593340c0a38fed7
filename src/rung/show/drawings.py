"""Pictures of a warp's accesses, from the most wasteful request of each line: lanes over sectors of global memory, and
over the banks of shared memory, pass by pass. One HTML file without scripts, for light and dark screens.
"""

from __future__ import annotations

import itertools
from collections.abc import Iterable, Mapping, Sequence
from html import escape
from typing import NamedTuple

from gpuless.base.files import read_text
from gpuless.counts.counters import Access, Counts, Launched, Sample
from gpuless.counts.counters_explained import per_request, reason
from rung.operation import LADDERS
from rung.profile.counted import Counted
from rung.results import codes
from rung.results.row import Row, newest
from rung.rungs.base import Rung
from rung.show import counts, layouts
from rung.show.colours import RULES, variables

BANKS, SECTOR, WORD = 32, 32, 4
MOST_LINES = 6  # drawn of a rung
MOST_PASSES, MOST_SECTORS = 32, 64
MOST_EVENTS, MOST_WARPS = 380, 16
_CELL, _BANK, _LEFT = 20, 16, 42  # pixels: a row, a bank, the names of passes
_EVENTS = {  # their colour, and what is said of them
    "copy": ("--p0", "issues a copy"),
    "group": ("--p0", "closes a group of cp.async"),
    "product": ("--p2", "issues a product of tensor cores"),
    "barrier": ("--p3", "arrives at a barrier of the block"),
    "wait for bytes": ("--p1", "waits at a barrier of arrivals and bytes"),
    "wait for group": ("--p1", "waits for a group of cp.async"),
    "wait for products": ("--p1", "waits for products"),
}
_LEGEND = (("copies", "--p0"), ("products of tensor cores", "--p2"), ("barriers", "--p3"), ("waits", "--p1"))
_BANKS = (
    '<p class="soft">Shared memory has 32 banks, each 4 bytes wide; neighbouring words of 4 bytes lie in '
    "neighbouring banks. In one pass each bank delivers one word, to all lanes that ask for it. Different words of one "
    "bank need a pass each; each pass beyond the first is a bank conflict. (Nsight Compute calls a pass a wavefront.) "
    "Global memory is read in whole sectors of 32 bytes: at best 4 for a warp of which each lane reads 4 bytes.</p>"
)
_STYLE = """
:root { color-scheme: light dark; LIGHT }
@media (prefers-color-scheme: dark) { :root { DARK } }
body { background: var(--paper); color: var(--ink); font: 16px/1.5 system-ui, sans-serif; margin: 0 auto; padding: 1rem;
  max-width: 90rem; }
main { display: grid; grid-template-columns: repeat(auto-fit, minmax(min(100%, 36rem), 1fr)); gap: 2rem; }
section { min-width: 0; } h2 { margin-bottom: 0; } h1 { font-size: 1.6rem; } h1, h2 { overflow-wrap: anywhere; }
p { margin: .4rem 0; } .soft { color: var(--soft); }
pre { background: var(--box); padding: .4rem .6rem; border-radius: .3rem; }
"""


def page(every: Sequence[Counted], sources: Mapping[str, Mapping[str, str]], sizes: Mapping[str, int]) -> str:
    """The page of one or more rungs side by side; `sources` are each rung's `sources_of`."""
    title = ", after ".join(c.rung for c in reversed(every))
    rungs = "".join(section(counted, sources.get(counted.rung, {}), sizes, named=len(every) > 1) for counted in every)
    style = _STYLE.replace("LIGHT", variables("light")).replace("DARK", variables("dark")) + RULES
    return (
        f'<!doctype html>\n<html lang="en"><head><meta charset="utf-8"><title>{escape(title)}</title>'
        f'<meta name="viewport" content="width=device-width, initial-scale=1"><style>{style}</style></head><body>'
        f"<h1>{escape(title)}</h1>"
        '<p class="soft">Counted on the emulator, not measured. First who computes what, and what lies where in shared '
        "memory; then the lines that cost most. A request is one load or store of a warp, a lane one of its 32 threads."
        " The compiler may make several instructions of a line, as where it unrolls a loop. The text has averages over "
        "them all; the drawing is of the one request that wastes most, and a number in it is the lane.</p>"
        f'{_BANKS}<main class="drawn">{rungs}</main></body></html>\n'
    )


def sources_of(rung: Rung) -> dict[str, str]:
    """The texts of the headers that a rung may include, and last of its own file, by their names."""
    if rung.path is None:
        return {}
    headers = [*(LADDERS / "include").glob("*.cuh"), *rung.path.parent.glob("*.cuh")]
    return {h.name: read_text(h) for h in headers} | {rung.path.name: rung.source}


def section(counted: Counted, sources: Mapping[str, str], sizes: Mapping[str, int], *, named: bool = False) -> str:
    """A rung's drawings: who computes what, what lies where in shared memory, the costly lines, copies under way."""
    drawn = layouts.work(counted) + layouts.tile(counted)
    drawn += "".join(_line(found, sources, sizes) for found in costly(counted))
    drawn += "".join(
        f'<p>The first block of {escape(k.kernel)}:</p><div class="drawing">{timeline(k)}</div>'
        for k in counted.kernels
        if asynchronous(k)
    )
    head = f"<h2>{escape(counted.rung)}</h2>" if named else ""
    where = escape(f"{counted.dtype} {counted.shape}")
    return f'<section>{head}<p class="soft">{where}</p>{drawn or "<p>No access.</p>"}</section>'


class Costly(NamedTuple):
    """An access of a line with its most wasteful request, and the number of instructions that make it."""

    access: Access
    counts: Counts
    worst: Sample
    instructions: int


def accesses(counted: Counted) -> list[Costly]:
    kernels = counted.kernels
    return [Costly(a, c, k.worst[a], k.instructions[a]) for k in kernels for a, c in k.accesses.items() if a in k.worst]


def costly(counted: Counted) -> list[Costly]:
    """The accesses that are drawn: those with most sectors and wavefronts, in the order of their lines."""
    most = sorted(accesses(counted), key=lambda one: -(one.counts.sectors + one.counts.wavefronts))[:MOST_LINES]
    return sorted(most, key=lambda one: one.access)


def stored(rows: Iterable[Row]) -> dict[str, Row]:
    """Rows of drawings of the present code, by rung; benchmarks/drawings.py of commit 65c23836 wrote them."""
    return {r.what: r for r in newest(r for r in rows if r.kind == "draw" and r.verdict == "ok") if codes.current(r)}


def card(row: Row, parent: Row | None) -> str:
    """A rung's stored drawings, and its counters beside its parent's where these are of the same case."""
    same = parent is not None and (parent.dtype, parent.shape) == (row.dtype, row.shape)
    before = parent.detail if parent is not None and same else {}
    shown = [row.detail[part] for part in ("work", "tile", "line") if row.detail[part] != before.get(part, "")]
    left = "" if all(shown) and shown else "<p>What is not drawn is as in its parent.</p>" * bool(before)
    found = [[k["figures"] for k in d["kernels"]] for d in ((before, row.detail) if before else (row.detail,))]
    names = [r.what.partition("/")[2] for r in ((parent, row) if parent is not None and before else (row,))]
    lines = counts.beside(found)
    heads = "".join(f'<th class="number">{escape(name)}</th>' for name in names)
    body = "".join(
        f"<tr><td>{escape(title)}</td>" + "".join(f'<td class="number">{v}</td>' for v in values) + "</tr>"
        for title, *values in lines
    )
    table = f'<table class="emulated"><thead><tr><th>emulated</th>{heads}</tr></thead><tbody>{body}</tbody></table>'
    where = f"<p>Counted on the emulator at {escape(f'{row.dtype} {row.shape}')}; nothing here is measured.</p>"
    return f'<div class="drawn">{where}{"".join(shown)}{left}<div class="drawing">{table}</div></div>'


def asynchronous(kernel: Launched) -> bool:
    """Whether its first block copies or multiplies while its threads go on."""
    return any(event.what in ("copy", "group", "wait for products") for event in kernel.events)


def timeline(kernel: Launched) -> str:
    """The first block, event by event: copies under way, and what each warp does. The order is the emulator's."""
    events = kernel.events[:MOST_EVENTS]
    every = "" if len(events) == len(kernel.events) else "the first "
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
        f'<text class="soft" x="0" y="12">{every}{len(events):,} events of block 0, in the order in which '
        "they are emulated, not in time</text>"
    )
    return _svg(860, bottom + 8, [head, *parts], f"what the first block of {kernel.kernel} does")


def costliest(counted: Counted, sources: Mapping[str, str], sizes: Mapping[str, int]) -> str:
    """The line whose requests waste most, with its picture; empty if none wastes anything."""
    worst = max(accesses(counted), key=lambda one: one.counts.waste, default=None)
    return _line(worst, sources, sizes) if worst and worst.counts.waste else ""


def _line(found: Costly, sources: Mapping[str, str], sizes: Mapping[str, int]) -> str:
    access, counts, sample, instructions = found
    lines = sources.get(access.file, "").splitlines()
    own = next(reversed([*sources]), access.file)
    text = lines[access.line - 1].strip() if 0 < access.line <= len(lines) else ""
    where = "" if access.file == own else f" of {access.file}"
    cost, unit = per_request(access, counts)[0], "sector" if access.memory == "global" else "pass"
    unit += "" if cost == 1 else "s" if unit == "sector" else "es"
    verb = {"read": "load from", "write": "store to"}[access.direction]
    worst = len(passes(sample)) if access.memory == "shared" else len(_by_sector(sample))
    most = f" on average, {worst} in the drawn one" if abs(worst - cost) > 0.005 else ""
    made = f" (of {instructions} instructions, which the compiler made of this line)" if instructions > 1 else ""
    asked = f"{counts.requests:,} request{'s' * (counts.requests != 1)}{made}"
    head = f"Line {access.line}{where}, {verb} {access.memory} memory: {asked}, {cost:.3g} {unit} each{most}."
    why = reason(access, sample, sizes)
    said = f"{head} {why[:1].upper()}{why[1:]}." if why else head
    drawing = banks(sample) if access.memory == "shared" else sectors(sample)
    code = f"<pre>{escape(text)}</pre>" if text else ""
    return f'{code}<p>{escape(said)}</p><div class="drawing">{drawing}</div>'


def passes(sample: Sample) -> list[dict[int, list[int]]]:
    """For each pass over the banks, the lanes that each bank serves (machine/memory.cpp has the rule)."""
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
    several = next((len(lanes) for row in shown for lanes in row.values() if len(lanes) > 1), 0)
    shares = f"; {several}x: {several} lanes read this word" if several else "; the number is the lane"
    shares += "; each pass has its own colour" if len(shown) > 1 else ""
    parts = [f'<text class="soft" x="{_LEFT}" y="14">banks 0 to 31; {many}{shares}</text>']
    down = "".join(f"M{_LEFT + bank * _BANK} {_CELL}v{len(shown) * _CELL}" for bank in range(BANKS + 1))
    across = "".join(f"M{_LEFT} {(number + 1) * _CELL}h{BANKS * _BANK}" for number in range(len(shown) + 1))
    parts.append(f'<path class="box" d="{down}{across}"/>')
    for number, row in enumerate(shown):
        y = (number + 1) * _CELL
        parts.append(f'<text class="soft" x="0" y="{y + 14}">pass {number + 1}</text>')
        for bank in range(BANKS):
            if not (lanes := row.get(bank)):
                continue
            x = _LEFT + bank * _BANK
            label = str(lanes[0]) if len(lanes) == 1 else f"{len(lanes)}x"
            small = ' style="font-size: 9px"' if len(label) > 2 else ""
            which = f"lane{'s' * (len(lanes) > 1)} {', '.join(map(str, lanes))}"
            names = f"<title>bank {bank}: {which}, {sample.lanes[lanes[0]]:+,} bytes from the first lane</title>"
            parts.append(
                f'<rect class="c{number % 4}" x="{x}" y="{y}" width="{_BANK}" height="{_CELL}">{names}</rect>'
                f'<text class="lane"{small} x="{x + _BANK // 2}" y="{y + 14}">{label}</text>'
            )
    return _svg(_LEFT + BANKS * _BANK, height, parts, f"{many} over 32 banks")


def _by_sector(sample: Sample) -> dict[int, list[int]]:
    """The sectors that a request touches, and the lanes that ask for them."""
    used: dict[int, list[int]] = {}
    for lane, apart in sorted(sample.lanes.items()):
        start = sample.phase + apart
        for sector in range(start // SECTOR, (start + sample.size - 1) // SECTOR + 1):
            used.setdefault(sector, []).append(lane)
    return used


def sectors(sample: Sample) -> str:
    """Every sector that is touched, four in a row; what is asked for is filled, from the lanes that are named."""
    used = _by_sector(sample)
    wide, tall, gap = 100, 34, 8
    many = "1 sector" if len(used) == 1 else f"{len(used)} sectors"
    parts = [f'<text class="soft" x="0" y="14">{many} of 32 bytes; filled: what lanes ask for</text>']
    for number, (sector, lanes) in enumerate(itertools.islice(sorted(used.items()), MOST_SECTORS)):
        x, y = number % 4 * (wide + gap), 24 + number // 4 * (tall + gap)
        parts.append(f'<rect class="box" x="{x}" y="{y}" width="{wide}" height="{tall / 2}"/>')
        for lane in lanes:
            start = sample.phase + sample.lanes[lane] - sector * SECTOR
            begin, end = max(start, 0), min(start + sample.size, SECTOR)
            left, width = x + begin * wide / SECTOR, (end - begin) * wide / SECTOR
            parts.append(
                f'<rect style="fill: var(--used); stroke: var(--paper)" x="{left}" y="{y}" width="{width}" '
                f'height="{tall / 2}"><title>lane {lane}: {sample.lanes[lane]:+,} bytes from the first lane</title>'
                "</rect>"
            )
        some = f"lane {lanes[0]}" if len(lanes) == 1 else f"lanes {lanes[0]} to {lanes[-1]}"
        if 1 < len(lanes) <= lanes[-1] - lanes[0]:  # there are others between them
            some = f"lanes {', '.join(map(str, lanes[:4]))}{' ...' * (len(lanes) > 4)}"
        parts.append(f'<text class="soft" x="{x}" y="{y + tall - 4}">{some}</text>')
    rows = -(-min(len(used), MOST_SECTORS) // 4)
    return _svg(4 * (wide + gap), 24 + rows * (tall + gap), parts, many)


def _svg(width: float, height: float, parts: Iterable[str], label: str) -> str:
    size = f'width="{width}" height="{height}" viewBox="0 0 {width} {height}"'
    return f'<svg xmlns="http://www.w3.org/2000/svg" role="img" aria-label="{label}" {size}>{"".join(parts)}</svg>'
