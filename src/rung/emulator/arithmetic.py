"""Instructions of arithmetic that a launch executed: blocks of the emulated code, each as often as lanes and warps did.

One instruction of the CPU's code is one of the GPU's, except for functions: what nvcc makes of `expf` or of a division
is read from the machine code that NVRTC makes of that alone.
"""

from __future__ import annotations

import ctypes
import functools
import re
import subprocess
from collections import Counter
from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import NamedTuple

from rung.cuda import nvrtc, sass
from rung.cuda.launch import Build
from rung.emulator import native, translation
from rung.errors import RungError

OPCODES = {"FADD": "fadd", "FMUL": "fmul", "FFMA": "ffma", "MUFU": "mufu"}
OF_WARPS = ("mufu",)  # counted by warp, the others by lane: so are Nsight Compute's
_FUNCTION = re.compile(r"^[0-9a-f]+ <(\S+)>:")
_LINE = re.compile(r"^\s*([0-9a-f]+):\s+(\S+)\s*(.*)$")
_BLOCK = re.compile(r"<__sanitizer_cov_trace_pc\b")
_CALLED = re.compile(r"<(?:_Z\d+)?(\w+?)(?:f+)?(?:@plt)?>")
_SINGLE = re.compile(r"v?(?:(add|sub)|(mul)|(fn?m(?:add|sub)\d+)|(div)|(sqrt))ss$")
_INTEGER = re.compile(r"i?div[lq]?$")
_TWO = ("pow", "fmod", "atan2", "hypot", "fdividef", "__fdividef", "__powf", "__fdiv_rn")
# The emulator's headers of other formats, and of atomics.
_NO_ARITHMETIC = re.compile(r"/emulator/include/(?:.*/)?(?:\w*16\w*|mma|ptx\w*|memory)\.h$")
_MOST = 1 << 16


class Site(NamedTuple):
    """An instruction of the emulated code: its address, its block's, and what it is."""

    address: int
    block: int
    kind: str  # an opcode, or the name of a function


def sites(listing: str) -> list[Site]:
    """The arithmetic of a disassembled library, in blocks that are reported."""
    found: list[Site] = []
    block, begins, own = 0, False, True
    divided: set[str] = set()  # registers whose reciprocal the block has: nvcc keeps it
    for line in listing.splitlines():
        if named := _FUNCTION.match(line):
            block, begins = 0, False
            own = _function(named[1]) is None
            continue
        if not (parsed := _LINE.match(line)):
            continue
        address, name, rest = int(parsed[1], 16), parsed[2], parsed[3]
        if begins:
            block, begins = address, False
            divided.clear()
        if name.startswith("call"):
            if _BLOCK.search(rest):
                begins = True
            elif own and block and (function := _function(rest)):
                found.append(Site(address, block, function))
        elif own and block and (kind := _kind(name, rest)):
            if kind != "/" or rest not in divided:
                found.append(Site(address, block, kind))
            if kind == "/" and rest not in ("%eax", "%edx", "%rax", "%rdx"):
                divided.add(rest)
        if not _INTEGER.match(name):
            divided.discard(_divisor(rest.rpartition(",")[2]))
    return found


def _divisor(register: str) -> str:
    """A register by the name that a division of 32 bits has for it."""
    return re.sub(r"^%r(\d+)$", r"%r\1d", re.sub(r"^%r([a-z]\w)$", r"%e\1", register))


def _function(text: str) -> str | None:
    called = _CALLED.search(f"<{text}>" if "<" not in text else text)
    if called is None:
        return None
    name = called[1]
    return next((n for n in (name, f"{name}f") if n in _known()), None)


@functools.cache
def _known() -> frozenset[str]:
    plain = "exp exp2 exp10 expm1 log log2 log10 log1p cbrt sin cos tan sinh cosh tanh asin acos atan erf erfc pow fmod"
    own = "rsqrtf normcdff rcbrtf sinpif cospif fdividef __expf __exp10f __logf __log2f __log10f __powf __sinf __cosf"
    more = "__tanf __tanhf __fdividef __frsqrt_rn __fdiv_rn __frcp_rn __fsqrt_rn"
    return frozenset((*(f"{name}f" for name in plain.split()), "atan2f", "hypotf", *own.split(), *more.split()))


def _kind(name: str, rest: str) -> str | None:
    if _INTEGER.match(name):
        return "/"
    found = _SINGLE.match(name)
    if found is None:
        return None
    if found[4]:
        return "/ constant" if "(%rip)" in rest else "/ float"
    return "FADD" if found[1] else "FMUL" if found[2] else "FFMA" if found[3] else "sqrtf"


def blocks() -> tuple[dict[int, tuple[int, int]], dict[str, int]]:
    """How often lanes and warps executed each block in the launch that has just ended; its products of tensor cores."""
    rows, tensor = (ctypes.c_ulonglong * 3 * _MOST)(), (ctypes.c_ulonglong * 2)()
    count = min(native.runtime().rung_executed(rows, ctypes.byref(tensor), _MOST), _MOST)
    return {row[0]: (row[1], row[2]) for row in rows[:count]}, {"hmma": tensor[0], "gmma": tensor[1]}


def executed(
    count_of: Iterable[Site], by_block: Mapping[int, tuple[int, int]], build: Build
) -> dict[int, Counter[str]]:
    """By address, the instructions of the blocks that were executed so often."""
    found: dict[int, Counter[str]] = {}
    for site in count_of:
        lanes, warps = by_block.get(site.block, (0, 0))
        if lanes:
            made = {OPCODES[site.kind]: 1.0} if site.kind in OPCODES else _instructions(site.kind, build.options)
            found[site.address] = Counter({k: round(n * (warps if k in OF_WARPS else lanes)) for k, n in made.items()})
    return found


def none_in(file: str) -> bool:
    """Whether arithmetic of this file, a header of the emulator's, stands for other instructions."""
    return _NO_ARITHMETIC.search(file) is not None


@functools.cache
def _instructions(kind: str, options: tuple[str, ...]) -> dict[str, float]:
    """What nvcc makes of a function: the instructions on its way without a jump, of which those count half that a
    predicate may switch off for a lane."""
    number = "int" if kind == "/" else "float"
    divisions = {"/": "x[1] / x[2]", "/ float": "x[1] / x[2]", "/ constant": "x[1] / 768.0f"}
    two = kind in _TWO or kind.removesuffix("f") in _TWO
    term = divisions.get(kind) or (f"{kind}(x[1], x[2])" if two else f"{kind}(x[1])")
    source = f'extern "C" __global__ void f({number}* x) {{ x[0] = {term}; }}'
    fast = tuple(option for option in options if not option.startswith("-D"))
    build = Build(source, "arithmetic.cu", ("f",), (), fast)
    found: dict[str, float] = {}
    for instruction in sass.instructions_of(nvrtc.compile_cubin(build, "sm_90a"))["f"]:
        name = OPCODES.get(instruction.name)
        if instruction.name == "EXIT" and not instruction.predicated:
            break
        if name:
            found[name] = found.get(name, 0) + (0.5 if instruction.predicated and name not in OF_WARPS else 1)
    if kind == "expf" and "ffma" in found:
        found["fmul"] -= 1  # its last product, which the emulated code has itself (arithmetic.h)
    return found


@functools.cache
def unavailable() -> str:
    """Why arithmetic cannot be counted here; empty if it can."""
    try:
        _instructions("sqrtf", ())
    except RungError:
        return "NVRTC or nvdisasm is missing"
    source = 'extern "C" __global__ void f(float* x) { x[0] = x[1] * x[2] + x[3]; }'
    made = translation.translate(Build(source, "fused.cu", ("f",), (), ()), translation.Variant(counters=True))
    if "FFMA" not in {site.kind for site in sites(listing(made.library))}:
        return "g++ fuses no product with a sum here, as nvcc does (that takes a CPU with FMA)"
    return ""


@functools.lru_cache(maxsize=16)
def listing(library: Path) -> str:
    """The disassembled library."""
    return tool("objdump", "-d", "--no-show-raw-insn", str(library))


def tool(*command: str, words: str | None = None) -> str:
    """What one of binutils prints."""
    try:
        return subprocess.run(command, input=words, capture_output=True, text=True, check=True).stdout
    except (OSError, subprocess.CalledProcessError) as problem:
        raise RungError(f"Counting needs {command[0]}, which does not work ({problem}): install binutils.") from None
