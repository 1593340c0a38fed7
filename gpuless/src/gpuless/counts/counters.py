"""What machine code did in a launch, as Nsight Compute counts it, by kernel and by line of the source: instructions,
and requests to memory.

A launch under `Settings(counters=True)` executes the machine code that NVRTC makes without a GPU (machine.py).
"""

from __future__ import annotations

import functools
import re
from collections import Counter, defaultdict
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field, fields
from pathlib import Path
from typing import NamedTuple

from gpuless import machine
from gpuless.compile.sass import Instruction, Stack
from gpuless.facts import limits, opcodes
from gpuless.launch import LaunchConfig

WAYS = ("plain", "generic", "atomic", "matrix", "cp.async", "bulk", "operand", "barrier")
EVENTS = ("copy", "arrived", "product", "barrier", "wait for bytes", "group", "wait for group", "wait for products")
_TILE = re.compile(r"\.64x(\d+)x\d+")
TRACED = 3 << 14  # requests of a launch that are kept for drawings
_OPERAND, _WARP_GROUP = 32, 4  # bytes of a row of a product's operand; warps that make it together

Place = tuple[str, int]  # a file's name and a line of it
Requested = tuple[list[int], list[int]]  # a row of machine.Program.requests


class Access(NamedTuple):
    """What a line does to a memory."""

    file: str
    line: int
    memory: str  # global or shared
    direction: str  # read or write
    way: str  # one of WAYS


@dataclass
class Counts:
    """Sums over requests: what one instruction of a warp asks for, of as many lanes as are active."""

    requests: int = 0
    lanes: int = 0  # active
    bytes: int = 0  # of all lanes
    unique_bytes: int = 0  # global: different ones within each request
    sectors: int = 0  # global: of 32 bytes
    lines: int = 0  # global: of 128 bytes
    ideal_sectors: int = 0  # global: if the different bytes were contiguous and aligned
    wavefronts: int = 0  # shared: passes over the banks
    ideal_wavefronts: int = 0  # shared: without conflicts
    executed: int = 0  # by warps: requests, and executions of which a predicate switches off every lane

    def add(self, other: Counts) -> None:
        for f in fields(self):
            setattr(self, f.name, getattr(self, f.name) + getattr(other, f.name))

    @property
    def waste(self) -> int:
        """Sectors and wavefronts beyond the ideal."""
        return self.sectors - self.ideal_sectors + self.wavefronts - self.ideal_wavefronts


@dataclass(frozen=True)
class Sample:
    """The request of an instruction that wastes most: each active lane's distance from the first one's address."""

    size: int  # bytes per lane
    phase: int  # of the first lane's address within 128 bytes
    lanes: dict[int, int]


class Event(NamedTuple):
    """What a warp of the first block does: one of EVENTS; bytes or products; and which copy."""

    what: str
    warp: int
    amount: int
    copy: int


class Request(NamedTuple):
    """A request of the first block, or a store to global memory of any: each active lane's address. Those in shared
    memory count from its start."""

    access: Access
    block: int
    warp: int
    size: int  # bytes of each lane
    lanes: dict[int, int]
    swizzle: int = 0  # of a tensor's tile: 16-byte parts of rows of 32, 64 or 128 bytes change places (1, 2, 3)


@dataclass
class Launched:
    """One launch of a kernel."""

    kernel: str
    config: LaunchConfig
    accesses: dict[Access, Counts] = field(default_factory=lambda: defaultdict(Counts))
    worst: dict[Access, Sample] = field(default_factory=dict, repr=False)
    instructions: Counter[Access] = field(default_factory=Counter, repr=False)  # how many of the code make it
    # Of each opcode executions by warps, and by lanes whose predicate held.
    executed: dict[Place, Counter[str]] = field(default_factory=lambda: defaultdict(Counter), repr=False)
    lanes: dict[Place, Counter[str]] = field(default_factory=lambda: defaultdict(Counter), repr=False)
    events: list[Event] = field(default_factory=list, repr=False)  # of the first block, in order
    trace: list[Request] = field(default_factory=list, repr=False)  # under `traced`
    resident: int = 0  # blocks that a multiprocessor holds at once
    shared_size: int = 0  # bytes of shared memory of a block
    launches: int = 1  # that are summed
    code: str = field(default="", repr=False)

    def total(self, memory: str, direction: str, *ways: str) -> Counts:
        found = Counts()
        for access, counts in self.accesses.items():
            if access.memory == memory and access.direction == direction and access.way in ways:
                found.add(counts)
        return found


def collect(program: machine.Program, config: LaunchConfig, room: int = 0) -> Launched:
    """What the launch that has just ended counted, with at most `room` of its requests."""
    launched = counted(program, config, program.tally(), program.requests())
    lines = places(program)
    for number, block, warp, mask, size, kind, *at in machine.trace(room):
        access = _access(program.instructions[number], lines[number], kind & 1, kind >> 1 & 1)
        if access:
            lanes_at = {lane: at[lane] for lane in range(machine.LANES) if mask >> lane & 1}
            launched.trace.append(Request(access, block, warp, size, lanes_at, kind >> 2))
    launched.events = [Event(EVENTS[kind], warp, amount, copy) for kind, warp, amount, copy in machine.events()]
    shared = program.resources.static_shared + config.shared
    launched.shared_size = shared
    launched.resident = limits.occupancy(machine.ARCH, config.threads, program.resources.registers, shared).blocks
    return launched


def counted(
    program: machine.Program, config: LaunchConfig, tally: Sequence[tuple[int, int]], requests: Iterable[Requested]
) -> Launched:
    """The counts of instructions and requests by line."""
    launched = Launched(program.kernel, config, code=program.text)
    lines = places(program)
    for instruction, place, (executed, lanes) in zip(program.instructions, lines, tally, strict=True):
        if not executed:
            continue
        launched.executed[place][instruction.name] += executed
        launched.lanes[place][instruction.name] += lanes
        opcode = opcodes.row(instruction.name)
        if opcode is None or opcode.way not in WAYS:
            continue
        for memory, direction in opcode.accesses:
            counts = Counts(executed=executed)
            if opcode.way == "barrier":
                counts = Counts(requests=executed, lanes=lanes, executed=executed)
            elif opcode.way == "operand" and (tile := _TILE.search(instruction.opcode)):
                size = _OPERAND * (int(tile[1]) + 64 * _operands_in_shared(instruction)) * executed // _WARP_GROUP
                counts = Counts(bytes=size, unique_bytes=size)
            launched.accesses[Access(*place, memory, direction, opcode.way)].add(counts)
    _add_requests(launched, program, lines, requests)
    return launched


def _add_requests(
    launched: Launched, program: machine.Program, lines: Sequence[Place], requests: Iterable[Requested]
) -> None:
    worst: dict[Access, tuple[int, int]] = {}
    for (number, shared, store, *figures), (mask, size, phase, bad, *apart) in requests:
        instruction = program.instructions[number]
        opcode = opcodes.row(instruction.name)
        if opcode and opcode.unit == "TMA":  # a store is a copy to global memory, which reads shared memory
            store ^= shared
        access = _access(instruction, lines[number], shared, store)
        if access is None:
            continue
        counts = Counts(*figures)
        if opcode and not opcode.accesses:
            counts.executed = counts.requests
        launched.accesses[access].add(counts)
        launched.instructions[access] += 1
        lanes = {lane: apart[lane] for lane in range(machine.LANES) if mask >> lane & 1}
        # Of a line's requests the worst, and of equally bad ones that with most addresses.
        if mask and (rank := (bad, len({*lanes.values()}))) > worst.get(access, (-1, 0)):
            worst[access], launched.worst[access] = rank, Sample(size, phase, lanes)


def _access(instruction: Instruction, place: Place, shared: int, store: int) -> Access | None:
    """None for what is no access of global or shared memory."""
    opcode = opcodes.row(instruction.name)
    if opcode is None or opcode.way not in WAYS:
        return None
    writes = store or opcode.way == "atomic"
    return Access(*place, ("global", "shared")[shared], "write" if writes else "read", opcode.way)


def _operands_in_shared(instruction: Instruction) -> bool:
    """Whether a product of a warp group takes its first operand from shared memory, too."""
    return instruction.text.partition(",")[2].strip().startswith("gdesc")


@functools.lru_cache(maxsize=64)
def places(program: machine.Program) -> list[Place]:
    """Each instruction's line: the innermost frame in the kernel's own file, else the innermost. Code that the compiler
    adds has the line of its call, if there is only one."""
    found: list[Place] = []
    calls: dict[int, set[Place]] = defaultdict(set)
    for instruction in program.instructions:
        found.append(_own(instruction.lines, program.origin) if instruction.lines else ("", 0))
        if instruction.name == "CALL" and (to := re.search(r"0x([0-9a-f]+)", instruction.text)):
            calls[int(to[1], 16)].add(found[-1])
    called = ("", 0)
    for number, instruction in enumerate(program.instructions):
        if instruction.address in calls:
            called = next(iter(calls[instruction.address])) if len(calls[instruction.address]) == 1 else ("", 0)
        if not instruction.lines:
            found[number] = called
    return found


@functools.lru_cache(maxsize=4096)
def _own(stack: Stack, origin: str) -> Place:
    frames = [(Path(file).name, line) for file, line in stack]
    return next((frame for frame in frames if frame[0] == Path(origin).name), frames[0])
