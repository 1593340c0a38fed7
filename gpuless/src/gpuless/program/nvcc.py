"""Compiles with nvcc's options, for programs that run their kernels on the emulator."""

from __future__ import annotations

import shlex
import tempfile
from collections.abc import Callable
from dataclasses import dataclass, field, replace
from pathlib import Path

from gpuless.base.errors import UserError
from gpuless.program import executable


def _set(words: str) -> frozenset[str]:
    return frozenset(words.split())


_IGNORED = _set("""
    -G -lineinfo --generate-line-info --expt-relaxed-constexpr --expt-extended-lambda --extended-lambda
    -rdc=false -restrict -m64 --relocatable-device-code=false -forward-unknown-to-host-compiler -w -v --verbose -pg
    -dlink -Wno-deprecated-gpu-targets --source-in-ptx -res-usage --resource-usage --threads=0 -t0 -MP""")
_IGNORED_WITH_VALUE = _set("""
    -arch --gpu-architecture -code --gpu-code -gencode --generate-code -ccbin --compiler-bindir
    -Xptxas --ptxas-options -diag-suppress --diag-suppress -t --threads -Xcudafe -Xnvlink -cudart --cudart -rdc
    --relocatable-device-code -MT -MQ""")
_VALUED = _set("-o -I -isystem -D -U -l -L -std -x -Xcompiler -Xlinker -MF -include")
_WITH_VALUE = _set("maxrregcount fmad ftz prec-div prec-sqrt")
_OF_KERNELS = {"use_fast_math"} | _WITH_VALUE  # NVRTC takes them
_REFUSED = {"-ptx": "PTX", "-cubin": "cubins", "-fatbin": "fat binaries", "-shared": "libraries"}
_REFUSED |= {"--ptx": "PTX", "--cubin": "cubins"}
_LONG = {"--output-file": "-o", "--compile": "-c", "--include-path": "-I", "--define-macro": "-D", "--library": "-l"}
_LONG |= {"--library-path": "-L", "--std": "-std", "--compiler-options": "-Xcompiler", "--linker-options": "-Xlinker"}
_SOURCES = (".cu", ".cpp", ".cc", ".cxx", ".c")
_HELP = """usage: rung cc [nvcc's options] FILE...

Compiles CUDA C++ with nvcc's usual options (-c -o -I -D -std -O -g -l -L -Xcompiler -x cu -MD -MF ...) into objects and
programs that run their kernels' machine code on rung's emulator. A program reads RUNG_ORDER (0 forward, 1 reverse, 2
shuffled), RUNG_SEED, RUNG_RACES (0 never, 1 where the work allows, 2 always), RUNG_GPU, RUNG_QUIET and RUNG_REPORT (a
JSON file).
"""


@dataclass
class _Asked:
    compile_only: bool = False
    output: Path | None = None
    inputs: list[Path] = field(default_factory=list)
    include: list[str] = field(default_factory=list)
    defines: list[str] = field(default_factory=list)
    standard: str = "c++17"
    optimize: str = "-O1"
    more: list[str] = field(default_factory=list)  # for g++, when it compiles
    kernels: list[str] = field(default_factory=list)  # ... for NVRTC
    relocatable: bool = False
    linked: list[str] = field(default_factory=list)  # ... when it links
    depends: Path | None = None
    any_is_cuda: bool = False


def cc(words: list[str], say: Callable[[str], None] = lambda _: None) -> int:
    """Compile, and link unless -c is given; `say` is told each step."""
    if not words or "--help" in words or "-h" in words:
        print(_HELP, end="")
        return 0
    if "--version" in words or "-V" in words:
        print("rung cc: an nvcc-like driver for rung's emulator\nCuda compilation tools, release 13.0, V13.0.88")
        return 0
    if words == ["--cmake"]:
        print(executable.HOST / "rung.cmake")
        return 0
    asked = _read(words)
    if not asked.inputs:
        raise UserError("rung cc: no input files.")
    more = (*asked.more, *(("-xcu",) if asked.any_is_cuda else ()))
    options = executable.Options(
        tuple(asked.include), tuple(asked.defines), asked.standard, asked.optimize, more=more,
        kernels=tuple(asked.kernels), relocatable=asked.relocatable,
    )  # fmt: skip
    sources = [path for path in asked.inputs if path.suffix in _SOURCES]
    say(executable.FIRST)
    executable.libraries()
    if asked.compile_only:
        if asked.output and len(sources) > 1:
            raise UserError("rung cc: -o names one file, and -c has several.")
        for source in sources:
            say(f"compiling {source}")
            _object(source, asked.output or Path(source.with_suffix(".o").name), options, asked.depends)
        return 0
    with tempfile.TemporaryDirectory(prefix="rung-cc-") as folder:
        objects = []
        for number, path in enumerate(asked.inputs):
            objects.append(Path(folder) / f"{number}.o" if path in sources else path)
            if path in sources:
                say(f"compiling {path}")
                _object(path, objects[-1], options, None)
        say(f"linking {asked.output or 'a.out'}")
        executable.link(objects, asked.output or Path("a.out"), asked.linked)
    return 0


def _object(source: Path, output: Path, options: executable.Options, depends: Path | None) -> None:
    if depends is not None:  # the user's own headers, too
        options = replace(options, more=(*options.more, "-MMD", "-MF", str(depends), "-MT", str(output)))
    executable.compile_file(source, output, options)


def _read(words: list[str]) -> _Asked:
    """nvcc's options; `@FILE` and `--options-file FILE` hold more of them."""
    asked, rest = _Asked(), list(words)
    while rest:
        word = rest.pop(0)
        if word in ("--options-file", "-optf") and rest:
            rest = [*shlex.split(Path(rest.pop(0)).read_text()), *rest]
            continue
        name, joined, value = (
            word.partition("=") if word.startswith("-") and not word.startswith("-D") else (word, "", "")
        )
        if word in ("-rdc=true", "--relocatable-device-code=true", "-dc", "--device-c"):
            asked.relocatable = True
            asked.compile_only |= word[-1] == "c"
            continue
        if name.lstrip("-") in _OF_KERNELS:
            value = value or (rest.pop(0) if name.lstrip("-") in _WITH_VALUE and rest else "")
            asked.kernels.append(f"--{name.lstrip('-')}" + (f"={value}" if value else ""))
            continue
        if name in _IGNORED_WITH_VALUE:
            _ = value if joined else rest.pop(0) if rest else ""
            continue
        if word in _IGNORED or word.startswith(("-W", "-arch", "-gencode", "--diag")):
            continue
        if name in _REFUSED:
            raise UserError(f"rung cc: {name} is refused: the emulator runs programs, and makes no {_REFUSED[name]}.")
        if name in _LONG:
            word = _LONG[name]
            rest = [value, *rest] if joined else rest
        if word == "-c":
            asked.compile_only = True
        elif word in _VALUED:
            if not rest:
                raise UserError(f"rung cc: {word} has no value.")
            _take(asked, word, rest.pop(0))
        elif word in ("-MD", "-MMD"):
            continue
        elif word.startswith("-std="):
            asked.standard = word[5:]
        elif word.startswith(("-I", "-D", "-U", "-l", "-L")):
            _take(asked, word[:2], word[2:])
        elif word.startswith("-Xcompiler="):
            _take(asked, "-Xcompiler", word[11:])
        elif word.startswith("-O"):
            asked.optimize = "-O1" if word in ("-O0", "-O") else "-O2" if word in ("-O2", "-O3") else "-O1"
        elif word.startswith("-g"):
            continue
        elif word.startswith("-"):
            asked.more.append(word)
            asked.linked.append(word)
        else:
            asked.inputs.append(Path(word))
    return asked


def _take(asked: _Asked, word: str, value: str) -> None:
    if word == "-o":
        asked.output = Path(value)
    elif word in ("-I", "-isystem"):
        if not Path(value).resolve().is_relative_to(executable.HOST):  # those are for plain C++
            asked.include.append(value)
    elif word == "-D":
        asked.defines.append(value)
    elif word == "-U":
        asked.more.append(f"-U{value}")
    elif word == "-std":
        asked.standard = value
    elif word == "-x":
        asked.any_is_cuda |= value == "cu"
    elif word == "-MF":
        asked.depends = Path(value)
    elif word == "-include":
        asked.more += ["-include", value]
    elif word == "-L":
        asked.linked.append(f"-L{value}")
    elif word == "-l":
        if value not in ("cudart", "cudart_static", "cuda", "cudadevrt", "cublas", "cublasLt", "curand"):
            asked.linked.append(f"-l{value}")
    else:
        asked.linked += value.split(",")
        if word == "-Xcompiler":
            asked.more += [part for part in value.split(",") if not part.startswith("-W")]
