"""Turns a kernel's source into a shared library."""

from __future__ import annotations

import functools
import json
import re
from dataclasses import dataclass
from pathlib import Path

from rung.cuda import kept
from rung.cuda.cubin_cache import includes_of
from rung.cuda.elf import SharedSymbol, shared_symbols
from rung.cuda.headers import STANDARD
from rung.cuda.launch import Build
from rung.cuda.limits import limits
from rung.cuda.source import kernel_parameters, kernels_in
from rung.emulator import branches, inline_ptx, toolchain
from rung.errors import CompileError, EmulatorFault, RungError

LIMITS = limits("sm_90")
_CANARY = 256
# Array indices, in shared memory too, and the alignment of vectors are checked at each access in the source.
_CHECKS = ("-fsanitize=bounds,alignment", "-fno-sanitize-recover=all")
# A reference may name the element after the last, and the last array of a struct may have any length: the sanitizer
# accepts both, so a subscript operator first indexes a checked array of the same length.
_SUBSCRIPT = re.compile(r"(operator\[\]\(\w+ (\w+)\)(?: const)? *\{) *(return (\w+)\[\2\];)")
_CHECKED = r"\1 constexpr bool inside[sizeof(\4) / sizeof(*\4)] = {}; if (inside[\2]) __builtin_trap(); \3"
# GCC fuses only with its expensive optimisations, and only for a processor that has the instructions.
_FUSED = ("-ffp-contract=fast", "-fexpensive-optimizations")
# Every access is reported to the runtime, which looks for races in shared memory.
# The sanitizer leaves out what a call that is not inlined reads for arguments that are aggregates.
_INLINED = (
    *("-DRUNG_INLINED=1", "-finline-functions", "-finline-small-functions", "-finline-limit=100000"),
    *(f"--param={name}=100000" for name in ("large-function-growth", "inline-unit-growth", "early-inlining-insns")),
    *(f"--param=max-inline-insns-{name}=10000" for name in ("auto", "single")),
)
_RACES = ("-fsanitize=thread", *_INLINED)
# g++ guards a thread-local array of a class with constructors by a flag, though nothing is to be constructed: reads of
# the flag must not count as races. From g++ 10 on `constinit` removes it, except for classes whose constructor is empty
# and not constexpr.
_UNGUARDED = (re.compile(r"\b__shared__\b"), "__constinit __shared__")
# A source that uses these is compiled with scopes.h for the race check.
_SCOPED = re.compile(r"\b(?:__threadfence_block|atomic\w+_block)\b")
_SCOPES = toolchain.HERE / "scopes.h"
# A local variable that is never set holds an arbitrary number, not what the previous thread left there. The number is
# far below zero, as an initial maximum may be; with the race check it is zero.
_SINCE = {(11,): ("--param", "tsan-instrument-func-entry-exit=0"), (12,): ("-ftrivial-auto-var-init=pattern",)}
_SINCE_RACES = {(11,): ("--param", "tsan-distinguish-volatile=1"), (12,): ("-ftrivial-auto-var-init=zero",)}
# Macros that select parts of a source before the emulator's headers have been read.
_EXPANDED = (
    *("-DRUNG_EMULATOR=1", "-D__CUDACC__=1", "-D__CUDA_ARCH__=900"),
    *("-D__CUDACC_VER_MAJOR__=13", "-D__CUDACC_VER_MINOR__=0", "-Wno-builtin-macro-redefined"),
)
_NOT_MODELLED = {
    "cuda/": "libcu++",
    "cub/": "this part of CUB",
    "thrust/": "Thrust",
    "cute/": "CuTe",
    "cutlass/": "CUTLASS",
    "cuda_fp8": "8-bit floats",
    "curand": "cuRAND",
}


@dataclass(frozen=True)
class Translation:
    """A compiled source: its path, and the bytes of `__shared__` variables that each kernel declares."""

    library: Path
    static_shared: dict[str, int]


@dataclass(frozen=True)
class Variant:
    """How a source is compiled: plain, or as one or more of these."""

    races: bool = False  # each access is reported to the runtime
    coverage: bool = False  # branches and loop iterations are counted
    fused: bool = False  # products and sums become fused multiply-adds


@functools.cache
def _own_text() -> str:
    """What is compiled also depends on this file: libraries that an earlier version made are not used."""
    return Path(__file__).read_text(encoding="utf-8")


def translate(build: Build, variant: Variant = Variant()) -> Translation:
    """Compiles `build` with g++, or takes it from the cache."""
    toolchain.require()
    for kernel in build.kernels:
        kernel_parameters(build.source, kernel, build.origin)  # names the kernels that exist
    races, coverage = variant.races, variant.coverage
    flags = _flags(variant)
    found = sorted(includes_of(build))
    includes = [(Path(path).name, text) for path, text in found]
    # Counters hold paths of files, so the key does too.
    places = [str(path) for path, _ in found]
    counters = (branches.COUNTERS.read_text(), Path(branches.__file__).read_text(), places) if coverage else ()
    changed = (_UNGUARDED[1], *_scopes("".join((_unit(build), *(text for _, text in found))))) if races else ()
    own = (_unit(build), build.kernels, flags, includes)
    key = toolchain.key(*own, LIMITS.shared_block, _own_text(), *counters, *changed)
    make = functools.partial(_compile, build, flags, variant)
    cached = kept.kept("emulator", key, make)
    if not isinstance(cached.note, dict):  # a damaged entry
        cached = kept.kept("emulator", key, make, anew=True)
    return Translation(cached.path, cached.note)


def _flags(variant: Variant) -> tuple[str, ...]:
    # With -Og a large kernel compiles in two thirds of the time, but the lines in messages are less exact.
    optimized = "-Og" if variant.coverage and not variant.races else "-O1"
    version = toolchain.compiler_version() or ()
    since = [_SINCE, _SINCE_RACES] if variant.races else [_SINCE]
    newer = [flag for some in since for at, flags in some.items() if version >= at for flag in flags]
    chosen = (*(_RACES if variant.races else ()), *(_FUSED if variant.fused else ()))
    return (*toolchain.COMMON, *toolchain.machine_flags(), *newer, *_CHECKS, *chosen, optimized, "-g1")


def _folders(build: Build) -> tuple[str, ...]:
    own = (*build.include, str(Path(build.origin).absolute().parent))
    return (*own, str(toolchain.INCLUDE), str(STANDARD))


def _macros(build: Build) -> str:
    """Defined after the emulator's headers, whose own names they must not change."""
    given = list(build.defines)
    given += [(name, value or "1") for name, _, value in (o[2:].partition("=") for o in build.options if o[:2] == "-D")]
    if any("use_fast_math" in option for option in build.options):
        given.append(("__USE_FAST_MATH__", "1"))
    lines = [f"#define {name} {value}\n" for name, value in given]
    if any(name == "NDEBUG" for name, _ in given):
        lines.append("#undef assert\n#define assert(condition) ((void)0)\n")
    return "".join(lines)


def _compile(build: Build, flags: tuple[str, ...], variant: Variant, work: Path) -> tuple[Path, dict[str, int]]:
    (work / "source.cpp").write_text(_unit(build))
    folders = [f"-I{folder}" for folder in _folders(build)]
    expand = ["-E", "-std=c++17", "-nostdinc", "-nostdinc++", *_EXPANDED, f"-I{toolchain.stand_ins()}", *folders]
    expanded = toolchain.run([*expand, "source.cpp", "-o", "expanded.cpp"], work)
    if expanded.returncode:
        raise _compile_error(build, expanded.stderr)
    try:
        text = inline_ptx.without_asm((work / "expanded.cpp").read_text())
        text = _SUBSCRIPT.sub(_CHECKED, text)
        text = branches.counted(text) if variant.coverage else text
        if variant.races:
            text = "".join((*_scopes(text), text))
    except inline_ptx.NotUnderstood as problem:
        raise EmulatorFault("unsupported", f"{build.origin}: {problem}.") from None
    command = [*flags, f"-ffile-prefix-map={work}=.", "-include", str(toolchain.headers(flags)), "-c", "kernel.cpp"]
    texts, alignment = [text], _alignment(text)
    if variant.races and (toolchain.compiler_version() or ()) >= (10,):
        texts.insert(0, _UNGUARDED[0].sub(_UNGUARDED[1], text))
    for text in texts:
        (work / "kernel.cpp").write_text(text)
        result = toolchain.run([*command, "-o", "kernel.o"], work)
        if "constinit" not in result.stderr:
            break
    if result.returncode:
        raise _compile_error(build, result.stderr)
    symbols = shared_symbols(work / "kernel.o")
    (work / "shared.s").write_text(_dynamic_shared([s.name for s in symbols if s.declared], alignment))
    linked = toolchain.run(["-shared", "-Wl,-z,lazy", "kernel.o", "shared.s", "-o", "kernel.so", "-lm"], work)
    if linked.returncode:
        raise RungError(f"{build.origin} does not link: {linked.stderr.strip()[:400]}")
    return work / "kernel.so", {kernel: _static_bytes(kernel, build, symbols) for kernel in build.kernels}


def _scopes(text: str) -> tuple[str, ...]:
    """The header that reports scopes to the race detector, for a source that uses them."""
    return (f'#line 1 "{_SCOPES.name}"\n{_SCOPES.read_text()}',) if _SCOPED.search(text) else ()


def _unit(build: Build) -> str:
    # g++ requires alignas before a storage class, CUDA accepts it after.
    source = re.sub(r"(__shared__)(\s+)(alignas\s*\([^()\n]*(?:\([^()\n]*\)[^()\n]*)*\))", r"\3\2\1", build.source)
    entries = "".join(f"RUNG_ENTRY({i}, {kernel})\n" for i, kernel in enumerate(build.kernels))
    origin = json.dumps(build.origin)
    return f'{_macros(build)}#line 1 {origin}\n{source}\n#line 1 "entries"\n{entries}'


def _alignment(source: str) -> int:
    """The alignment that the source requests for `extern __shared__` arrays; None if it cannot be read here."""
    alignments = re.findall(r"extern\s+__shared__[^;{]*?(?:__align__|alignas|aligned)\s*\(+\s*(\d+)", source)
    return max([16, *map(int, alignments)])


def _dynamic_shared(names: list[str], alignment: int) -> str:
    """All `extern __shared__` arrays are one memory, which follows the static ones.

    It begins at a multiple of the requested alignment, and of no more than 128, so that code that relies on more fails.
    """
    renamed = [name for name in dict.fromkeys(names) if name != "rung_dynamic_shared"]
    size = LIMITS.shared_block + _CANARY if renamed else 0
    names = [*renamed, "rung_dynamic_shared"]
    labels = "".join(f".globl {name}\n.hidden {name}\n.type {name}, STT_OBJECT\n{name}:\n" for name in names)
    skipped = 128 if alignment <= 128 else 0
    return (
        f'.section .tbss.zz_dynamic,"awT",@nobits\n.balign {max(1024, alignment)}\n.zero {skipped}\n'
        f'{labels}.zero {size}\n.section .note.GNU-stack,"",@progbits\n'
    )


def _static_bytes(kernel: str, build: Build, symbols: tuple[SharedSymbol, ...]) -> int:
    """A kernel's own variables (`_ZZ6kernelE4tile`), and those of functions that any kernel may call."""

    def mark(name: str) -> str:
        plain = name.partition("<")[0].strip().rpartition("::")[2]
        return f"{len(plain)}{plain}"

    others = [mark(k) for k in kernels_in(build.source) if mark(k) != mark(kernel)]
    own = [s for s in symbols if not s.declared and not any(_within(s.name, other) for other in others)]
    return sum(s.size for s in own)


def _within(symbol: str, mark: str) -> bool:
    return re.match(rf"_ZZN?(?:\d+\w*?)?{re.escape(mark)}[EIvP]", symbol) is not None


def _compile_error(build: Build, log: str) -> RungError:
    missing = re.search(r"fatal error: (\S+): No such file", log)
    if missing:
        name = missing.group(1)
        for prefix, library in _NOT_MODELLED.items():
            if name.startswith(prefix):
                return EmulatorFault(
                    "unsupported",
                    f"{build.origin} includes {name}: the emulator does not model {library}; "
                    'set emulate = "why not" in the header.',
                )
    errors = [line for line in log.splitlines() if re.search(r"\b(?:fatal )?error:", line)]
    shown = "\n  ".join(errors[:5] or log.splitlines()[:5])
    more = f"\n  ... and {len(errors) - 5} more" if len(errors) > 5 else ""
    return CompileError(f"{build.origin} does not compile for the emulator:\n  {shown}{more}")
