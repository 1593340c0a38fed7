"""The instructions of a kernel's machine code, if a disassembler is available.

`nvdisasm` comes with CUDA toolkits and with a package of NVIDIA's. Counts here are static: how often an instruction
occurs in the code, not how often it runs.
"""

from __future__ import annotations

import functools
import hashlib
import importlib.util
import json
import os
import re
import shutil
import subprocess
from collections import Counter
from collections.abc import Callable, Container, Iterable, Mapping
from dataclasses import dataclass
from pathlib import Path

from gpuless.base import disk_cache
from gpuless.base.errors import UserError, first_line
from gpuless.compile import elf
from gpuless.compile.cubin_cache import Cubin
from gpuless.facts import opcodes

Stack = tuple[tuple[str, int], ...]  # files and lines, the innermost first

ABSENT = "No disassembler was found: pip install nvidia-cuda-nvdisasm."
_SECTION = re.compile(r"^\.text\.(\S+):$")
_PLACE = re.compile(r'//## File "([^"]*)", line (\d+)')
_LABEL = re.compile(r"^(\.L_\w+):")
_NAME = re.compile(r"^([.$\w]+):$")
_TARGET = re.compile(r"`\(([^()]+)\)")
_ADDRESS = re.compile(r"32@(lo|hi)\(+([^()\s]+)(?: \+ ([^()@]+)@srel)?\)+")  # of code, or of a variable
VARIABLE = re.compile(r"32@(lo|hi)\(+([^()\s]+)(?: \+ (0x[0-9a-f]+))?\)+")  # half of its address, which is not code's
_COMMENT = re.compile(r"\(\*.*?\*\)")
_INSTRUCTION = re.compile(
    r"/\*(?P<address>[0-9a-f]{4,})\*/\s+\{?\s*(?P<text>(?:@!?U?PT?\d?\s+)?(?P<opcode>[A-Z][A-Za-z0-9_.]*)[^;]*)"
)


@functools.cache
def disassembler() -> Path | None:
    """nvdisasm from PATH, a toolkit, NVIDIA's package, or Triton."""
    candidates = [shutil.which("nvdisasm")]
    for root in (os.environ.get("CUDA_HOME"), os.environ.get("CUDA_PATH"), "/usr/local/cuda"):
        candidates.append(str(Path(root) / "bin" / "nvdisasm") if root else None)
    for folder in getattr(importlib.util.find_spec("nvidia"), "submodule_search_locations", None) or ():
        candidates += map(str, sorted(Path(folder).glob("*/bin/nvdisasm")))
    triton = importlib.util.find_spec("triton")
    if triton and triton.origin:
        candidates.append(str(Path(triton.origin).parent / "backends" / "nvidia" / "bin" / "nvdisasm"))
    return next((Path(c) for c in candidates if c and os.access(c, os.X_OK)), None)


def instruction_mix(cubin: Cubin) -> dict[str, dict[str, int]]:
    """For each kernel its instructions by class, with "LDG.128" and the like counted again, and "total"."""
    by_symbol = mix_of_file(cubin.path)
    return {kernel: by_symbol.get(symbol, {}) for kernel, symbol in cubin.lowered.items()}


@functools.lru_cache(maxsize=256)
def mix_of_file(path: Path) -> dict[str, dict[str, int]]:
    """The same for every function of a cubin file, by symbol."""
    return count(_listing(path))


def _listing(path: Path, *options: str) -> str:
    tool = disassembler()
    if tool is None:
        raise UserError(ABSENT)
    done = subprocess.run([tool, "-c", *options, path], capture_output=True, text=True, timeout=120, check=False)
    if done.returncode:
        reason = first_line(done.stderr or "no reason given")
        raise UserError(f"{tool} cannot read {path.name} ({reason}): a newer CUDA toolkit's nvdisasm may.")
    return done.stdout


@dataclass(frozen=True)
class Instruction:
    """One instruction of a kernel, and the lines that it comes from: the innermost first, then its callers'.

    `text` begins with its predicate, if it has one; it has addresses where nvdisasm prints labels of code, and keeps
    the names of variables.
    """

    address: int  # as elf.Code counts
    text: str
    lines: Stack
    words: tuple[int, int] = (0, 0)

    @functools.cached_property
    def opcode(self) -> str:
        words = self.text.split(" ", 2)
        return words[words[0].startswith("@")]

    @functools.cached_property
    def name(self) -> str:
        return self.opcode.partition(".")[0]

    @property
    def atomic(self) -> bool:
        """Whether it reads and writes memory at once."""
        found = opcodes.row(self.name)
        return found is not None and found.way == "atomic"


def instructions_of(cubin: Cubin) -> dict[str, list[Instruction]]:
    """The instructions of each kernel, with those of the functions that it may call behind them; the code must be
    compiled with line information for their lines. Kept in the cache, since nvdisasm takes a second. Of a large file
    the kernels that are asked for are read alone."""
    data = cubin.path.read_bytes()
    code = elf.code(data)
    asked = sorted(cubin.lowered.values()) if code.is_large() else []
    only = ["-fun", ",".join(map(str, elf.numbers_of(data, {*asked, *code.starts})))] if asked else []

    def make(work: Path) -> tuple[Path, None]:
        listing = _listing(cubin.path, "-gi", "-ndf", *only)
        (work / "code.json").write_text(json.dumps(_functions(listing, code.starts, code.taken, elf.meetings(data))))
        return work / "code.json", None

    makers = Path(__file__).read_bytes() + Path(elf.__file__).read_bytes()
    digest = hashlib.sha256(data + makers + " ".join(only).encode()).hexdigest()[:32]
    stacks, functions = json.loads(disk_cache.kept("sass", digest, make).path.read_text())
    lines = [tuple((file, line) for file, line in stack) for stack in stacks]
    return {
        kernel: [
            Instruction(address, text, lines[stack], code.at(symbol, address))
            for address, text, stack in functions.get(symbol, [])
        ]
        for kernel, symbol in cubin.lowered.items()
    }


def _functions(
    listing: str, starts: Mapping[str, int], taken: Iterable[str], meetings: Mapping[str, Container[int]]
) -> tuple[list[Stack], dict[str, list[tuple[int, str, int]]]]:
    """The different stacks of lines, and each kernel's instructions: address, text, number of the stack. Behind them
    stand the functions in sections of their own that it names, and those `taken`, whose addresses lie in memory. Of a
    __syncwarp ptxas leaves a NOP, here NOP.SYNC; others order nothing (one behind an HMMA is there for its latency)."""
    functions: dict[str, list[tuple[int, str, int]]] = {}
    stacks: dict[Stack, int] = {}
    labels: dict[tuple[int, str], int] = {}  # of a section: another one may have the same names
    section: list[tuple[int, str, int]] = []
    name, start, lines = "", 0, ()  # type: str, int, Stack
    waiting: list[str] = []  # labels of the next instruction
    fresh = True  # the next line comment begins a new stack
    for raw in listing.splitlines():
        text = raw.strip()
        if text.startswith("/*"):
            if found := _INSTRUCTION.match(text):
                address = start + int(found["address"], 16)
                labels |= dict.fromkeys(((len(functions), name) for name in waiting), address)
                waiting.clear()
                fresh = True
                words = " ".join((_COMMENT.sub("", found["text"]) if "(*" in found["text"] else found["text"]).split())
                if words.endswith("NOP") and (name not in meetings or address - start in meetings[name]):
                    words += ".SYNC"
                section.append((address, words, stacks.setdefault(lines, len(stacks))))
        elif place := _PLACE.match(text):
            lines, fresh = (*(() if fresh else lines), (place.group(1), int(place.group(2)))), False
        elif begins := _SECTION.match(text):
            name = begins.group(1)
            section, lines, start = functions.setdefault(name, []), (), starts.get(name, 0)
        elif named := _NAME.match(text):
            waiting.append(named.group(1))
            lines = () if named.group(1).startswith("$") else lines  # a function, which may have none

    named_by: dict[str, set[str]] = {name: set() for name in functions}
    code = {}
    for number, (name, some) in enumerate(functions.items(), 1):

        def address_of(label: str, number: int = number, name: str = name) -> int | None:
            if label in starts:
                named_by[name].add(label)
            return labels.get((number, label), starts.get(label))

        code[name] = [(at, _placed(text, address_of), stack) for at, text, stack in some]

    def reached(kernel: str) -> list[str]:
        found = [kernel]
        for one in found:  # grows
            found += sorted((named_by[one] | {*taken}) - {*found})
        return found

    kernels = [name for name in functions if name not in starts]
    return [*stacks], {kernel: [i for one in reached(kernel) for i in code[one]] for kernel in kernels}


def _placed(text: str, address_of: Callable[[str], int | None]) -> str:
    """An instruction with addresses in place of the names of code."""

    def target(found: re.Match[str]) -> str:
        at = address_of(found[1])
        return found[1] if at is None else hex(at)

    def half(found: re.Match[str]) -> str:
        at = address_of(found[3] or found[2])
        return found[0] if at is None else hex(at & 0xFFFFFFFF if found[1] == "lo" else at >> 32)

    text = _TARGET.sub(target, text) if "`" in text else text
    return _ADDRESS.sub(half, text) if "32@" in text else text


def count(listing: str) -> dict[str, dict[str, int]]:
    """Instructions by class for each function of an nvdisasm listing."""
    functions: dict[str, Counter[str]] = {}
    current: Counter[str] = Counter()
    label = ""
    for line in listing.splitlines():
        text = line.strip()
        if section := _SECTION.match(text):
            current = functions.setdefault(section.group(1), Counter())
        elif named := _LABEL.match(text):
            label = named.group(1)
        elif found := _INSTRUCTION.search(text):
            opcode = found["opcode"]
            if opcode == "NOP" or (opcode == "BRA" and label and label in found["text"]):
                continue  # padding, and the endless loop after the code's end
            label = ""
            current.update(_counted(opcode))
    return {name: dict(counter) for name, counter in functions.items()}


def _counted(opcode: str) -> list[str]:
    found = opcodes.row(opcode.partition(".")[0])
    name = found.group if found and found.group else "other"
    width = next((w for w in ("128", "64") if f".{w}" in opcode), "")
    moves = found is not None and (found.width == "DATA" or found.way == "cp.async") and found.space != "constant"
    wide = [f"{name}.{width}"] if width and moves else []
    return ["total", name, *wide]
