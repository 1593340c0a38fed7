"""Counts of a whole CUDA program: its host part runs as on the emulator, and each launch executes the machine code that
NVRTC makes of the kernel (host/counting.cpp)."""

from __future__ import annotations

import re
from collections import defaultdict
from collections.abc import Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path

from rung.cuda import elf, nvrtc, sass
from rung.cuda.cubin_cache import Cubin
from rung.cuda.launch import LaunchConfig
from rung.emulator import counters, executable, gpu, machine
from rung.errors import RungError

_CONSTANTS, _ZEROS = ".nv.constant3", ".nv.global"
_WITH_VALUES = (_CONSTANTS, ".nv.global.init")


@dataclass
class Kernels:
    """A program's kernels by their numbers; None for one whose machine code is not executed here."""

    listed: Path
    programs: list[machine.Program | None] = field(default_factory=list)

    @property
    def counts(self) -> Path:
        return self.listed.with_suffix(".counts")

    def environment(self) -> dict[str, str]:
        """What host/counting.cpp reads."""
        return {
            "RUNG_COUNTED": str(self.listed),
            "RUNG_COUNTS": str(self.counts),
            "RUNG_MACHINE": str(machine.compiled()),
        }


def prepared(sources: Sequence[Path], objects: Sequence[Path], program: Path, options: executable.Options) -> Kernels:
    """Compiles the kernels, and writes what the program's process reads of them."""
    if missing := machine.unavailable():
        raise RungError(missing)
    kernels = Kernels(program.with_name(f"{program.name}.machine"))
    lines: list[str] = []
    for source, cubin, symbols in gpu.compiled(sources, objects, program, options, machine.ARCH, emulated=True):
        lines += _module(cubin, symbols, program.with_name(f"{source.name}.{len(lines)}"))
        own = [s for s in symbols if s.kind == "kernel"]
        expressions = [s.expression for s in own]
        named = {s.expression if expressions.count(s.expression) == 1 else s.name: s for s in own}
        lowered = {name: s.name for name, s in named.items()}
        resources = {name: nvrtc.ptxas_resources(cubin.log, s.name) for name, s in named.items()}
        of = replace(cubin, lowered=lowered, resources=resources)
        instructions = sass.instructions_of(of)
        for name, symbol in named.items():
            number, text = len(kernels.programs), program.with_name(f"{program.name}.kernel{len(kernels.programs)}")
            lines.append(f"kernel {int(symbol.address, 16)} {int(symbol.size, 16)} {number}")
            try:
                kernel = machine.Program(of, instructions[name], name, str(source))
            except RungError as problem:
                kernels.programs.append(None)
                why = re.sub(r"^.*?', line (\d+)", rf", {source}:\1", str(problem)).rstrip(".")
                lines.append(f"0 0 0 0 0\n{why}\n{text}")
                continue
            kernels.programs.append(kernel)
            text.write_text(kernel.text + "\n")
            places = (re.sub(r".*line ", f"{source}:", kernel.place(n)) for n in range(len(kernel.instructions)))
            text.with_name(f"{text.name}.lines").write_text("\n".join(places) + "\n")
            text.with_name(f"{text.name}.table").write_bytes(kernel.memory.table)
            memory, parameters = kernel.memory, kernel.memory.parameters
            lines.append(f"{memory.start} {memory.constants} {kernel.resources.static_shared} {kernel.local_bytes}")
            lines.append(" ".join(map(str, (len(parameters), *(word for one in parameters for word in one)))))
            lines.append(f"-\n{text}")
    kernels.listed.write_text("\n".join(lines) + "\n")
    return kernels


def _module(cubin: Cubin, symbols: Sequence[gpu.Symbol], path: Path) -> list[str]:
    """The constants and variables of a cubin; those that the program has lie there."""
    memory = elf.module_memory(cubin.path.read_bytes())
    own = {s.name: int(s.address, 16) for s in symbols if s.kind == "variable"}
    lines = ["module"]
    numbers: dict[str, int] = {}
    for name, data in memory.sections.items():
        numbers[name] = len(numbers)
        used = [v.offset + v.size for n, v in memory.variables.items() if v.section == name and n not in own]
        size = max(used, default=0) if name == _ZEROS else len(data)
        path.with_name(f"{path.name}{name}").write_bytes(data[:size])
        lines.append(f"section {path}{name}")
    for section, offset, name, added in memory.placed:
        to, found = f"place {numbers[section]} {offset}", memory.variables.get(name)
        if name in machine.DRIVER:
            lines.append(f"{to} absolute {machine.DRIVER[name]}")
        elif name in own:
            lines.append(f"{to} program {own[name] + added}")
        elif found and found.section in numbers:
            lines.append(f"{to} section {found.offset + added} {numbers[found.section]}")
    for name, address in own.items():
        found = memory.variables.get(name)
        if found and found.section in _WITH_VALUES:
            lines.append(f"initial {numbers[found.section]} {found.offset} {found.size} {address}")
        if found and found.section == _CONSTANTS:
            lines.append(f"constant {found.offset} {found.size} {address}")
    return lines


@dataclass
class _Sum:
    program: machine.Program
    config: LaunchConfig
    launches: int
    tally: dict[int, tuple[int, int]] = field(default_factory=lambda: defaultdict(lambda: (0, 0)))
    requests: list[tuple[list[int], list[int]]] = field(default_factory=list)


def counted(kernels: Kernels) -> list[counters.Launched]:
    """What the program's launches counted, those of one kernel with one grid summed."""
    sums: list[_Sum] = []
    for line in kernels.counts.read_text().splitlines() if kernels.counts.is_file() else ():
        kind, *words = line.split()
        numbers = [int(word) for word in words]
        if kind == "launch":
            launches, number, *sizes = numbers
            (gx, gy, gz, bx, by, bz, cx, cy, cz), shared, cooperative = sizes[:9], sizes[9], bool(sizes[10])
            cluster = (cx, cy, cz) if cx * cy * cz > 1 else None
            program = kernels.programs[number]
            assert program is not None
            sums.append(_Sum(program, LaunchConfig((gx, gy, gz), (bx, by, bz), shared, cooperative, cluster), launches))
        elif kind == "tally":
            sums[-1].tally[numbers[0]] = (numbers[1], numbers[2])
        else:
            sums[-1].requests.append((numbers[: machine.FIGURES], numbers[machine.FIGURES :]))
    return [
        replace(
            counters.counted(s.program, s.config, [s.tally[n] for n in range(len(s.program.instructions))], s.requests),
            launches=s.launches,
        )
        for s in sums
    ]
