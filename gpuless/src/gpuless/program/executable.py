"""Compiles CUDA programs: g++ the host's part, NVRTC the kernels (device_code.py), into one object for each file."""

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

from gpuless import machine
from gpuless.base import disk_cache
from gpuless.base.errors import CompileError, UserError
from gpuless.compile import headers as headers_of_cuda
from gpuless.compile import nvrtc, toolchain
from gpuless.facts import gpus
from gpuless.facts.limits import limits
from gpuless.program import device_code, lambdas, rewriting

HOST = toolchain.HERE / "program" / "host"
CUDA_SUFFIXES = (".cu",)
COMMON = (
    *("-fPIC", "-fvisibility=hidden", "-w", "-ffp-contract=off", "-fno-strict-aliasing", "-fwrapv"),
    *("-fno-delete-null-pointer-checks", "-fno-extern-tls-init", "-U_FORTIFY_SOURCE", "-fno-gnu-unique", "-pthread"),
)
_LANGUAGE = ("-D__CUDACC__=1", "-D__CUDACC_VER_MAJOR__=13", "-D__CUDACC_VER_MINOR__=0", "-DRUNG_CU=1")
_FUNCTION = re.compile(
    r"'((?:cuda|cu|cublas|curand|cufft|cusparse|cusolver|cudnn|nccl|nvml|nvtx|tex|surf|__)[A-Za-z]\w*)'"
)
_LACKING = re.compile(rf"^([^\s:]+):(\d+):\d+: error: {_FUNCTION.pattern} was not declared in this scope", re.MULTILINE)
_CCCL = re.compile(r"fatal error: (?:(?:thrust|cuda)/\S+|cuda_fp8\.h|cuComplex\.h): No such file")
_TYPES = ("driver_types.h", "library_types.h", "surface_types.h", "texture_types.h", "channel_descriptor.h")
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
_LIBRARIES = {
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
}


@dataclass(frozen=True)
class Options:
    """How a program's files are compiled."""

    include: tuple[str, ...] = ()
    defines: tuple[str, ...] = ()  # NAME or NAME=VALUE
    standard: str = "c++17"
    optimize: str = "-O1"
    debug: str = "-g1"
    more: tuple[str, ...] = field(default=())  # for g++ as they are
    kernels: tuple[str, ...] = ()  # for NVRTC as they are
    arch: str = machine.ARCH  # of the kernels
    relocatable: bool = False  # which call functions of other files

    def flags(self) -> list[str]:
        """Macros and folders."""
        return [*(f"-I{folder}" for folder in self.include), *(f"-D{name}" for name in self.defines)]


FIRST = "compiling the emulator itself, once on this machine"  # what libraries() does


@dataclass(frozen=True)
class Libraries:
    host: Path
    module: Path


def libraries() -> Libraries:
    """The parts of every program, compiled once for this machine, g++ and table of GPUs."""
    return _libraries("".join(map(_model, gpus.rows().values())))


@functools.cache
def _libraries(models: str) -> Libraries:
    compiled = machine.compiled()
    flags = ("-std=gnu++17", "-O2", *COMMON, *toolchain.machine_flags())

    def make(target: Path) -> None:
        sources = [str(path) for path in sorted(HOST.glob("*.cpp")) if path.name != "module.cpp"]
        shutil.copy(compiled, target / "librung_machine.so")
        (target / "gpus.inc").write_text(models)
        command = [*flags, *headers(), "-I.", "-shared", "-Wl,-soname,librung_host.so", *sources]
        command += ["-o", "librung_host.so", "-L.", "-l:librung_machine.so", "-Wl,-rpath,$ORIGIN"]
        made([*command, "-ldl", "-lpthread"], target)
        made([*flags, *headers(), "-c", str(HOST / "module.cpp"), "-o", "module.o"], target)

    key = toolchain.key(flags, str(compiled), models, str(_types()), folders=(HOST,))
    folder = toolchain.cached_folder(f"host-{key}", make)
    return Libraries(folder / "librung_host.so", folder / "module.o")


def _model(gpu: gpus.Gpu) -> str:
    """A row of host/device.cpp."""
    of = limits(gpu.arch)
    card = [gpu.multiprocessors, gpu.memory_gib, gpu.clock_mhz, gpu.memory_clock_mhz, gpu.bus_bits, gpu.l2_mib]
    each = [of.shared_sm >> 10, of.shared_reserved >> 10, of.threads_sm, of.blocks_sm]
    numbers = [*divmod(int(of.arch.removeprefix("sm_")), 10), *card, *each]
    return f'{{"{gpu.key}", "{gpu.name}", {", ".join(map(str, numbers))}}},\n'


def made(command: list[str], work: Path) -> None:
    result = toolchain.run(command, work)
    if result.returncode:
        raise UserError(f"The emulator's host library does not compile: {result.stderr.strip()[:1500]}")


def headers() -> list[str]:
    return ["-isystem", str(HOST / "include"), "-isystem", str(_types())]


@functools.cache
def _types() -> Path:
    """CUDA's own headers of types and constants, without those that give CUDA's keywords to its compiler."""
    if (cuda := headers_of_cuda.types(nvrtc.version())) is None:
        raise UserError("CUDA's header driver_types.h is not found: pip install nvidia-cuda-runtime.")
    texts = {name: (cuda / name).read_text(errors="replace") for name in _TYPES}

    def make(target: Path) -> None:
        (target / "rung_cuda/crt").mkdir(parents=True)
        for name in ("crt/host_defines.h", "cuda_runtime_api.h", "vector_types.h"):
            (target / "rung_cuda" / name).touch()
        for name, text in texts.items():
            (target / "rung_cuda" / name).write_text(text)
            (target / name).write_text('#include "rung_host/program.h"\n')

    return toolchain.cached_folder(f"types-{toolchain.key('types', texts)}", make)


def compile_file(source: Path, output: Path, options: Options) -> None:
    """One file to an object; a CompileError says what g++ said, or which part of CUDA is not modelled."""
    toolchain.require()
    if not source.is_file():
        raise UserError(f"{source} is not a file.")
    flags = [
        *COMMON,
        *toolchain.machine_flags(),
        f"-std={options.standard.replace('c++', 'gnu++')}",
        options.optimize,
        options.debug,
    ]
    system = headers()  # are not rewritten
    if source.suffix == ".c" and "-xcu" not in options.more:  # it is C; CUDA's functions want C++ here
        plain = [flag for flag in flags if not flag.startswith(("-std=", "-fno-extern-tls-init", "-fno-gnu-unique"))]
        if not _run([*plain, *options.flags(), "-x", "c", "-c", str(source), "-o", str(output)]).returncode:
            return
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
        *_LANGUAGE,
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
        found = ("-isystem", str(_host_headers(folder)), "-isystem", str(folder))
        expanded = _run([*expand, *found])
    _check(source, expanded)
    generating = (o for o in options.more if o.startswith(("-f", "-m", "-p")))  # -fopenmp
    command = [*flags, *generating, "-fpreprocessed", "-x", "c++", "-S", "-", "-o"]
    how = device_code.KernelOptions(
        options.arch, options.include, options.defines, options.standard, options.kernels, options.relocatable
    )

    def make(work: Path) -> tuple[Path, None]:
        try:
            text, found = rewriting.rewritten(expanded.stdout)
        except rewriting.NotUnderstood as problem:
            raise CompileError(f"{source}: {problem}.") from None
        assembly, made = work / "file.s", work / "file.o"
        compiled = _run([*command, str(assembly)], text)
        if compiled.returncode and (refusing := _refusing(compiled.stderr)):
            headers, own, rest = text.rpartition(f'\n# 1 "{source}"\n')
            again = _run([*command, str(assembly)], headers + refusing + own + rest)
            compiled = compiled if again.returncode else again
        _check(source, compiled)
        _check(source, _run(["-c", str(assembly), "-o", str(made)]))
        if kernels := device_code.assembly(source, made, found, how, work):
            with assembly.open("a") as file:
                file.write(kernels)
            _check(source, _run(["-c", str(assembly), "-o", str(made)]))
        return made, None

    texts = (expanded.stdout, source.read_text(errors="replace"), _own_text())
    key = toolchain.key("program", texts, command, how, str(Path.cwd()), machine.compiled().name)
    shutil.copyfile(disk_cache.kept("emulator", key, make).path, output)


@functools.cache
def _host_headers(cccl: Path) -> Path:
    """CUDA's C++ headers as those of a host compiler: Thrust's algorithms run on the CPU, in memory that kernels may
    touch. So are the 8-bit floats."""
    text = {name: (HOST / "include/rung_host" / name).read_text() for name in ("cccl_begin.h", "cccl_end.h")}

    def make(target: Path) -> None:
        for path in [*cccl.glob("thrust/**/*.h"), *cccl.glob("cuda/*"), *cccl.glob("cuda/std/*")]:
            name = str(path.relative_to(cccl))
            if path.is_dir() or "detail" in name or "/__" in name:
                continue
            lines = ['#include "rung_host/cccl_begin.h"', f'#include "{path}"', '#include "rung_host/cccl_end.h"']
            if name.startswith("thrust/"):
                lines[1:1] = [f'#include "{cccl}/thrust/system_error.h"']  # as CUDA's back end brings it along
                lines += ["#ifndef RUNG_AT_ONCE", "#define RUNG_AT_ONCE rung_host_at_once()"]
                lines += ["static const bool rung_at_once = RUNG_AT_ONCE;", "#endif"]
            if name in ("thrust/execution_policy.h", "thrust/device_vector.h"):  # which bring it along there
                lines += ["#include <thrust/system/cuda/execution_policy.h>"]
            (target / name).parent.mkdir(parents=True, exist_ok=True)
            (target / name).write_text("#pragma once\n" + "\n".join(lines) + "\n")
        if (fp8 := cccl.parent / "cuda_fp8.h").is_file():
            (target / "cuda_fp8.h").write_text(_FP8.format(fp8))
        (target / "cuComplex.h").write_text(f'#define __VECTOR_TYPES_H__\n#include "{cccl.parent / "cuComplex.h"}"\n')

    return toolchain.cached_folder(f"cccl-{toolchain.key('cccl', str(cccl), text, _own_text())}", make)


@functools.cache
def _own_text() -> str:
    """Objects that an earlier version of the rewriting made are not used."""
    return (
        "".join(Path(module.__file__ or "").read_text() for module in (rewriting, lambdas, device_code))
        + Path(__file__).read_text()
    )


def link(
    objects: Sequence[Path], output: Path, more: Sequence[str] = (), host: Path | None = None, arch: str = machine.ARCH
) -> None:
    """Objects to an executable, with the host library's folder in its search path; `host` takes the library's place."""
    parts = libraries()
    whole = [path for path in objects if not (path.suffix == ".o" and not path.stat().st_size)]
    host = host or parts.host
    own = [str(parts.module), str(host), f"-Wl,-rpath,{host.parent}"]
    with tempfile.TemporaryDirectory(prefix="rung-link-") as folder:
        if kernels := device_code.linked([path for path in whole if path.suffix == ".o"], arch, output, Path(folder)):
            (Path(folder) / "kernels.s").write_text(kernels)
            whole.append(Path(folder) / "kernels.s")
        result = _run(["-pthread", *map(str, whole), "-o", str(output), *more, *own, "-lm", "-ldl"])
    if result.returncode:
        missing = sorted(set(re.findall(r"undefined reference to `([^']+)'", result.stderr)))
        detail = f"these are defined nowhere: {', '.join(missing[:8])}" if missing else result.stderr.strip()[:600]
        if any(name.startswith(("omp_", "GOMP_")) for name in missing):
            detail += " (OpenMP: give -Xcompiler -fopenmp)"
        raise CompileError(f"The program does not link: {detail}.")


def _run(command: list[str], text: str | None = None) -> subprocess.CompletedProcess[str]:
    environment = os.environ | {"LC_ALL": "C"}
    command = [toolchain.require(), *command]
    return subprocess.run(command, input=text, capture_output=True, text=True, errors="replace", env=environment)


def _refusing(log: str) -> str:
    """Declarations of the functions that the emulator lacks: a call of one ends the program, other parts of it run."""
    lacking = {name: f"{file}:{line}" for file, line, name in reversed(_LACKING.findall(log))}
    calls = (f'static const rung_host::NotModelled {name}{{"{name}", "{place}"}};' for name, place in lacking.items())
    return "".join(f"\n{call}" for call in calls)


def _check(source: Path, result: subprocess.CompletedProcess[str]) -> None:
    if not result.returncode:
        return
    log = result.stderr
    if missing := re.search(r"^([^\s:]+):(\d+):.*fatal error: (\S+): No such file", log, re.MULTILINE):
        name = missing[3]
        library = next((library for prefix, library in _LIBRARIES.items() if name.startswith(prefix)), None)
        whose = " of NVIDIA's samples" if name.startswith("helper_") else ""
        mend = f"the emulator does not model {library}" if library else "give its folder by -I"
        raise CompileError(f"{missing[1]}, line {missing[2]}: {name}{whose} is not found: {mend}.")
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
