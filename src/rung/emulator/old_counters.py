"""The counts of g++'s code, under RUNG_OLD_COUNTERS=1."""

from __future__ import annotations

import ctypes
import functools
import re
from collections import defaultdict
from collections.abc import Iterable
from pathlib import Path
from typing import NamedTuple

from rung.cuda import nvrtc, sass
from rung.cuda.launch import Build, LaunchConfig
from rung.emulator import arithmetic, conditions, counters, native
from rung.emulator.counters import EVENTS, WAYS, Access, Counts, Event, Launched, Request, Sample, _own
from rung.errors import RungError

ARCH = "sm_90a"

_EVENTS = 4096
_ROOM, _FIGURES, _SAMPLE, _LANES, _TRACE = 1 << 14, 13, 35, 32, 7
_CALL = re.compile(r"^\s*([0-9a-f]+):\s+call.*<(?:__tsan|rung)_\w+")
_AFTER = re.compile(r"^\s*([0-9a-f]+):")
_OPCODES = {  # machine code's accesses: memory and direction
    "LDG": (("global", "read"),),
    "LD": (("global", "read"), ("shared", "read")),
    "STG": (("global", "write"),),
    "ST": (("global", "write"), ("shared", "write")),
    "LDS": (("shared", "read"),),
    "STS": (("shared", "write"),),
}


def begin(library: Path, build: Build, kernel: str) -> None:
    """Tells the runtime how wide the accesses of the machine code are."""
    set_width = native.runtime().rung_count_width
    set_width(0, 0, 0, 0)
    places, made = _places(library, build.origin), _machine_code(build, kernel)
    for counter, (file, line) in places.items():
        for write, direction in enumerate(("read", "write")):
            both = [made[place] for m in ("global", "shared") if (place := (file, line, m, direction)) in made]
            if both:
                set_width(counter, write, max(of.width for of in both), line)


def collect(library: Path, build: Build, kernel: str, config: LaunchConfig) -> None:
    """Keeps what the launch that has just ended counted."""
    if counters._recorded is None:
        return
    rows, samples = (ctypes.c_ulonglong * _FIGURES * _ROOM)(), (ctypes.c_longlong * _SAMPLE * _ROOM)()
    count = min(native.runtime().rung_counted(rows, samples, _ROOM), _ROOM)
    launched = Launched(kernel, config)
    places = _places(library, build.origin)
    worst: dict[Access, tuple[int, int]] = {}
    by_block, tensor = arithmetic.blocks()
    warps = {block: of[1] for block, of in by_block.items()}
    (blocks, lines), made = _conditions(library), _machine_code(build, kernel)
    for row, sample in zip(rows[:count], samples[:count], strict=True):
        counter, memory, write, way, *numbers = row
        if counter not in places:  # the entry, which reads the kernel's arguments
            continue
        access = Access(*places[counter], ("global", "shared")[memory], ("read", "write")[write], WAYS[way])
        counts = Counts(*numbers)
        share = made[access[:4]].predicated if access[:4] in made else 0.0
        more = conditions.evaluations(blocks, warps, lines, counter) - 1 if share else 0.0
        counts.executed = round(counts.requests * (1 + share * more))
        mask, size, phase, *apart = sample
        lanes = {lane: apart[lane] for lane in range(_LANES) if mask >> lane & 1}
        # Of a line's requests the worst, and of equally bad ones that with most addresses.
        if mask and (bad := (counts.waste, len({*lanes.values()}))) > worst.get(access, (-1, 0)):
            worst[access], launched.worst[access] = bad, Sample(size, phase, lanes)
        launched.accesses[access].add(counts)
    kept = native.runtime().rung_traced(None, 0)
    requests = (ctypes.c_ulonglong * (_TRACE + _LANES) * kept)()
    native.runtime().rung_traced(requests, kept)
    for counter, block, warp, mask, size, place, way, *at in requests:
        if counter in places:
            where = ("global", "shared")[place & 1], ("read", "write")[place >> 1 & 1]
            access = Access(*places[counter], *where, WAYS[way])
            lanes = {lane: at[lane] for lane in range(_LANES) if mask >> lane & 1}
            launched.trace.append(Request(access, block, warp, size, lanes, place >> 2))
    happened = (ctypes.c_uint * 4 * _EVENTS)()
    many = min(native.runtime().rung_happened(happened, _EVENTS), _EVENTS)
    launched.events = [Event(EVENTS[kind], warp, amount, copy) for kind, warp, amount, copy in happened[:many]]
    if not arithmetic.unavailable():
        lines, every = _arithmetic(library, build.origin)
        for address, instructions in arithmetic.executed(every, by_block, build).items():
            for name, n in instructions.items():
                (launched.executed if name == "mufu" else launched.lanes)[lines[address]][name.upper()] += n
        launched.executed["", 0].update({"HMMA": tensor["hmma"], "HGMMA": tensor["gmma"], "?": 0})
    counters._recorded.append(launched)


@functools.lru_cache(maxsize=64)
def _places(library: Path, origin: str) -> dict[int, tuple[str, int]]:
    """The file and line of each call that reports an access: the innermost frame in the kernel's own file, else the
    innermost."""
    counters, calls = [], False
    for line in arithmetic.listing(library).splitlines():
        if calls and (after := _AFTER.match(line)):
            counters.append(int(after[1], 16))
        calls = _CALL.match(line) is not None
    frames = _frames(library, [c - 1 for c in counters])
    return {
        address + 1: _own(stack, origin)
        for address, stack in frames.items()
        if Path(stack[0][0]).name not in ("entry.h", "entries")
    }


@functools.lru_cache(maxsize=64)
def _arithmetic(library: Path, origin: str) -> tuple[dict[int, tuple[str, int]], list[arithmetic.Site]]:
    """Instructions of arithmetic, and the file and line of each."""
    every = arithmetic.sites(arithmetic.listing(library))
    frames = _frames(library, [site.address for site in every])
    lines = {address: _own(stack, origin) for address, stack in frames.items() if not arithmetic.none_in(stack[0][0])}
    return lines, [site for site in every if site.address in lines]


def _frames(library: Path, addresses: Iterable[int]) -> dict[int, list[tuple[str, int]]]:
    """The file and line of each instruction, and those of the calls that it was inlined through."""
    text = arithmetic.tool("addr2line", "-a", "-i", "-e", str(library), words="\n".join(map(hex, addresses)))
    frames: dict[int, list[tuple[str, int]]] = {}
    at = 0
    for line in text.splitlines():
        if line.startswith("0x") and ":" not in line:
            at = int(line, 16)
            continue
        file, _, number = line.partition(" ")[0].rpartition(":")
        frames.setdefault(at, []).append((file, int(number) if number.isdigit() else 0))
    return frames


@functools.lru_cache(maxsize=64)
def _compiled(build: Build) -> dict[str, list[sass.Instruction]] | None:
    """Each kernel's machine code with lines, or None if it cannot be made here."""
    try:
        return sass.instructions_of(nvrtc.compile_cubin(build.with_lines, ARCH))
    except RungError:
        return None


@functools.lru_cache(maxsize=64)
def _conditions(library: Path) -> tuple[conditions.Blocks, dict[int, tuple[str, int]]]:
    """The emulated code's conditions, and the file and line that each one's jump stands in."""
    blocks = conditions.conditions(arithmetic.listing(library))
    frames = _frames(library, [condition.jump for condition in blocks.above.values()])
    return blocks, {address: stack[0] for address, stack in frames.items()}


class Made(NamedTuple):
    """What the machine code makes of a line's accesses to a memory."""

    width: int  # bytes of the widest
    predicated: float  # share of them that a predicate may switch off


@functools.lru_cache(maxsize=256)
def _machine_code(build: Build, kernel: str) -> dict[tuple[str, int, str, str], Made]:
    """By file, line, memory and direction."""
    found: dict[tuple[str, int, str, str], list[sass.Instruction]] = defaultdict(list)
    for instruction in (_compiled(build) or {}).get(kernel, []):
        for memory, direction in _OPCODES.get(instruction.name, ()) if instruction.lines else ():
            found[(*_own(instruction.lines, build.origin), memory, direction)].append(instruction)
    return {
        place: Made(max(_bytes(i.opcode) for i in some), sum(i.predicated for i in some) / len(some))
        for place, some in found.items()
    }


def _bytes(opcode: str) -> int:
    parts = opcode.split(".")
    sizes = {"128": 16, "64": 8, "U16": 2, "S16": 2, "U8": 1, "S8": 1}
    return next((sizes[part] for part in parts if part in sizes), 4)
