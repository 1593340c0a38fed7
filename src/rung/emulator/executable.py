"""Compiles CUDA programs, host and device code, into executables that run their kernels on the emulator."""

from __future__ import annotations

import functools
import os
import re
import shutil
import subprocess
import tempfile
from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path

from rung.cuda import headers as headers_of_cuda
from rung.cuda import kept
from rung.cuda.elf import SharedSymbol, shared_symbols
from rung.emulator import inline_ptx, rewriting, toolchain
from rung.errors import CompileError, RungError

HOST = toolchain.HERE / "host"
CUDA_SUFFIXES = (".cu",)
_SHARED_BLOCK = 227 * 1024
_STATIC_SHARED = 48 * 1024
COMMON = (
    *("-fPIC", "-fvisibility=hidden", "-w", "-ffp-contract=off", "-fno-strict-aliasing", "-fwrapv"),
    *("-fno-delete-null-pointer-checks", "-fno-extern-tls-init", "-U_FORTIFY_SOURCE", "-fno-gnu-unique", "-pthread"),
)
_CHECKS = ("-fsanitize=bounds,alignment", "-fsanitize-recover=bounds,alignment")
_RACES = ("-fsanitize=thread", "--param", "tsan-instrument-func-entry-exit=0", "--param", "tsan-distinguish-volatile=1")
_ARCHITECTURE = (
    "-D__CUDACC__=1",
    "-D__CUDA_ARCH__=900",
    "-D__CUDACC_VER_MAJOR__=13",
    "-D__CUDACC_VER_MINOR__=0",
    "-DRUNG_CU=1",
)
_OF_THE_HEAP = ("malloc", "free", "_Znwm", "_Znam", "_ZdlPv", "_ZdaPv", "_ZdlPvm", "_ZdaPvm")  # host/module.cpp
_FUNCTION = re.compile(
    r"'((?:cuda|cu|cublas|curand|cufft|cusparse|cusolver|cudnn|nccl|nvml|nvtx|tex|surf|__)[A-Za-z]\w*)'"
)
_CCCL = re.compile(r"fatal error: (?:(?:thrust|cuda)/\S+|cuda_fp8\.h): No such file")
_FP8 = """#pragma once
#include <cuda_bf16.h>
#include <cuda_fp16.h>
#define __CUDA_FP16_H__
#define __CUDA_BF16_H__
#define __VECTOR_TYPES_H__
#define __NV_SILENCE_DEPRECATION_BEGIN
#define __NV_SILENCE_DEPRECATION_END
#include "rung_host/cccl_begin.h"
#include "{}"
#include "rung_host/cccl_end.h"
"""
_WAITING = re.compile(r"barrier|pipeline|latch|semaphore|mutex|thread|stream_ref|access_property|annotated_ptr")
_LIBRARIES = {
    "cub/": "CUB",
    "thrust/": "Thrust",
    "cuda/": "libcu++",
    "cute/": "CuTe",
    "cutlass/": "CUTLASS",
    "cudnn": "cuDNN",
    "cublas": "cuBLAS",
    "curand": "cuRAND",
    "cufft": "cuFFT",
    "cusparse": "cuSPARSE",
    "cusolver": "cuSOLVER",
    "nccl": "NCCL",
    "nvrtc": "NVRTC",
    "nvml": "NVML",
    "cuda_fp8": "8-bit floats",
    "helper_": "the CUDA samples' helper headers",
}


@dataclass(frozen=True)
class Options:
    """How a program's files are compiled."""

    include: tuple[str, ...] = ()
    defines: tuple[str, ...] = ()  # NAME or NAME=VALUE
    standard: str = "c++17"
    races: bool = True
    optimize: str = "-O1"
    debug: str = "-g1"
    more: tuple[str, ...] = field(default=())  # for g++ as they are
    stubs: bool = False  # for a GPU: kernels have no bodies here

    def flags(self) -> list[str]:
        """Macros and folders."""
        return [*(f"-I{folder}" for folder in self.include), *(f"-D{name}" for name in self.defines)]


@dataclass(frozen=True)
class Libraries:
    runtime: Path
    host: Path
    module: Path


@functools.cache
def libraries() -> Libraries:
    """The parts of every program, compiled once for this machine and g++."""
    runtime = toolchain.runtime_library()
    flags = ("-std=gnu++17", "-O2", *COMMON, *toolchain.machine_flags())

    def make(target: Path) -> None:
        sources = [str(path) for path in sorted(HOST.glob("*.cpp")) if path.name != "module.cpp"]
        shutil.copy(runtime, target / "librung_runtime.so")
        command = [*flags, *headers(), "-shared", "-Wl,-soname,librung_host.so", *sources, "-o", "librung_host.so"]
        made([*command, "-L.", "-lrung_runtime", "-Wl,-rpath,$ORIGIN", "-ldl", "-lpthread"], target)
        made([*flags, *headers(), "-c", str(HOST / "module.cpp"), "-o", "module.o"], target)

    interface = (toolchain.HERE / "machine/entry.h").read_text()  # of counting.cpp
    key = toolchain.key(flags, interface, runtime.name, folders=(toolchain.INCLUDE, toolchain.RUNTIME, HOST))
    folder = toolchain.cached_folder(f"host-{key}", make)
    return Libraries(folder / "librung_runtime.so", folder / "librung_host.so", folder / "module.o")


def made(command: list[str], work: Path) -> None:
    result = toolchain.run(command, work)
    if result.returncode:
        raise RungError(f"The emulator's host library does not compile: {result.stderr.strip()[:1500]}")


def headers() -> list[str]:
    """The emulator's folders, as system headers: they are not rewritten."""
    return [f"-I{HOST / 'include'}", f"-I{toolchain.INCLUDE}"]


def compile_file(source: Path, output: Path, options: Options) -> None:
    """One file to an object; a CompileError says what g++ said, or which part of CUDA is not modelled."""
    toolchain.require()
    if not source.is_file():
        raise RungError(f"{source} is not a file.")
    flags = [
        *COMMON,
        *toolchain.machine_flags(),
        f"-std={options.standard.replace('c++', 'gnu++')}",
        options.optimize,
        options.debug,
    ]
    system = [word for folder in (HOST / "include", toolchain.INCLUDE) for word in ("-isystem", str(folder))]
    if source.suffix not in CUDA_SUFFIXES and "-xcu" not in options.more:
        command = [
            *flags,
            *options.flags(),
            *(o for o in options.more if o != "-xcu"),
            *system,
            "-c",
            str(source),
            "-o",
            str(output),
        ]
        _check(source, _run(command))
        return
    expand = [
        *flags,
        *_ARCHITECTURE,
        *options.flags(),
        *(o for o in options.more if o != "-xcu"),
        *system,
        "-x",
        "c++",
        "-E",
    ]
    expand += ["-include", "rung_host/program.h", str(source)]
    expanded = _run(expand)
    if _CCCL.search(expanded.stderr) and (folder := headers_of_cuda.cccl()):
        expanded = _run([*expand, *(word for one in (_wrapped(folder), folder) for word in ("-isystem", str(one)))])
    _check(source, expanded)
    version = toolchain.compiler_version() or ()
    chosen = [] if options.stubs else [*_CHECKS, *(_RACES if options.races else ())]
    if version >= (12,) and not options.stubs:
        chosen.append(f"-ftrivial-auto-var-init={'zero' if options.races else 'pattern'}")
    command = [*flags, *chosen, "-fpreprocessed", "-x", "c++"]

    def make(work: Path) -> tuple[Path, None]:
        for constinit in (True, False) if options.races and version >= (10,) else (False,):
            try:
                text = rewriting.rewritten(expanded.stdout, constinit=constinit, stubs=options.stubs)
            except (rewriting.NotUnderstood, inline_ptx.NotUnderstood) as problem:
                raise CompileError(f"{source}: {problem}.") from None
            result = _run([*command, "-c", "-", "-o", str(work / "file.o")], text)
            if "constinit" not in result.stderr:
                break
        _check(source, result)
        return work / "file.o", None

    key = toolchain.key("program", expanded.stdout, command, str(Path.cwd()), _own_text())
    shutil.copyfile(kept.kept("emulator", key, make).path, output)
    _check_shared(source, output)


def _check_shared(source: Path, made: Path) -> None:
    """As CUDA's compiler, refuses a function with more than 48 KB of variables in shared memory."""
    sizes: dict[str, int] = {}
    for symbol in shared_symbols(made):
        if symbol.name.startswith("_ZZ"):
            function = symbol.name[2 : symbol.name.rfind(f"E{len(symbol.plain)}{symbol.plain}")]
            sizes[function] = sizes.get(function, 0) + symbol.size
    function, size = max(sizes.items(), key=lambda one: one[1], default=("", 0))
    if size > _STATIC_SHARED:
        done = subprocess.run(["c++filt", f"_{function}"], capture_output=True, text=True)
        name = done.stdout.strip() or function
        raise CompileError(
            f"{source}: {name} has {size:,} bytes of __shared__ variables, and {_STATIC_SHARED:,} is the most; take "
            "extern __shared__ memory, and cudaFuncSetAttribute with cudaFuncAttributeMaxDynamicSharedMemorySize."
        )


@functools.cache
def _wrapped(cccl: Path) -> Path:
    """CUDA's C++ headers as those of a host compiler: Thrust's algorithms run on the CPU, in memory that kernels may
    touch. What makes threads wait for each other is refused. So are the 8-bit floats."""
    text = {name: (HOST / "include/rung_host" / name).read_text() for name in ("cccl_begin.h", "cccl_end.h")}

    def make(target: Path) -> None:
        for path in [*cccl.glob("thrust/**/*.h"), *cccl.glob("cuda/*"), *cccl.glob("cuda/std/*")]:
            name = str(path.relative_to(cccl))
            if path.is_dir() or "detail" in name or "/__" in name:
                continue
            lines = ['#include "rung_host/cccl_begin.h"', f'#include "{path}"', '#include "rung_host/cccl_end.h"']
            if name.startswith("thrust/"):
                lines += ["#ifndef RUNG_AT_ONCE", "#define RUNG_AT_ONCE rung_host_at_once()"]
                lines += ["static const bool rung_at_once = RUNG_AT_ONCE;", "#endif"]
            elif _WAITING.search(name):
                lines = [f"#error {name} is not modelled by the emulator"]
            (target / name).parent.mkdir(parents=True, exist_ok=True)
            (target / name).write_text("#pragma once\n" + "\n".join(lines) + "\n")
        if (fp8 := cccl.parent / "cuda_fp8.h").is_file():
            (target / "cuda_fp8.h").write_text(_FP8.format(fp8))

    return toolchain.cached_folder(f"cccl-{toolchain.key('cccl', str(cccl), text, _own_text())}", make)


@functools.cache
def _own_text() -> str:
    """Objects that an earlier version of the rewriting made are not used."""
    return (
        "".join(Path(module.__file__ or "").read_text() for module in (rewriting, inline_ptx))
        + Path(__file__).read_text()
    )


def link(objects: Sequence[Path], output: Path, more: Sequence[str] = (), host: Path | None = None) -> None:
    """Objects to an executable, with the runtime's folder in its search path; `host` takes the host library's place."""
    parts = libraries()
    symbols = [symbol for path in objects for symbol in _shared_symbols(path)]
    defined = {symbol.name for symbol in symbols if not symbol.declared}
    names = [s.name for s in symbols if s.declared and s.name not in defined and s.name != "rung_dynamic_shared"]
    shared = output.with_name(f"{output.name}.shared.s")
    shared.write_text(_dynamic_shared(list(dict.fromkeys(names))))
    try:
        whole = [path for path in objects if not (path.suffix == ".o" and not path.stat().st_size)]
        wraps = [f"-Wl,--wrap={name}" for name in _OF_THE_HEAP]
        command = ["-pthread", *map(str, whole), str(parts.module), str(shared), "-o", str(output), *wraps, *more]
        host = host or parts.host
        own = [str(host), str(host.with_name(parts.runtime.name)), f"-Wl,-rpath,{host.parent}"]
        result = _run([*command, *own, "-lm", "-ldl"])
    finally:
        shared.unlink()
    if result.returncode:
        missing = sorted(set(re.findall(r"undefined reference to `([^']+)'", result.stderr)))
        detail = f"these are defined nowhere: {', '.join(missing[:8])}" if missing else result.stderr.strip()[:600]
        raise CompileError(f"The program does not link: {detail}.")


def _shared_symbols(path: Path) -> list[SharedSymbol]:
    """The thread-local symbols of an object, or of an archive's objects."""
    if path.suffix == ".o":
        head = path.read_bytes()[:4]
        return list(shared_symbols(path)) if head == b"\x7fELF" else []
    if path.suffix != ".a":
        return []
    with tempfile.TemporaryDirectory() as folder:
        subprocess.run(["ar", "x", str(path.absolute())], cwd=folder, check=True)
        return [symbol for member in Path(folder).iterdir() for symbol in _shared_symbols(member)]


def _dynamic_shared(names: list[str]) -> str:
    """All `extern __shared__` arrays are one memory, behind the static ones."""
    labels = "".join(f".globl {n}\n.hidden {n}\n.type {n}, STT_OBJECT\n{n}:\n" for n in [*names, "rung_dynamic_shared"])
    size = _SHARED_BLOCK + 256 if names else 0
    return (
        f'.section .tbss.zz_dynamic,"awT",@nobits\n.balign 1024\n{labels}.zero {size}\n'
        '.section .note.GNU-stack,"",@progbits\n'
    )


def _run(command: list[str], text: str | None = None) -> subprocess.CompletedProcess[str]:
    environment = os.environ | {"LC_ALL": "C"}
    command = [toolchain.require(), *command]
    return subprocess.run(command, input=text, capture_output=True, text=True, errors="replace", env=environment)


def _check(source: Path, result: subprocess.CompletedProcess[str]) -> None:
    if not result.returncode:
        return
    log = result.stderr
    if missing := re.search(r"^([^\s:]+):(\d+):.*fatal error: (\S+): No such file", log, re.MULTILINE):
        name = missing[3]
        library = next((library for prefix, library in _LIBRARIES.items() if name.startswith(prefix)), None)
        if library:
            raise CompileError(
                f"{missing[1]}, line {missing[2]}: {name} is not found: the emulator does not model {library}."
            )
    errors = [line for line in log.splitlines() if re.search(r"\b(?:fatal )?error:", line)]
    shown = []
    for line in errors[:5]:
        found = _FUNCTION.search(line)
        where = re.match(r"([^\s:]+):(\d+):", line)
        if (
            found
            and where
            and ("not declared" in line or "does not name a type" in line or "has not been declared" in line)
        ):
            line = f"{where[1]}, line {where[2]}: {found[1]} is not modelled by the emulator"
        if where and (absent := re.search(r"'cub::(\w+)' has not been|'(\w+)' is not a member of 'cub'", line)):
            line = f"{where[1]}, line {where[2]}: cub::{absent[1] or absent[2]} is not modelled by the emulator"
        shown.append(line)
    more = f"\n  ... and {len(errors) - 5} more" if len(errors) > 5 else ""
    raise CompileError(
        f"{source} does not compile for the emulator:\n  " + "\n  ".join(shown or log.splitlines()[:5]) + more
    )
