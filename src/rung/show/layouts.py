"""Who computes what, and where it lies in shared memory: drawings of a launch, from a trace of the first block's
requests and all blocks' stores. Small figures in a row, which wraps on narrow screens; their colours are CSS variables.
"""

from __future__ import annotations

import itertools
import math
from collections import Counter, defaultdict, deque
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping
from html import escape
from typing import Any

from gpuless.counts.counters import TRACED, Launched, Request
from rung.profile.counted import Counted, Tensor

WIDE, TALL = 40, 32  # most cells of a figure
CELL = 7
BANKS, WORD, WRAP = 32, 4, 32
MOST_INPUTS = 2
COLOURS = ("--p0", "--p1", "--p2", "--p3")

Cell = tuple[int, int]


def work(counted: Counted) -> str:
    """Which elements of the output each block stores, which each warp of the first block, and what that block reads;
    empty if no store to a tensor was seen."""
    found = _stored(counted)
    if found is None:
        return ""
    kernel, out, stores, shared = found
    rows, columns = _extent(out)
    mine = {e: who for e, who in stores.items() if who[0] == 0}
    blocks, threads = math.prod(kernel.config.grid), math.prod(kernel.config.block)
    own_cut, others_cut, read_cut = _cuts(kernel)
    where = "; framed: where thread 0 reads"
    across = kernel.config.grid[0]
    first = {e for e, who in mine.items() if who[1:] == (0, 0)}
    step = (-(-rows // TALL), -(-columns // WIDE))
    whole = {_scaled(divmod(e, columns), step): block for e, (block, *_) in sorted(stores.items(), reverse=True)}
    panels = [
        _figure(
            whole, lambda number: COLOURS[(number % across + 2 * (number // across)) % 4], _most(rows, columns, step),
            f"{out.name} ({_shape(out)}): a colour for each block; {_many(blocks, 'block')} of "
            f"{_many(threads, 'thread')}{own_cut or others_cut}"
            + ("; hatched: stored by several blocks" if shared else ""),
            hatched={_scaled(divmod(e, columns), step) for e in shared},
        )
    ]  # fmt: skip
    places = {e: divmod(e, columns) for e in mine}
    at = [{place: i for i, place in enumerate(sorted({p[axis] for p in places.values()}))} for axis in (0, 1)]
    near = {e: (at[0][r], at[1][c]) for e, (r, c) in places.items() if at[0][r] < TALL and at[1][c] < WIDE}
    frames = {near[e] for e in first if e in near}
    few = _few(frames, near)
    panels.append(
        _figure(
            {near[e]: mine[e][1] for e in near}, lambda warp: COLOURS[warp % 4],
            (min(len(at[0]), TALL), min(len(at[1]), WIDE)),
            f"the {_many(len(mine), 'element')} of block 0{_cut(len(near), len(mine))}{own_cut}: "
            "a colour for each warp" + (f"; framed: {_many(len(first), 'element')} of thread 0" if few else ""),
            frames=frames if few else (),
        )
    )  # fmt: skip
    read = _read(kernel, counted.memory)
    many = sorted(read.items(), key=lambda item: (-len(item[1]), counted.memory.index(item[0])))
    for tensor, times in many[:MOST_INPUTS]:
        rows, columns = _extent(tensor)
        step = (-(-rows // TALL), -(-columns // WIDE))
        own = {_scaled(divmod(e, columns), step) for e, who in times.items() if who[0, 0]}
        cells = {_scaled(divmod(e, columns), step): 0 for e in times}
        framed = _few(own, cells)
        every = sum(sum(who.values()) for who in times.values())
        panels.append(
            _figure(
                cells, lambda _: "--p0", _most(rows, columns, step),
                f"{tensor.name} ({_shape(tensor)}): block 0 reads {_many(len(times), 'element')}, each "
                f"{_often(every / len(times))}{read_cut}{where if framed else ''}",
                frames=own if framed else (),
            )
        )  # fmt: skip
    return _row(panels, f"who computes what in {kernel.kernel}")


def tile(counted: Counted) -> str:
    """Shared memory of the first block: the warp that stores each word, the request that takes most passes, and the
    bank of each element of the tile that was copied there; empty without shared memory."""
    ways = ("plain", "generic", "cp.async", "bulk")
    kernel = max(counted.kernels, key=lambda k: k.total("shared", "write", *ways).bytes)
    shared = [r for r in kernel.trace if r.access.memory == "shared" and r.block == 0]
    loads = [r for r in shared if r.access.direction == "read" and r.access.way != "bulk"]
    writer: dict[int, int] = {}
    for request in shared:
        if request.access.direction == "write":
            for word in _words(request):
                writer.setdefault(word, request.warp)
    if not writer:
        return ""
    reads = [(r, {*_words(r)}) for r in loads]
    deepest = [(max(Counter(word % BANKS for word in words).values()), len(words), -r.warp) for r, words in reads]
    worst, read = reads[max(range(len(reads)), key=deepest.__getitem__)] if reads else (None, {min(writer)})
    first, last = min(writer) // BANKS, max(writer) // BANKS
    low = max(first, min(min(read) // BANKS, last + 1 - BANKS))  # the rows that are drawn contain that load's first
    tall = min(last + 1 - low, BANKS)
    part = "" if tall > last - first else f" (rows {low - first} to {low - first + tall - 1} of {last + 1 - first})"

    def inside(words: Iterable[int]) -> dict[int, Cell]:
        return {word: (word // BANKS - low, word % BANKS) for word in words if 0 <= word // BANKS - low < tall}

    panels = [
        _figure(
            {place: writer[word] for word, place in inside(writer).items()}, lambda warp: COLOURS[warp % 4],
            (tall, BANKS), f"shared memory{part}, a column for each bank: the warp that stores each word", apart=True,
        )
    ]  # fmt: skip
    if worst is not None:
        deep: Counter[int] = Counter()
        turns = {}
        for word in sorted(read):
            turns[word] = deep[word % BANKS]
            deep[word % BANKS] += 1
        panels.append(
            _figure(
                {place: turns[word] for word, place in inside(read).items()}, lambda turn: COLOURS[turn % 4],
                (tall, BANKS), f"what one load of warp {worst.warp} reads there (line {worst.access.line}): "
                f"{_many(len(read), 'word')}, at most {max(deep.values())} in one bank", apart=True,
            )
        )  # fmt: skip
    if (copied := _copied(kernel, counted.memory)) is not None:
        tensor, words_of, swizzle = copied
        columns = _extent(tensor)[1]
        places = {e: divmod(e, columns) for e in words_of}
        at = [{place: i for i, place in enumerate(sorted({p[axis] for p in places.values()}))} for axis in (0, 1)]
        tall = 2 << swizzle if swizzle else BANKS  # a swizzle repeats
        banks = {(at[0][r], at[1][c]): words_of[e] % BANKS for e, (r, c) in places.items()}
        banks = {(r, c): bank for (r, c), bank in banks.items() if r < tall and c < WIDE}
        panels.append(
            _figure(
                banks, lambda bank: f"hsl({bank * 360 // BANKS} 60% 52%)",
                (min(len(at[0]), tall), min(len(at[1]), WIDE)),
                f"the bank of each element of {tensor.name}'s tile (32 colours); "
                + (f"a swizzle of {16 << swizzle} bytes moves 16-byte parts of a row, so that equal columns of "
                   f"{1 << swizzle} rows lie in different banks" if swizzle else
                   "a column in one colour conflicts when a warp reads it"), apart=True,
            )
        )  # fmt: skip
    return _row(panels, f"shared memory of the first block of {kernel.kernel}")


def _stored(counted: Counted) -> tuple[Launched, Tensor, dict[int, tuple[int, int, int]], set[int]] | None:
    """The last kernel that stores to a tensor, the tensor with most stores, each element's block, warp and lane, and
    the elements to which several blocks store without an atomic operation."""
    for kernel in reversed(counted.kernels):
        stores: dict[Tensor, dict[int, tuple[int, int, int]]] = defaultdict(dict)
        shared: dict[Tensor, set[int]] = defaultdict(set)
        for request in kernel.trace:
            if request.access.memory == "global" and request.access.direction == "write":
                for tensor, element, lane in elements(request, counted.memory):
                    first = stores[tensor].setdefault(element, (request.block, request.warp, lane))
                    if first[0] != request.block and request.access.way != "atomic":
                        shared[tensor].add(element)
        if stores:
            out = max(stores, key=lambda tensor: len(stores[tensor]))
            return kernel, out, stores[out], shared[out]
    return None


def _read(kernel: Launched, memory: Iterable[Tensor]) -> dict[Tensor, dict[int, Counter[tuple[int, int]]]]:
    """How often each thread of the first block reads each element."""
    found: dict[Tensor, dict[int, Counter[tuple[int, int]]]] = defaultdict(lambda: defaultdict(Counter))
    for request in kernel.trace:
        if request.access.memory == "global" and request.access.direction == "read" and request.block == 0:
            for tensor, element, lane in elements(request, memory):
                found[tensor][element][request.warp, lane] += 1
    return found


def _cuts(kernel: Launched) -> tuple[str, str, str]:
    """What is said of the first block's stores, of other blocks' and of its loads if there is no room for all."""
    most = TRACED // 3
    counts = Counter((r.block == 0, r.access[2:4] == ("global", "write")) for r in kernel.trace)
    stores = f", by the first {most:,} stores of warps"
    return (
        stores if counts[True, True] >= most else "",
        stores if counts[False, True] >= most else "",
        f" by its first {most:,} requests" if counts[True, False] >= most else "",
    )


def elements(request: Request, memory: Iterable[Tensor]) -> Iterator[tuple[Tensor, int, int]]:
    for lane, address in request.lanes.items():
        for tensor in memory:
            if 0 <= address - tensor.at < math.prod(tensor.shape) * tensor.size:
                first = (address - tensor.at) // tensor.size
                for element in range(first, first + max(request.size // tensor.size, 1)):
                    yield tensor, element, lane
                break


def _words(request: Request) -> Iterator[int]:
    for address in request.lanes.values():
        yield from range(address // WORD, (address + request.size - 1) // WORD + 1)


def _copied(kernel: Launched, memory: Iterable[Tensor]) -> tuple[Tensor, dict[int, int], int] | None:
    """The tensor that fills the first tile, the word of shared memory that each of its elements is copied to, and the
    tile's swizzle; None unless each store to shared memory follows a load of the same thread. Where bulk or tensor
    copies fill it, only these count."""
    requests = [r for r in kernel.trace if not r.block and r.access.direction in ("read", "write")]
    bulk = [r for r in requests if r.access.way == "bulk"]
    words, swizzle = _by_bulk(bulk), max((r.swizzle for r in bulk), default=0)
    found = words or _by_threads(r for r in requests if r.access.way in ("plain", "generic", "cp.async"))
    filled: dict[Tensor, dict[int, int]] = defaultdict(dict)
    for word, address in (found or {}).items():
        for tensor in memory:
            if 0 <= address - tensor.at < math.prod(tensor.shape) * tensor.size:
                filled[tensor].setdefault((address - tensor.at) // tensor.size, word)
    best = max(filled, key=lambda tensor: len(filled[tensor]), default=None)
    return None if best is None else (best, filled[best], swizzle)


def _by_bulk(requests: Iterable[Request]) -> dict[int, int]:
    """Where each word of shared memory comes from: a copy's pieces of global memory are traced before its tile."""
    words: dict[int, int] = {}
    pieces: list[int] = []
    for request in requests:
        if len(request.lanes) > 1:  # stores of lanes to another block's shared memory
            continue
        (address,) = request.lanes.values()
        if (request.access.memory, request.access.direction) == ("global", "read"):
            pieces += range(address, address + request.size, WORD)
        elif (request.access.memory, request.access.direction) == ("shared", "write"):
            if len(pieces) * WORD == request.size:
                for further, source in enumerate(pieces):
                    words.setdefault(swizzled(address + further * WORD, request.swizzle) // WORD, source)
            pieces = []
    return words


def swizzled(address: int, swizzle: int) -> int:
    """Where a byte of a tensor's tile lies: the lines of 128 bytes count modulo 2, 4 or 8, and move 16-byte parts."""
    return address ^ (address >> 7 & (1 << swizzle) - 1) << 4


def _by_threads(requests: Iterable[Request]) -> dict[int, int] | None:
    """The same of copies through registers and cp.async; None if loads and stores do not follow each other."""
    loads: dict[tuple[int, int, str], deque[tuple[int, int]]] = defaultdict(deque)
    words: dict[int, int] = {}
    for request in requests:
        access = request.access
        for lane, address in request.lanes.items():
            queue = loads[request.warp, lane, access.way]
            if (access.memory, access.direction) == ("global", "read"):
                queue.append((address, request.size))
            elif (access.memory, access.direction) == ("shared", "write"):
                if not queue and access.way == "cp.async":  # filled with zeros
                    continue
                if not queue or queue[0][1] != request.size:
                    return None
                source, _ = queue.popleft()
                for further in range(0, request.size, WORD):
                    words.setdefault((address + further) // WORD, source + further)
    return None if any(loads.values()) else words


def _extent(tensor: Tensor) -> Cell:
    """A tensor as rows and columns: the last dimension is a row, and a vector is wrapped."""
    if len(tensor.shape) < 2 or math.prod(tensor.shape[:-1]) == 1:
        return -(-math.prod(tensor.shape) // WRAP), WRAP
    return math.prod(tensor.shape[:-1]), tensor.shape[-1]


def _shape(tensor: Tensor) -> str:
    return " × ".join(map(str, tensor.shape)) or "1"


def _scaled(place: Cell, step: Cell) -> Cell:
    return place[0] // step[0], place[1] // step[1]


def _most(rows: int, columns: int, step: Cell) -> Cell:
    return -(-rows // step[0]), -(-columns // step[1])


def _many(count: int, what: str) -> str:
    return f"{count:,} {what}{'s' * (count != 1)}"


def _often(times: float) -> str:
    return "once" if (text := f"{times:.3g}") == "1" else f"{text} times"


def _few(framed: Collection[Cell], cells: Collection[Any]) -> bool:
    """Whether frames tell something: a thread that issues a whole copy would have them all."""
    return 0 < 2 * len(framed) <= len(cells)


def _cut(shown: int, every: int) -> str:
    return "" if shown == every else f" ({shown:,} are shown)"


def _figure(
    cells: Mapping[Cell, int],
    colour: Callable[[int], str],
    size: Cell,
    caption: str,
    *,
    frames: Iterable[Cell] = (),
    hatched: Iterable[Cell] = (),
    apart: bool = False,
) -> str:
    """Cells in the colours of their values, and those that are framed or hatched; `apart` draws a gap between
    neighbours."""
    by_colour: dict[str, list[str]] = defaultdict(list)
    for row, places in itertools.groupby(sorted(cells), key=lambda place: place[0]):
        for (_, value), run in itertools.groupby(
            enumerate(places), key=lambda item: (item[1][1] - item[0], cells[item[1]])
        ):
            across = [place[1] for _, place in run]
            by_colour[colour(value)].append(f"M{across[0]} {row}h{len(across)}")
    paths = "".join(
        f'<path style="stroke:{f"var({name})" if name.startswith("--") else name}" d="{"".join(d)}"/>'
        for name, d in sorted(by_colour.items())
    )
    framed = "".join(f"M{c + 0.1} {r + 0.1}h.8v.8h-.8z" for r, c in sorted(frames))
    framed += "".join(f"M{c} {r + 1}l1 -1" for r, c in sorted(hatched))
    rows, columns = size
    return (
        f'<figure><svg xmlns="http://www.w3.org/2000/svg" role="img" aria-label="{escape(caption)}" '
        f'viewBox="0 0 {columns} {rows}" '
        f'width="{columns * CELL}" height="{rows * CELL}"><rect class="box" width="{columns}" height="{rows}"/>'
        f'<g class="cells{" apart" * apart}" transform="translate(0 .5)">{paths}</g>'
        f'<path class="frames" d="{framed}"/></svg>'
        f"<figcaption>{escape(caption)}</figcaption></figure>"
    )


def _row(figures: Iterable[str], label: str) -> str:
    return f'<div class="panels" role="group" aria-label="{escape(label)}">{"".join(figures)}</div>'
