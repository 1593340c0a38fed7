"""Runs a kernel's machine code (that of an sm_90a, which NVRTC makes without a GPU) warp by warp, and counts what each
instruction does. machine/entry.h has the C interface.
"""

from __future__ import annotations

import ctypes
import functools
import re
import struct
import weakref
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

from rung.cuda import elf, kept, nvrtc, sass
from rung.cuda.cubin_cache import Cubin
from rung.cuda.launch import Build, LaunchConfig, Resources
from rung.emulator import judged, toolchain
from rung.emulator.judged import Judging, Region
from rung.errors import EmulatorFault, FaultKind, RungError
from rung.processors import processors

ARCH = "sm_90a"
FIGURES, SAMPLE, LANES, TRACED = 12, 36, 32, 38
_SOURCES = toolchain.HERE / "machine"
_FLAGS = (
    "-std=c++17",
    "-O3",
    "-ffp-contract=off",
    "-fno-strict-aliasing",
    "-fwrapv",
    "-fno-math-errno",
    "-fno-trapping-math",
    "-fPIC",
)
_TEXT = 1024
_STACK = 1024  # bytes beyond the stack that the compiler knows of, as a thread of a GPU has
_EVENTS = 4096
_FAULTS: dict[str, FaultKind] = {  # by words of the text
    "traps": "trap", "assertion": "trap", "does not end": "deadlock", "waits": "deadlock",
    "not executed": "unsupported", "not part of the kernel": "unsupported", "arrivals": "async",
}  # fmt: skip
DRIVER = {  # functions of the driver, as machine.h numbers them
    name: (3 << 48) + number for number, name in enumerate(("vprintf", "__assertfail", "malloc", "free"), 1)
}
_NOT_A_NUMBER = re.compile(r"[+-]QNAN")  # as nvdisasm writes any bits of one
Bytes = ctypes.Array[ctypes.c_char]


class Launch(ctypes.Structure):
    _fields_ = (
        ("grid", ctypes.c_uint * 3),
        ("block", ctypes.c_uint * 3),
        ("cluster", ctypes.c_uint * 3),
        ("shared_bytes", ctypes.c_uint),
        ("local_bytes", ctypes.c_uint),
        ("cooperative", ctypes.c_uint),
        ("bank", ctypes.c_void_p * 8),
        ("bank_bytes", ctypes.c_uint * 8),
        ("parameters", ctypes.c_uint),
        ("trace_room", ctypes.c_uint),
        ("timed", ctypes.c_uint),
        ("seconds", ctypes.c_double),
        ("prints", ctypes.c_uint),
        ("allocate", ctypes.c_void_p),
        ("release", ctypes.c_void_p),
        ("regions", ctypes.POINTER(judged.CRegion)),
        ("region_count", ctypes.c_uint),
        ("races", ctypes.c_uint),
        ("unwritten", ctypes.c_uint),
        ("order", ctypes.c_uint),
        ("seed", ctypes.c_uint),
        ("poison", ctypes.c_uint),
    )


@functools.cache
def library() -> ctypes.CDLL:
    found = ctypes.CDLL(str(compiled()))
    words, pointer = ctypes.c_uint, ctypes.c_void_p
    for name, result, *arguments in (
        ("load", pointer, ctypes.c_char_p),
        ("problem", ctypes.c_char_p, pointer),
        ("free", None, pointer),
        ("run", ctypes.c_int, pointer, ctypes.POINTER(Launch), ctypes.c_char_p, words),
        ("fault", None, pointer),
        ("tally", None, pointer, pointer),
        ("memory", words, pointer, pointer, pointer, words),
        ("clocks", None, pointer),
        ("cold", None),
        ("events", words, pointer, words),
        ("trace", words, pointer, words),
    ):
        function = getattr(found, f"rung_machine_{name}")
        function.restype, function.argtypes = result, arguments
    return found


def compiled() -> Path:
    """The library, compiled once for this machine and g++."""
    flags = [*_FLAGS, *toolchain.machine_flags()]

    def make(work: Path) -> tuple[Path, None]:
        target = work / "machine.so"
        sources = sorted(_SOURCES.glob("*.cpp"))
        commands = [[*flags, "-c", str(path), "-o", f"{path.stem}.o"] for path in sources]
        with ThreadPoolExecutor(processors()) as pool:
            done = [*pool.map(lambda command: toolchain.run(command, work), commands)]
        linked = toolchain.run(["-shared", *(f"{path.stem}.o" for path in sources), "-o", str(target)], work)
        for result in (*done, linked):
            if result.returncode:
                reason = result.stderr.strip()[:500]
                raise RungError(f"The emulator's machine does not compile with {toolchain.compiler()}: {reason}")
        return target, None

    return kept.kept("emulator", f"machine-{toolchain.key(flags, folders=(_SOURCES,))}", make).path


def unavailable() -> str:
    """Why machine code cannot be made or read here; empty if it can."""
    try:
        nvrtc.version()
    except RungError as problem:
        return str(problem)
    return "" if sass.disassembler() else sass.ABSENT


class Program:
    """A kernel, ready to run."""

    def __init__(
        self, cubin: Cubin, instructions: list[sass.Instruction], kernel: str, origin: str, source: str = ""
    ) -> None:
        self.kernel, self.origin, self.instructions = kernel, origin, instructions
        self.resources: Resources = cubin.resources[kernel]
        self.memory = elf.kernel_memory(cubin.path.read_bytes(), cubin.lowered[kernel])
        self.shared = judged.shared_variables(cubin.path.read_bytes(), cubin.lowered[kernel], source)
        code = elf.code(cubin.path.read_bytes(), cubin.lowered[kernel])
        self.text = "\n".join(f"{i.address:04x} {_exact(i, code)}" for i in self.instructions)
        self.handle = library().rung_machine_load(self.text.encode())
        weakref.finalize(self, library().rung_machine_free, self.handle)
        if problem := library().rung_machine_problem(self.handle):
            number, _, instruction = problem.decode().partition(" ")
            raise RungError(f"{self.place(int(number))}: the instruction {instruction} is not executed here.")
        touches = any(i.name in ("LDL", "STL") for i in self.instructions)
        self.local_bytes = -(-self.memory.stack // 16) * 16 + _STACK if touches or self.memory.stack else 0

    def place(self, number: int) -> str:
        """The kernel, and the line of an instruction if it is known."""
        return f"{self.origin}: kernel '{self.kernel}'{self.line(number)}"

    def line(self, number: int) -> str:
        lines = self.instructions[number].lines if 0 <= number < len(self.instructions) else ()
        line = next((n for file, n in lines if Path(file).name == Path(self.origin).name), 0)
        return f", line {line}" if line else ""

    def tally(self) -> list[tuple[int, int]]:
        """For each instruction its executions by warps, and by lanes whose predicate held, in the last launch."""
        return [(executed, lanes) for executed, lanes, _ in self._tally()]

    def ways(self) -> list[tuple[int, int]]:
        """For each instruction by how many lanes its predicate held in the last launch, and did not hold: of a branch
        with a predicate, how often it was taken and not taken."""
        return [(lanes, active - lanes) for _, lanes, active in self._tally()]

    def _tally(self) -> list[list[int]]:
        rows = (ctypes.c_uint64 * 3 * max(1, len(self.instructions)))()
        library().rung_machine_tally(self.handle, rows)
        return [[*row] for row in rows[: len(self.instructions)]]

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


def resources(build: Build) -> dict[str, Resources]:
    return nvrtc.compile_cubin(build.with_lines, ARCH).resources


@functools.lru_cache(maxsize=64)
def program(build: Build, kernel: str) -> Program:
    cubin = nvrtc.compile_cubin(build.with_lines, ARCH)
    return Program(cubin, _instructions(build)[kernel], kernel, build.origin, build.source)


@functools.lru_cache(maxsize=64)
def _instructions(build: Build) -> dict[str, list[sass.Instruction]]:
    return sass.instructions_of(nvrtc.compile_cubin(build.with_lines, ARCH))


def _exact(instruction: sass.Instruction, code: bytes) -> str:
    """Its text, with the bits of a number that is none: it may be half of a double."""
    if "QNAN" not in instruction.text or instruction.name.startswith("D"):
        return instruction.text
    (bits,) = struct.unpack_from("<I", code, instruction.address + 4)
    return _NOT_A_NUMBER.sub(hex(bits), instruction.text)


class Variables:
    """The __constant__ and __device__ variables of a loaded module, which keep their values between launches."""

    def __init__(self, build: Build) -> None:
        cubin = nvrtc.compile_cubin(build.with_lines, ARCH)
        memory = elf.module_memory(cubin.path.read_bytes())
        self._known = memory.variables
        self._sections = {name: aligned(data) for name, data in memory.sections.items()}
        for section, offset, name, added in memory.placed:
            address = self.address(name)
            address = DRIVER.get(name) if address is None else address + added
            if address is not None:
                struct.pack_into("<Q", self._sections[section], offset, address)
        self.constants, self.pointers = self._sections[".nv.constant3"], self._sections[".nv.constant4"]

    def address(self, name: str) -> int | None:
        found = self._known.get(name)
        memory = self._sections.get(found.section) if found else None
        return ctypes.addressof(memory) + found.offset if found and memory else None

    def regions(self) -> list[Region]:
        """Its memory: each variable, and the constants, which nothing may write."""
        found = []
        for name, variable in self._known.items():
            start = self.address(name)
            if start is not None and variable.section in (".nv.global", ".nv.global.init") and variable.size:
                found.append(Region(start, start + variable.size, f"variable '{name}'"))
        constants = ctypes.addressof(self.constants)
        return [
            *found,
            Region(constants, constants + len(self.constants), "constant memory", writable=False, constant=True),
        ]

    def constant(self, name: str) -> tuple[int, int] | None:
        """The address and the size of a __constant__ variable."""
        found, address = self._known.get(name), self.address(name)
        return (address, found.size) if found and address and found.section == ".nv.constant3" else None


def run(
    of: Program,
    config: LaunchConfig,
    variables: Variables,
    parameters: Sequence[Bytes],
    *,
    room: int,
    seconds: float,
    timed: bool = False,
    regions: Sequence[Region] | None = None,
    judging: Judging = judged.NOTHING,
) -> None:
    """Runs the whole grid; the parameters' sizes are those of `of.memory`. With `regions`
    it may touch them alone, and the module's variables."""
    inside = [*regions, *variables.regions()] if regions is not None else []
    first = aligned(bytes(max(of.memory.constants, of.memory.start)))
    for (offset, _), value in zip(of.memory.parameters, parameters, strict=True):
        struct.pack_into(f"{len(value)}s", first, of.memory.start + offset, value.raw)
    banks = {0: first, 2: aligned(of.memory.table), 3: variables.constants, 4: variables.pointers}
    launch = Launch(
        grid=config.grid,
        block=config.block,
        cluster=config.cluster or (1, 1, 1),
        shared_bytes=of.resources.static_shared + config.shared,
        local_bytes=of.local_bytes,
        cooperative=config.cooperative,
        parameters=of.memory.start,
        trace_room=room,
        timed=timed,
        seconds=seconds,
        regions=judged.packed(inside),
        region_count=len(inside),
        races=judging.races,
        unwritten=judging.unwritten,
        order=judging.order,
        seed=judging.seed & 0xFFFFFFFF,
        poison=judging.poison,
    )
    for number, data in banks.items():
        launch.bank[number], launch.bank_bytes[number] = ctypes.addressof(data), len(data)
    said = ctypes.create_string_buffer(_TEXT)
    if library().rung_machine_run(of.handle, ctypes.byref(launch), said, _TEXT):
        at, _, text = said.value.decode(errors="replace").partition(" ")
        record = judged.Record()
        library().rung_machine_fault(ctypes.byref(record))
        if record.kind:
            sentences = judged.Sentences(of.line, config.block, of.shared, launch.shared_bytes, inside)
            raise sentences.fault(of.origin, of.kernel, int(at), record, text)
        kind: FaultKind = next((kind for words, kind in _FAULTS.items() if words in text), "bounds")
        raise EmulatorFault(kind, f"{of.place(int(at))}: {text}.")


def clocks() -> tuple[int, int]:
    """Of the longest block of the last launch, and of all its blocks together."""
    both = (ctypes.c_uint64 * 2)()
    library().rung_machine_clocks(both)
    return both[0], both[1]


def aligned(data: bytes, alignment: int = 512) -> Bytes:
    """The bytes at a multiple of `alignment`."""
    memory = bytearray(len(data) + alignment)
    start = -ctypes.addressof(ctypes.c_char.from_buffer(memory)) % alignment
    memory[start : start + len(data)] = data
    return (ctypes.c_char * len(data)).from_buffer(memory, start)
