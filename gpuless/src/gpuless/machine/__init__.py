"""Runs a kernel's machine code (that of an sm_90a, or of the architecture asked for; NVRTC makes it without a GPU)
warp by warp, and counts what each instruction does. machine/entry.h has the C interface.
"""

from __future__ import annotations

import ctypes
import functools
import json
import math
import platform
import random
import re
import struct
import sys
import weakref
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, NamedTuple

from gpuless.base import disk_cache
from gpuless.base.errors import FAULTS, EmulatorFault, UserError
from gpuless.compile import elf, nvrtc, sass, toolchain
from gpuless.compile.cubin_cache import Cubin
from gpuless.facts import gpus, opcodes
from gpuless.launch import Build, LaunchConfig, Resources
from gpuless.machine import compiling

ARCH = "sm_90a"
FIGURES, SAMPLE, LANES, TRACED = 12, 36, 32, 38
STALLS = 12  # reasons
_TEXT = 2048
_STACK = 1024  # bytes beyond the stack that the compiler knows of, as a thread of a GPU has
_EVENTS = 4096
_NAMED = 5  # a constant bank that no code has
NEAR = 1 << 24  # bytes from a tensor within which an access is still taken for one of it
DRIVER = {  # functions of the driver, as machine.h numbers them
    name: (3 << 48) + number
    for number, name in enumerate(
        ("vprintf", "__assertfail", "malloc", "free", "cudaCGGetIntrinsicHandle", "cudaCGSynchronize"), 1
    )
}
_NOT_A_NUMBER = re.compile(r"[+-]QNAN")  # as nvdisasm writes any bits of one
_HALF = r"[+-]?(?:QNAN|INF|[0-9][0-9.e+-]*)"
_MBARRIER = re.compile(r"mbarrier at byte (\d+) of shared memory")
_PAIR = re.compile(rf"(?<![\w.]){_HALF} ?, {_HALF}(?= ?,| ?$)")  # of halves: two numbers for one of 32 bits
_OF_PAIRS = frozenset({"HADD2", "HMUL2", "HFMA2", "HMNMX2", "HSET2", "HSETP2"})
Bytes = ctypes.Array[ctypes.c_char]


class Where(ctypes.Structure):
    _fields_ = (
        ("instruction", ctypes.c_int),
        ("block", ctypes.c_uint * 3),
        ("thread", ctypes.c_uint),
        ("lane", ctypes.c_uint),
    )


class Fault(ctypes.Structure):
    """machine/fault.h"""

    _fields_ = (
        ("kind", ctypes.c_uint),
        ("space", ctypes.c_uint),
        ("at", Where),
        ("other", Where),
        ("address", ctypes.c_uint64),
        ("bytes", ctypes.c_uint),
        ("writes", ctypes.c_uint),
        ("other_wrote", ctypes.c_uint),
        ("misaligned", ctypes.c_uint),
        ("asserts", ctypes.c_uint),
        ("text", ctypes.c_char * 1024),
        ("lacks", ctypes.c_char * 160),
    )


GLOBAL_SPACE, SHARED_SPACE, LOCAL_SPACE = 1, 2, 3
SPACES = ("", "global", "shared", "local")
HOWS = ("reads", "writes")


class _Region(ctypes.Structure):
    _fields_ = (("start", ctypes.c_uint64), ("end", ctypes.c_uint64), ("flags", ctypes.c_uint))


_TYPES: dict[str, Any] = {"uint32_t": ctypes.c_uint32, "uint64_t": ctypes.c_uint64, "double": ctypes.c_double}
_FIELD = re.compile(r"^(?:FIELD|ARRAY)\((\w+), (\w+)(?:, (\d+))?\)", re.MULTILINE)


def _launch_fields() -> list[tuple[str, Any]]:
    """The fields of launch.def; what is not a number is a pointer."""
    rows = _FIELD.findall(Path(__file__).with_name("launch.def").read_text())
    kinds = [(name, _TYPES.get(kind, ctypes.c_void_p), count) for kind, name, count in rows]
    return [(name, kind * int(count) if count else kind) for name, kind, count in kinds]


class _Launch(ctypes.Structure):
    _fields_ = _launch_fields()


class Prediction(ctypes.Structure):
    """How long a launch takes, by the model of time."""

    _fields_ = (
        ("clocks", ctypes.c_double), ("atomic_clocks", ctypes.c_double), ("resident", ctypes.c_uint),
        ("together", ctypes.c_uint), ("swaps", ctypes.c_uint),
    )  # fmt: skip


@functools.cache
def library() -> ctypes.CDLL:
    found = ctypes.CDLL(str(compiled()))
    words, pointer = ctypes.c_uint, ctypes.c_void_p
    for name, result, *arguments in (
        ("load", pointer, ctypes.c_char_p),
        ("problem", ctypes.c_char_p, pointer),
        ("free", None, pointer),
        ("run", ctypes.c_int, pointer, ctypes.POINTER(_Launch), ctypes.POINTER(Fault)),
        ("name", None, pointer, ctypes.c_char_p, ctypes.c_char_p),
        ("sentence", None, pointer, ctypes.POINTER(Fault), pointer, ctypes.c_char_p, ctypes.c_char_p, words),
        ("unwritten", ctypes.c_int, words, ctypes.POINTER(Fault)),
        ("tally", None, pointer, pointer),
        ("memory", words, pointer, pointer, pointer, words),
        ("cold", None),
        ("fidelity", None, ctypes.c_char_p, words),
        ("predict", ctypes.c_int, pointer, pointer, pointer, words, ctypes.c_double, ctypes.c_double, *[pointer] * 3),
        ("events", words, pointer, words),
        ("trace", words, pointer, words),
    ):
        function = getattr(found, f"rung_machine_{name}")
        function.restype, function.argtypes = result, arguments
    return found


def shipped() -> Path | None:
    """The library that came with the package, if this processor takes it."""
    ready = compiling.shipped()
    known = platform.machine() != "x86_64" or toolchain.machine_flags() == compiling.X86_64
    return ready if known and ready.exists() else None


def available() -> str | None:
    """None where kernels can be emulated, else the reason and the fix."""
    return None if sys.platform == "linux" and shipped() else toolchain.available()


@functools.cache
def compiled() -> Path:
    """The library: the package's, or one that is compiled once for this machine and g++."""
    if ready := shipped():
        return ready
    flags = toolchain.machine_flags()

    def make(work: Path) -> tuple[Path, None]:
        if reason := compiling.build(toolchain.require(), work / "machine.so", flags):
            raise UserError(f"The emulator's machine does not compile with {toolchain.compiler()}: {reason}")
        return work / "machine.so", None

    key = toolchain.key(flags, compiling.FLAGS, compiling.digest())
    return disk_cache.kept("emulator", f"machine-{key}", make).path


def unavailable() -> str:
    """Why machine code cannot be made or read here; empty if it can."""
    try:
        nvrtc.version()
    except UserError as problem:
        return str(problem)
    return "" if sass.disassembler() else sass.ABSENT


def fidelity() -> dict[str, Any]:
    """How this process' launches were executed so far: instructions of warps whose results are a GPU's in every bit;
    by a table that a GPU has filled, and approximately, by name; names that were refused (docs/json.md)."""
    said = ctypes.create_string_buffer(1 << 16)
    library().rung_machine_fidelity(said, len(said))
    found: dict[str, Any] = json.loads(said.value)
    return found


def forget_fidelity() -> None:
    """What follows is counted from here."""
    library().rung_machine_fidelity(None, 0)


def clear_caches() -> None:
    """The caches hold nothing, for the prediction of the launches that follow."""
    library().rung_machine_cold()


class Program:
    """A kernel, ready to run."""

    def __init__(self, cubin: Cubin, instructions: list[sass.Instruction], kernel: str, origin: str) -> None:
        self.kernel, self.origin, self.instructions = kernel, origin, instructions
        self.resources: Resources = cubin.resources[kernel]
        self.arch = cubin.arch
        self.reserved = elf.reserved_shared(cubin.arch)
        self.memory = elf.kernel_memory(cubin.path.read_bytes(), cubin.lowered[kernel])
        self.shared = elf.kernel_shared(cubin.path.read_bytes(), cubin.lowered[kernel])
        self.named: list[tuple[str, int]] = []  # variables, and places in them, whose addresses the code has: a bank
        known = elf.module_memory(cubin.path.read_bytes()).variables
        self.text = sass.VARIABLE.sub(
            functools.partial(self._placed, known), "\n".join(line_of(i) for i in self.instructions)
        )
        self.handle = library().rung_machine_load(self.text.encode())
        weakref.finalize(self, library().rung_machine_free, self.handle)
        if problem := library().rung_machine_problem(self.handle):
            number, _, instruction = problem.decode().partition(" ")
            where = self.place(int(number))
            text = f"{where}: the instruction {instruction} is not executed here (code for {self.arch})."
            raise EmulatorFault("unsupported", text)
        places = (f"line {line}" if (line := self.line(n)) else "" for n in range(len(self.instructions)))
        library().rung_machine_name(self.handle, kernel.encode(), "\n".join(places).encode())
        self.atomics = [n for n, i in enumerate(self.instructions) if i.atomic]
        self.local_bytes = local_bytes(self.memory, self.instructions)

    def _placed(self, known: Mapping[str, elf.Variable], found: re.Match[str]) -> str:
        """Half of a variable's address: a number in shared memory; else in a bank, since each module has its own."""
        variable, half = known.get(found[2]), 4 * (found[1] == "hi")
        if variable is None:
            return found[0]
        at = int(found[3] or "0", 16)
        if variable.section.startswith(".nv.shared"):
            return hex(0 if half else variable.offset + at)
        self.named.append((found[2], at))
        return f"c[{hex(_NAMED)}][{hex(8 * len(self.named) - 8 + half)}]"

    def line(self, number: int) -> int:
        """The line of an instruction in the kernel's own file; 0 if it is not known."""
        lines = self.lines(number) if 0 <= number < len(self.instructions) else ()
        return next((n for file, n in lines if file == self.origin), 0)

    def lines(self, number: int) -> list[tuple[str, int]]:
        """Of an instruction; Triton keeps code that was compiled of the same text in another folder."""
        own = Path(self.origin).name
        lines = self.instructions[number].lines
        return [(self.origin if file.rpartition("/")[2] == own else file, n) for file, n in lines]

    def place(self, number: int) -> str:
        """The kernel, and the line of an instruction if it is known."""
        return f"{self.origin}: kernel '{self.kernel}'" + (f", line {line}" if (line := self.line(number)) else "")

    def told(self, fault: Fault, block: tuple[int, int, int], operand: str) -> EmulatorFault:
        """A fault as an error; `operand` says what lies at its address."""
        said = ctypes.create_string_buffer(_TEXT)
        sizes = (ctypes.c_uint * 3)(*block)
        library().rung_machine_sentence(self.handle, fault, sizes, operand.encode(), said, _TEXT)
        kind = FAULTS[fault.kind - 1]
        place, other = self._where(fault.at, block), self._where(fault.other, block)
        text = f"{self.origin}: {said.value.decode(errors='replace')}."
        related = [other] if kind == "race" and "line" in other else []
        hows = {"how": HOWS[min(fault.writes, 1)], "other_how": HOWS[min(fault.other_wrote, 1)]} if related else {}
        what = _MBARRIER.sub(
            lambda at: f"mbarrier in {self.shared_variable(self.reserved + int(at[1]), 8)}",
            fault.text.decode(errors="replace"),
        )
        record = {"memory": SPACES[fault.space], "operand": operand, "what": what}
        record |= {"lacks": fault.lacks.decode(errors="replace")} | hows
        return EmulatorFault(kind, text, place, related, record)

    def _where(self, at: Where, block: tuple[int, int, int]) -> dict[str, Any]:
        found: dict[str, Any] = {"file": self.origin, "kernel": self.kernel}
        if line := self.line(at.instruction):
            found["line"] = line
        if at.instruction >= 0:
            found["block"] = list(at.block)
        if at.lane < LANES:
            x, y, _ = block
            found["thread"] = [at.thread % x, at.thread // x % y, at.thread // (x * y)]
        return found

    def shared_variable(self, at: int, size: int = 0) -> str:
        """The `__shared__` variable at an offset."""
        at -= self.reserved
        found = [v for v in self.shared if v.offset <= at]
        if not found:
            return "shared memory"
        nearest = max(found, key=lambda v: v.offset)
        within = at - nearest.offset
        place = f"element {within // size}" if size and not within % size else f"byte {within}"
        if size and within >= nearest.size > 0:
            place += f" (its last is {nearest.size // size - 1})"
        return f"shared variable '{nearest.plain}', {place}"

    def tally(self) -> list[tuple[int, int]]:
        """For each instruction its executions by warps, and by lanes whose predicate held, in the last launch."""
        rows = (ctypes.c_uint64 * (2 * len(self.instructions)))()
        library().rung_machine_tally(self.handle, rows)
        return [*zip(rows[::2], rows[1::2], strict=True)]

    @functools.cached_property
    def stores(self) -> list[int]:
        """The bytes that a lane of each instruction stores in global memory; 0 if it does not."""
        sizes = {"128": 16, "64": 8, "U16": 2, "S16": 2, "16": 2, "U8": 1, "S8": 1}
        every = (set(i.opcode.split(".")) for i in self.instructions)
        return [next((sizes[s] for s in sizes if s in of), 4) if of & {"STG", "ST"} else 0 for of in every]

    def requests(self) -> list[tuple[list[int], list[int]]]:
        """For each instruction and memory of the last launch its figures, and its most expensive request."""
        room = 4 * len(self.instructions)
        rows, samples = (ctypes.c_uint64 * FIGURES * room)(), (ctypes.c_int64 * SAMPLE * room)()
        count = min(library().rung_machine_memory(self.handle, rows, samples, room), room)
        return [([*row], [*sample]) for row, sample in zip(rows[:count], samples[:count], strict=True)]


def events() -> list[tuple[int, int, int, int]]:
    """Of the last launch's first block: kind, warp, bytes or products, number of the copy."""
    rows = (ctypes.c_uint * 4 * _EVENTS)()
    count = min(library().rung_machine_events(rows, _EVENTS), _EVENTS)
    return [(row[0], row[1], row[2], row[3]) for row in rows[:count]]


def trace(room: int) -> list[list[int]]:
    """The last launch's requests, as entry.h describes them."""
    rows = (ctypes.c_uint64 * TRACED * max(room, 1))()
    count = min(library().rung_machine_trace(rows, room), room)
    return [[*row] for row in rows[:count]]


def resources(build: Build, arch: str = ARCH) -> dict[str, Resources]:
    return nvrtc.compile_cubin(build.with_lines, arch).resources


@functools.lru_cache(maxsize=64)
def program(build: Build, kernel: str, arch: str = ARCH) -> Program:
    cubin = nvrtc.compile_cubin(build.with_lines, arch)
    return Program(cubin, _instructions(build, arch)[kernel], kernel, build.origin)


@functools.lru_cache(maxsize=64)
def _instructions(build: Build, arch: str) -> dict[str, list[sass.Instruction]]:
    return sass.instructions_of(nvrtc.compile_cubin(build.with_lines, arch))


def local_bytes(memory: elf.KernelMemory, instructions: Sequence[sass.Instruction]) -> int:
    """Of a thread's stack."""
    touches = any((row := opcodes.row(i.name)) and row.space == "local" for i in instructions)
    return -(-memory.stack // 16) * 16 + _STACK if touches or memory.stack else 0


def line_of(instruction: sass.Instruction) -> str:
    """An instruction as rung_machine_load reads it, with what the compiler says about its issue (bits 105 to 125)."""
    return f"{instruction.address:04x}:{instruction.words[1] >> 41 & 0x1FFFFF:x} {_exact(instruction)}"


def _exact(instruction: sass.Instruction) -> str:
    """Its text, with the bits of a number that is none: it may be half of a double; and with the number of a driver's
    function that it calls by name."""
    if instruction.name == "CALL":
        before, _, name = instruction.text.rpartition(" ")
        return f"{before} {hex(DRIVER[name] & 0xFF)}" if name in DRIVER else instruction.text
    if "QNAN" not in instruction.text or instruction.name.startswith("D"):
        return instruction.text
    bits = hex(instruction.words[0] >> 32)
    text = _PAIR.sub(bits, instruction.text, count=1) if instruction.name in _OF_PAIRS else instruction.text
    return _NOT_A_NUMBER.sub(bits, text)


def functions(cubin: bytes) -> dict[str, int]:
    """Addresses of the functions that code may call and memory may hold."""
    return DRIVER | elf.code(cubin).starts


class Variables:
    """The __constant__ and __device__ variables of a loaded module, which keep their values between launches."""

    def __init__(self, cubin: bytes) -> None:
        memory = elf.module_memory(cubin)
        self._known = memory.variables
        self._sections = {name: aligned(data) for name, data in memory.sections.items()}
        called = functions(cubin)
        for section, offset, name, added in memory.placed:
            address = self.address(name)
            address = called.get(name) if address is None else address + added
            if address is not None:
                struct.pack_into("<Q", self._sections[section], offset, address)
        self.regions = [
            Region(ctypes.addressof(data), ctypes.addressof(data) + len(data), "", 1)
            for data in self._sections.values()
            if len(data)
        ]
        self.constants, self.pointers = self._sections[".nv.constant3"], self._sections[".nv.constant4"]
        self.written = any(name.startswith(".nv.global") and len(data) for name, data in self._sections.items())

    def address(self, name: str) -> int | None:
        found = self._known.get(name)
        memory = self._sections.get(found.section) if found else None
        return ctypes.addressof(memory) + found.offset if found and memory else None

    def constant(self, name: str) -> tuple[int, int] | None:
        """The address and the size of a __constant__ variable."""
        found, address = self._known.get(name), self.address(name)
        return (address, found.size) if found and address and found.section == ".nv.constant3" else None


class Region(NamedTuple):
    """Memory that a launch may touch: a tensor, or an allocation."""

    start: int
    end: int
    name: str  # of the parameter
    element: int  # bytes
    written: bool = True  # whether kernels may write to it
    constant: bool = False  # no kernel ever writes to it


class Model(NamedTuple):
    """What the model of time is given."""

    constants: Sequence[float]
    resident: int
    shared: int  # bytes of a block, with the system's
    sets: float  # of operands, that calls take in turn


class LaunchOptions(NamedTuple):
    """How a launch runs, and what is looked for."""

    order: int = 0  # of warps and blocks: forward, reverse, shuffled by the seed
    seed: int = 0
    races: bool = False
    seconds: float = 6.0  # of CPU time, until it is ended; if `steps` is 0
    steps: int = 0  # instructions of warps, until it is ended
    poison: int = 0  # the pattern that unwritten shared memory holds
    bounds: bool = True  # memory outside the regions is not touched
    strict: bool = True  # no block may count on another to run, and a barrier wants threads that have returned, too
    followed: bool = False  # a dependent launch may follow
    tiles: bool = False  # Triton's code: lanes share memory in their warp's order; threads hold copies of an element
    ahead: bool = False  # an unknown kernel may still run when it begins
    counts: bool = False
    room: int = 0  # for requests that are kept
    multiprocessors: int = 0  # that the kernel sees; 0: the usual GPU's
    few: int = 0  # only so many blocks run: the first, the middle, the last and drawn ones


def run(
    of: Program,
    config: LaunchConfig,
    variables: Variables,
    parameters: Sequence[Bytes],
    options: LaunchOptions,
    regions: Sequence[Region] = (),
    *,
    model: Model | None = None,
) -> tuple[Prediction, list[list[float]]]:
    """Runs the whole grid; the parameters' sizes are those of `of.memory`. With `play`, only what stands for the grid,
    and how long it takes is returned, with clocks of each instruction's warps by the reason why they did not issue."""
    first = aligned(bytes(max(of.memory.constants, of.memory.start)))
    for (offset, _), value in zip(of.memory.parameters, parameters, strict=True):
        struct.pack_into(f"{len(value)}s", first, of.memory.start + offset, value.raw)
    named = [(variables.address(name) or 0) + at for name, at in of.named]
    banks = {0: first, 2: aligned(of.memory.table), 3: variables.constants, 4: variables.pointers}
    banks[_NAMED] = aligned(struct.pack(f"<{len(named)}Q", *named))
    launch = _Launch(
        grid=config.grid,
        block=config.block,
        cluster=config.cluster or (1, 1, 1),
        shared_bytes=of.resources.static_shared + config.shared,
        reserved_shared=of.reserved,
        local_bytes=of.local_bytes,
        cooperative=config.cooperative,
        parameters=of.memory.start,
        prints=2,
        trace_room=options.room,
        seconds=options.seconds,
        steps=options.steps,
        order=options.order,
        seed=options.seed,
        poison=options.poison,
        races=options.races,
        registers=of.resources.registers,
        strict=options.strict,
        tiles=options.tiles,
        dependent=config.pdl,
        ahead=options.ahead,
        followed=options.followed,
        multiprocessors=options.multiprocessors or gpus.usual().multiprocessors,
        uncounted=not options.counts,
    )
    known = [*regions, *variables.regions] if regions else []
    held = known if options.bounds else []
    rows = (_Region * max(1, len(held)))(
        *(_Region(r.start, r.end, int(not r.written or r.constant) | 2 * int(r.constant)) for r in held)
    )
    launch.regions, launch.region_count = ctypes.addressof(rows), len(held)
    for number, data in banks.items():
        launch.bank[number], launch.bank_bytes[number] = ctypes.addressof(data), len(data)
    if options.few and not config.cooperative:
        units = math.prod(config.grid) // math.prod(config.cluster or (1,))
        drawn = random.Random(units).sample(range(units), min(options.few, units))
        some = sorted({0, units // 2, units - 1, *drawn[3:]})
        chosen = (ctypes.c_uint * len(some))(*some)
        launch.sampled, launch.sampled_count, launch.sampled_only = ctypes.addressof(chosen), len(some), 2
    fault, made = Fault(), Prediction()
    stalls = (ctypes.c_double * STALLS * len(of.instructions))() if model else None
    if model:
        given = (ctypes.c_double * len(model.constants))(*model.constants)
        words = (given, model.resident, model.shared, model.sets, ctypes.byref(made), stalls)
        failed = library().rung_machine_predict(of.handle, ctypes.byref(launch), *words, ctypes.byref(fault))
    else:
        failed = library().rung_machine_run(of.handle, ctypes.byref(launch), ctypes.byref(fault))
    if failed:
        raise of.told(fault, config.block, operand_of(of, fault, known))
    return made, [[*row] for row in stalls or ()]


def unwritten(of: Program, config: LaunchConfig) -> EmulatorFault | None:
    """What the last launch first read in shared or local memory that nothing had written; kernels go on behind it,
    since they may not use it."""
    fault = Fault()
    for space in (SHARED_SPACE, LOCAL_SPACE):
        if library().rung_machine_unwritten(space, ctypes.byref(fault)):
            return of.told(fault, config.block, operand_of(of, fault, ()))
    return None


def operand_of(of: Program, fault: Fault, regions: Sequence[Region]) -> str:
    """What lies at the address of a fault."""
    at = fault.address
    race = FAULTS[fault.kind - 1] == "race"
    if fault.space == SHARED_SPACE:
        return of.shared_variable(at, fault.bytes)
    if fault.space != GLOBAL_SPACE:
        return ""
    inside = next((r for r in regions if r.start <= at < r.end), None)
    element = f"element {(at - inside.start) // inside.element}" if inside else ""
    if race or fault.misaligned:
        return f"parameter '{inside.name}', {element}" if inside and inside.name else "global memory" if race else ""
    if inside:
        return f"writes to parameter '{inside.name}', which is an input: {element}"
    if at < 1 << 16:
        return f"a null pointer is followed (address {at:#x})"
    named = [r for r in regions if r.name]
    near = min(named, key=lambda r: max(r.start - at, at - r.end + 1), default=None)
    if near is None or max(near.start - at, at - near.end + 1) > NEAR:
        return f"touches memory that belongs to no argument (address {at:#x})"
    side, count = ("past the end" if at >= near.end else "before the start"), (near.end - near.start) // near.element
    return (
        f"touches parameter '{near.name}' {side}: element {(at - near.start) // near.element} "
        f"(a tensor of {count} elements)"
    )


def aligned(data: bytes, alignment: int = 512) -> Bytes:
    """The bytes at a multiple of `alignment`."""
    memory = bytearray(len(data) + alignment)
    start = -ctypes.addressof(ctypes.c_char.from_buffer(memory)) % alignment
    memory[start : start + len(data)] = data
    return (ctypes.c_char * len(data)).from_buffer(memory, start)
