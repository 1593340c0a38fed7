"""What a launch of machine code is judged by, and the sentence for what is wrong with it."""

from __future__ import annotations

import ctypes
import enum
import re
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field

from rung.cuda import elf
from rung.errors import FAULTS, EmulatorFault, FaultKind

_KINDS: tuple[FaultKind, ...] = FAULTS  # as judging.h numbers them, from 1
_DECLARED = re.compile(
    r"^\s*(\.extern |\.visible |\.weak )?\.shared (?:\.attribute\S+ )?\.align (\d+) \.(\w+) ([\w$]+)((?:\[\d*\])*);"
)
_ELEMENTS = {"float": 4, "int": 4, "unsigned": 4, "double": 8, "half": 2, "__half": 2, "float2": 8, "float4": 16}
_SIZES = {f"{kind}{bits}": bits // 8 for kind in "busf" for bits in (8, 16, 32, 64)}
_GLOBAL, _SHARED, _LOCAL = range(3)


class Why(enum.IntEnum):
    """As judging.h numbers them."""

    NONE = 0
    OUTSIDE = 1
    INPUT = 2
    NULL = 3
    MISALIGNED = 4
    ANOTHER_VALUE = 5
    CACHE = 6
    PROXY = 7
    UNDER_WAY = 8
    DIVERGED = 9
    EXITED = 10
    COUNTS = 11
    EARLY = 12


@dataclass(frozen=True)
class Region:
    """Memory that a kernel may touch: an argument or an allocation."""

    start: int
    end: int
    name: str = ""
    element: int = 1  # bytes
    writable: bool = True
    constant: bool = False  # no kernel writes it
    written: bytearray | None = None  # a bit for each byte, which stores set; None: all of it has been written
    outer: tuple[int, int] = (0, 0)  # the memory around it, in which an access means this region


@dataclass(frozen=True)
class Judging:
    """How a launch is executed, and what is looked for beside the bounds of its regions."""

    order: int = 0  # forward, reverse, drawn
    seed: int = 0
    poison: int = 0
    races: bool = False
    unwritten: bool = False


NOTHING = Judging()


class CRegion(ctypes.Structure):
    _fields_ = (
        ("start", ctypes.c_uint64),
        ("end", ctypes.c_uint64),
        ("written", ctypes.c_void_p),
        ("flags", ctypes.c_uint),
        ("reserved", ctypes.c_uint),
    )


class Record(ctypes.Structure):
    """A fault, as the machine tells it."""

    _fields_ = (
        ("kind", ctypes.c_uint),
        ("why", ctypes.c_uint),
        ("memory", ctypes.c_uint),
        ("write", ctypes.c_uint),
        ("address", ctypes.c_uint64),
        ("bytes", ctypes.c_uint),
        ("block", ctypes.c_uint * 3),
        ("thread", ctypes.c_uint),
        ("other_op", ctypes.c_int),
        ("other_write", ctypes.c_uint),
        ("other_block", ctypes.c_uint * 3),
        ("other_thread", ctypes.c_uint),
    )


def packed(regions: Sequence[Region]) -> ctypes.Array[CRegion]:
    rows = (CRegion * max(1, len(regions)))()
    for row, region in zip(rows, sorted(regions, key=lambda r: r.start), strict=False):
        row.start, row.end = region.start, region.end
        if region.written is not None:
            row.written = ctypes.addressof(ctypes.c_uint8.from_buffer(region.written))
        row.flags = (not region.writable) | region.constant << 1
    return rows


@dataclass(frozen=True)
class SharedVariable:
    name: str
    offset: int
    size: int  # 0: dynamic
    element: int  # bytes; 1 where the type is not known


def shared_variables(cubin: bytes, symbol: str, source: str) -> tuple[SharedVariable, ...]:
    """The `__shared__` variables of a kernel in the order in which ptxas places them: that of the PTX in the cubin's
    line information, each at a multiple of its alignment."""
    text = next((s.data for s in elf.sections(cubin) if s.name == ".nv_debug_ptx_txt"), b"").decode(errors="replace")
    lines = text.split("\0")
    begins = next((i for i, line in enumerate(lines) if f".entry {symbol}(" in line), None)
    if begins is None:
        return ()
    ends = next((i for i in range(begins, len(lines)) if lines[i].startswith("}")), len(lines))
    body = "\n".join(lines[begins:ends])
    found, at, dynamic = [], 0, []
    for i, line in enumerate(lines):
        declared = _DECLARED.match(line)
        if not declared or not (begins <= i < ends or re.search(rf"\b{re.escape(declared[4])}\b", body)):
            continue
        size, alignment, name = (
            _SIZES.get(declared[3], 1),
            int(declared[2]),
            elf.SharedSymbol(declared[4], 0, False).plain,
        )
        typed = re.search(rf"__shared__\s[^;]*?\b(\w+)\s[^;()]*?\b{re.escape(name)}\s*\[[^\]]*\](?!\s*\[)", source)
        element = max(size, _ELEMENTS.get(typed[1], 1) if typed else 1)
        if declared[1] == ".extern ":
            dynamic.append((name, alignment, element))
            continue
        for count in re.findall(r"\d+", declared[5]):
            size *= int(count)
        at = -(-at // alignment) * alignment
        found.append(SharedVariable(name, at, size, element))
        at += size
    return (
        *found,
        *(SharedVariable(name, -(-at // alignment) * alignment, 0, element) for name, alignment, element in dynamic),
    )


@dataclass
class Sentences:
    """Makes the sentence of a fault in one launch."""

    where: Callable[[int], str]  # of an instruction's number: ", line 5"
    block: tuple[int, int, int]
    shared: Sequence[SharedVariable]
    shared_bytes: int
    regions: Sequence[Region] = field(default_factory=tuple)

    def fault(self, origin: str, kernel: str, at: int, record: Record, text: str) -> EmulatorFault:
        kind = _KINDS[record.kind - 1]
        where = (
            f"kernel '{kernel}', block {_triple(record.block)}, thread {self._thread(record.thread)}{self.where(at)}"
        )
        return EmulatorFault(kind, f"{origin}: {where}: {self._words(kind, record) or text}.")

    def _thread(self, rank: int) -> str:
        x, y, _ = self.block
        return _triple((rank % x, rank // x % y, rank // (x * y)))

    def _words(self, kind: FaultKind, r: Record) -> str:
        verb = "writes" if r.write else "reads"
        if kind == "race":
            other = f"thread {self._thread(r.other_thread)}"
            between = [*r.block] != [*r.other_block]
            if between:
                other += f" of block {_triple(r.other_block)}"
            past = "written" if r.other_write else "read"
            place = self.where(r.other_op).replace(", line", " at line") if r.other_op >= 0 else ""
            how = {Why.ANOTHER_VALUE: " another value over", Why.CACHE: " through the read-only cache"}.get(r.why, "")
            if r.why == Why.EARLY:
                return (
                    f"{verb} the shared memory of another block of the cluster, before a barrier of the cluster has "
                    f"shown that it has started: {self._place(r)}"
                )
            if r.why == Why.UNDER_WAY:
                other = "a copy or product under way"
                past = "writes" if r.other_write else "reads"
                return (
                    f"{verb} what {other} {past}, begun{place}, with no wait between, or the wait is for another one "
                    f"(wait_group, byte barrier): {self._place(r)}"
                )
            lacks = "with no barrier between"
            if r.why == Why.ANOTHER_VALUE:
                lacks = "in the same instruction of their warp"
            elif r.why == Why.CACHE:
                lacks = "but that cache may hold data from before the launch"
            elif r.why == Why.PROXY:
                how, lacks = " asynchronously", "with no fence.proxy.async between"
            elif between:
                lacks += " (of blocks: a __threadfence before the flag or counter that tells of it)"
            return f"{verb}{how} what {other} has {past}{place}, {lacks}: {self._place(r)}"
        if kind == "async" and r.why == Why.UNDER_WAY:
            return "the block ends while a copy that it has begun may still read its shared memory: wait for its group"
        if kind == "unwritten":
            return f"reads what nothing has written: {self._place(r)}"
        if kind == "barrier":
            if r.why == Why.EXITED:
                return (
                    "a barrier of the block is not reached by every thread: others wait there, and this one has ended"
                )
            if r.why == Why.COUNTS:
                return f"a barrier for {r.address} threads, where others wait for {r.bytes}"
            if r.why == Why.DIVERGED:
                other = self.where(r.other_op).replace(", line", " at line")
                return f"lanes of one warp wait at different barriers, here and{other}"
        if r.why == Why.MISALIGNED:
            return f"an address is no multiple of {r.bytes} bytes: {self._place(r)}"
        if r.why == Why.NULL:
            return f"a null pointer is followed (address {r.address:#x})"
        if kind == "bounds":
            return self._outside(r)
        return ""

    def _outside(self, r: Record) -> str:
        verb = "writes" if r.write else "reads"
        for region in self.regions:
            low, high = region.outer if region.outer != (0, 0) else (region.start - 65536, region.end + 65536)
            if not low <= r.address < high:
                continue
            index = (r.address - region.start) // region.element
            if region.start <= r.address < region.end:
                return f"writes to {region.name}, which is an input: element {index}"
            side = "past the end" if r.address >= region.end else "before the start"
            count = (region.end - region.start) // region.element
            return f"touches {region.name} {side}: element {index} (a tensor of {count} elements)"
        return f"{verb} memory that belongs to no argument (address {r.address:#x})"

    def _place(self, r: Record) -> str:
        if r.memory == _LOCAL:
            return f"byte {r.address} of the thread's stack"
        if r.memory == _SHARED:
            return self.variable(r.address)
        for region in self.regions:
            if region.start <= r.address < region.end:
                return f"{region.name}, element {(r.address - region.start) // region.element}"
        return f"global memory (address {r.address:#x})"

    def variable(self, offset: int) -> str:
        for variable in reversed(self.shared):
            if variable.offset <= offset:
                within = offset - variable.offset
                unit = f"element {within // variable.element}" if variable.element > 1 else f"byte {within}"
                return f"shared variable '{variable.name}', {unit}"
        return f"byte {offset} of shared memory"


def _triple(values: Sequence[int]) -> str:
    return f"({values[0]}, {values[1]}, {values[2]})"
