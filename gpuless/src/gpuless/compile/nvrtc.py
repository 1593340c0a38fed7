"""Compiles CUDA C++ to a cubin with NVRTC, and caches the result; needs no GPU and no driver."""

from __future__ import annotations

import functools
import pickle
import re
import subprocess
import sys
import threading
from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

from gpuless.base import disk_cache
from gpuless.base.errors import CompileError, UserError, first_line
from gpuless.base.files import whole
from gpuless.base.processors import processors
from gpuless.compile import cubin_cache, headers, host_code
from gpuless.compile.headers import NEEDED, OVERRIDE, Headers
from gpuless.compile.source import code_only, kernels_in
from gpuless.launch import Build, Resources

_STANDARD = ("algorithm", "cmath", "cstdint", "limits", "type_traits", "utility")
_INCLUDED = "".join(f"#include <{name}>\n" for name in _STANDARD)
_UNKNOWN = re.compile(r'namespace "std" has no member "(\w+)"')
_LIMIT = re.compile(r'identifier "__(?:FLT|DBL|INT)_\w+__" is undefined')
_LIMITS = "".join(  # of g++, which nvcc compiles with
    f"#define __{name}__ {value!r}{'f' if name.startswith('FLT') else ''}\n"
    for name, value in {
        "FLT_MAX": 3.40282347e38, "FLT_MIN": 1.17549435e-38,
        "FLT_EPSILON": 1.1920929e-7, "FLT_DENORM_MIN": 1.4012985e-45,
        "DBL_MAX": sys.float_info.max, "DBL_MIN": sys.float_info.min, "DBL_EPSILON": sys.float_info.epsilon,
        "INT_MAX": 2**31 - 1,
    }.items()
)  # fmt: skip
_CONSTANT = re.compile(r"^((?:static\s+)?)const(?=\s+\w+\s+\w+\s*=[^;{}()]*;)", re.MULTILINE)
_LAMBDA = re.compile(r"(\[[^][\n]*\]\s*)(?:__(?:host|device)__\s*)+(?=\()")
_COMPILING = threading.Lock()
CORES_FOR_PROCESSES = 4  # with fewer, a process's start costs more than it saves


def compile_cubin(build: Build, arch: str, *, again: bool = False) -> cubin_cache.Cubin:
    """The cubin of `build` for `arch` ("sm_90"), compiled or from the cache; `again` compiles in any case."""
    arch = _arch(build, arch)
    found = headers.find(version())
    includes = dict(cubin_cache.includes_of(build))
    key = cubin_cache.key_of(build, arch, found, version(), includes)
    cached = None if again else cubin_cache.read(key, build, arch)
    if cached:
        return cached
    _require_kernels(build, includes)
    with cubin_cache.alone(key):
        cached = None if again else cubin_cache.read(key, build, arch)
        if cached:
            return cached
        code, lowered, log = _compile_beside(build, arch, found)
        resources = {k: ptxas_resources(log, lowered[k]) for k in build.kernels}
        return cubin_cache.write(key, code, arch, lowered, resources, log)


def _compile_beside(build: Build, arch: str, found: headers.Headers) -> tuple[bytes, dict[str, str], str]:
    """compile_fresh, in a process of its own while another thread compiles: NVRTC has one lock for all threads."""
    alone = _COMPILING.acquire(blocking=processors() < CORES_FOR_PROCESSES)
    if not alone:
        program = f"import sys; sys.path[:] = {sys.path}; from gpuless.compile import nvrtc; nvrtc.compile_for_parent()"
        done = subprocess.run(
            [sys.executable, "-c", program], input=pickle.dumps((build, arch, found)), capture_output=True, check=False
        )
        if done.returncode == 0:
            made: tuple[bytes, dict[str, str], str] = pickle.loads(done.stdout)
            return made
        _COMPILING.acquire()  # this process tells what is wrong
    try:
        return compile_fresh(build, arch, found)
    finally:
        _COMPILING.release()


def compile_for_parent() -> None:
    """In the process of _compile_beside."""
    sys.stdout.buffer.write(pickle.dumps(compile_fresh(*pickle.load(sys.stdin.buffer))))


@functools.cache
def version() -> tuple[int, int]:
    """NVRTC's version; if NVRTC is missing, a UserError says how to install it."""
    try:
        from cuda.bindings import nvrtc

        error, major, minor = nvrtc.nvrtcVersion()
    except (ImportError, RuntimeError, OSError) as problem:
        raise UserError(
            f"CUDA's compiler NVRTC cannot be used ({first_line(problem)}): "
            "install cuda-bindings and nvidia-cuda-nvrtc with pip."
        ) from problem
    if int(error):
        raise UserError(f"CUDA's compiler NVRTC has no version ({error.name}): reinstall nvidia-cuda-nvrtc.")
    return int(major), int(minor)


@functools.cache
def supported_archs() -> tuple[int, ...]:
    """Compute capabilities that this NVRTC compiles for, as 75, 90, ..."""
    version()
    from cuda.bindings import nvrtc

    _, archs = nvrtc.nvrtcGetSupportedArchs()
    return tuple(int(a) for a in archs)


def _arch(build: Build, arch: str) -> str:
    found = re.fullmatch(r"sm_(\d+)([af]?)", arch)
    if not found:
        raise UserError(f"'{arch}' is not an architecture: write it as sm_90.")
    if int(found.group(1)) not in supported_archs():
        known = ", ".join(f"sm_{a}" for a in supported_archs())
        raise UserError(f"NVRTC {'.'.join(map(str, version()))} cannot compile for {arch}; it supports {known}.")
    if build.arch_specific and not found.group(2) and int(found.group(1)) >= 90:
        return arch + "a"
    return arch


def _require_kernels(build: Build, includes: dict[str, str]) -> None:
    names = [name for text in (build.source, *includes.values()) for name in kernels_in(text)]
    for kernel in build.kernels:
        name = kernel.lstrip("&").partition("<")[0].strip().rpartition("::")[2]
        if name not in names and not re.search(rf"\b{re.escape(name)}\b", code_only(build.source)):
            present = f"it defines {', '.join(names)}" if names else "it defines no __global__ function"
            raise UserError(f"{build.origin} has no kernel named '{name}': {present}.")


def compile_fresh(build: Build, arch: str, found: headers.Headers) -> tuple[bytes, dict[str, str], str]:
    """The cubin's bytes, each kernel's symbol and the compiler's log, without the cache."""
    options, source, absent = _options(build), build.source, ""
    options += [f"--include-path={folder}" for folder in (*build.include, headers.STANDARD, *found.folders)]
    options += [f"-arch={arch}", f"--pre-include={headers.PRELUDE.name}"]
    options += [f"--define-macro={name}={value}" for name, value in build.defines]
    if found.bundled:
        options.append(f"--use-bundled-headers={disk_cache.folder('headers') / found.version}")
    while True:
        with ThreadPoolExecutor(1) as beside:  # while NVRTC is at work this thread answers signals
            code, lowered, log = beside.submit(_compile, build, source, options).result()
        if code:
            return code, lowered, log
        missing = re.search(r'cannot open source file "([^"]+)"', log)
        brackets = '[<"]' if missing and _on_this_machine(missing[1]) else '"'
        included = rf"^[ \t]*#[ \t]*include[ \t]*{brackets}{re.escape(missing[1])}[>\"]" if missing else r"(?!)"
        left = re.sub(included, "", source, flags=re.MULTILINE)
        # nvcc's --expt-relaxed-constexpr, and members that the device does not call
        relaxed = "considered a host function" in log and not host_code.lacks_device(build.source)
        lacks = 'namespace "std" has no member' in log and _INCLUDED not in source
        limits = _LIMIT.search(log) and _LIMITS not in source
        fixed = _CONSTANT.sub(r"\1constexpr", source) if "dynamic initialization" in log else source
        plain = _LAMBDA.sub(r"\1", source) if "--extended-lambda" in log else source
        if lacks:  # the host's headers bring these along
            source = f'{_INCLUDED}#line 1 "{build.origin}"\n{source}'
        elif missing and left != source and not _of_cuda(missing[1]):  # the host's code may be all that needs it
            source, absent = left, missing[1]
        elif limits:
            source = f'{_LIMITS}#line 1 "{build.origin}"\n{source}'
        elif fixed != source:  # a float that nvcc calculates
            source = fixed
        elif plain != source:  # inside of a kernel they are the device's anyway
            source = plain
        elif relaxed and _ON_DEVICE not in options:
            options.append(_ON_DEVICE)
        else:
            lacking = missing or _UNKNOWN.search(log)
            raise compile_error(build, arch, found, log, absent, absent or (lacking[1] if lacking else ""))


def _compile(build: Build, source: str, options: Sequence[str]) -> tuple[bytes, dict[str, str], str]:
    """The cubin, empty if there are errors, with each kernel's symbol and the log. By NVRTC's own functions: to import
    cuda.core takes longer than to compile a kernel."""
    from cuda.bindings import nvrtc

    def done(result: tuple[Any, ...]) -> Any:
        if int(result[0]):
            raise UserError(f"{build.origin} was not compiled: NVRTC answers {result[0].name}.")
        return result[1] if len(result) > 1 else None

    program = done(nvrtc.nvrtcCreateProgram(source.encode(), build.origin.encode(), 0, None, None))
    try:
        for kernel in build.kernels:
            done(nvrtc.nvrtcAddNameExpression(program, kernel.encode()))
        failed = int(nvrtc.nvrtcCompileProgram(program, len(options), [o.encode() for o in options])[0])
        log = bytearray(done(nvrtc.nvrtcGetProgramLogSize(program)))
        done(nvrtc.nvrtcGetProgramLog(program, log))
        said = log.decode(errors="replace").replace("\0", "").strip()
        if failed:
            return b"", {}, said or nvrtc.nvrtcResult(failed).name
        code = bytearray(done(nvrtc.nvrtcGetCUBINSize(program)))
        done(nvrtc.nvrtcGetCUBIN(program, code))
        lowered = {k: done(nvrtc.nvrtcGetLoweredName(program, k.encode())).decode() for k in build.kernels}
        return bytes(code), lowered, said
    finally:
        nvrtc.nvrtcDestroyProgram(program)


_ON_DEVICE = "--device-as-default-execution-space"
_FLAGS = {
    "use_fast_math", "generate-line-info", "device-debug", "restrict", "extra-device-vectorization", "device-int128",
    _ON_DEVICE.lstrip("-"), "disable-warnings",
}  # fmt: skip
_SHORT = {"lineinfo": "generate-line-info", "default-device": _ON_DEVICE.lstrip("-")}
_SWITCHES = ("fmad", "ftz", "prec-div", "prec-sqrt", "relocatable-device-code")
_VALUES: dict[str, Callable[[str], bool]] = {
    **dict.fromkeys(_SWITCHES, lambda value: value in ("true", "false")),
    **dict.fromkeys(("maxrregcount", "diag-suppress"), lambda value: whole(value) is not None),
}


def _options(build: Build) -> list[str]:
    """NVRTC's options: those of the build, if they are known."""
    standard, found = "c++17", ["--ptxas-options=-v"]
    for option in build.options:
        name, equals, value = option.strip().lstrip("-").partition("=")
        name, value = _SHORT.get(name.strip(), name.strip()), value.strip()
        if name in _FLAGS and not equals:
            found.append(f"--{name}")
        elif name in _VALUES and all(map(_VALUES[name], value.split(","))):
            found.append(f"--{name}={value}")
        elif name == "std" and value:
            standard = value
        elif name in ("Xptxas", "ptxas-options") and value:
            found += [f"--ptxas-options={one}" for one in value.split(",")]
        else:
            known = [f"--{n}" for n in sorted({*_FLAGS, *_SHORT})] + [f"--{n}=true|false" for n in _SWITCHES]
            known += ["--maxrregcount=N", "--diag-suppress=N,N", "--std=c++20", "-Xptxas=OPTION"]
            raise UserError(f"{build.origin}: the compiler option '{option}' is not known; {', '.join(known)} are.")
    return [*found, f"--std={standard}"]


def ptxas_resources(log: str, symbol: str) -> Resources:
    """Reads `ptxas -v`: for each kernel a line of stack and spills, a line of registers and shared memory."""
    start = log.find(f"Compiling entry function '{symbol}'")
    section = log[start:].split("Compiling entry function", 2)[1] if start >= 0 else ""

    def number(pattern: str) -> int:
        found = re.search(pattern, section)
        return int(found.group(1)) if found else 0

    properties = section.partition(f"Function properties for {symbol}")[2]
    local = re.search(r"(\d+) bytes stack frame, (\d+) bytes spill stores, (\d+) bytes spill loads", properties)
    stack, stores, loads = (int(g) for g in local.groups()) if local else (0, 0, 0)
    return Resources(
        registers=number(r"Used (\d+) registers"),
        static_shared=number(r"(\d+) bytes smem"),
        spill_stores=stores,
        spill_loads=loads,
        stack=stack,
    )


_SHOWN_ERRORS = 3
_ERROR = re.compile(r"^(?P<file>[^\n]*?)\((?P<line>\d+)\): (?:catastrophic )?error(?: #\S+)?: (?P<text>.*)$")


LAUNCHES = "A kernel that launches kernels (dynamic parallelism) is refused: launch them from the host."


def compile_error(build: Build, arch: str, found: Headers, text: str, missing: str, missed: str) -> CompileError:
    """NVRTC's errors, readable; `missing` is a header of the user that was not found."""
    lines = text.replace("\0", "").splitlines()
    errors = [match for line in lines if (match := _ERROR.match(line))]
    shown = []
    for match in errors[:_SHOWN_ERRORS]:
        shown.append(f"  {match['file']}:{match['line']}: {match['text']}")
        path = Path(match["file"])
        if path.is_file() or match["file"] == build.origin:
            text = path.read_text("utf-8-sig", errors="replace") if path.is_file() else build.source
            code = text.splitlines()[int(match["line"]) - 1 : int(match["line"])]
            shown += [f"    {match['line']} | {c.strip()}" for c in code]
    count = len(errors)
    if not errors:
        assembler = [line.strip() for line in lines if re.search(r"\b(error|fatal)\b", line)]
        count, shown = len(assembler), [f"  {line}" for line in assembler[:_SHOWN_ERRORS]]
    if not shown:
        shown = [f"  {line}" for line in lines if line.strip()][:_SHOWN_ERRORS]
    if count > _SHOWN_ERRORS:
        shown.append(f"  and {count - _SHOWN_ERRORS} more")
    absent = f'cannot open source file "{missing}"' if missing else ""
    hint = _hint(build, found, " ".join([absent, *(match["text"] for match in errors)] if errors else [absent, *shown]))
    whole = "\n".join([f"{build.origin} does not compile for {arch}:", *shown, *([f"  {hint}"] if hint else [])])
    first = errors[0] if errors else None
    if first and "__nv_name_map" in first["file"]:  # the host's variables name this instance
        return CompileError(whole, missed or first["text"])
    return CompileError(whole, missed, {"file": first["file"], "line": int(first["line"])} if first else {})


def _on_this_machine(header: str) -> bool:
    system = Path("/usr/include")
    places = (system, *system.glob("c++/*"), *system.glob("*-linux-gnu"))
    return any((place / header).is_file() for place in places)


def _of_cuda(name: str) -> bool:
    return name in NEEDED or name.startswith(("crt/", "nv/", "cuda", "cooperative_groups/"))


def _hint(build: Build, found: Headers, errors: str) -> str:
    if "too much global constant data" in errors:
        return "Constant memory has 65536 bytes: pass what is larger as a pointer."
    if "__cudaCDP2" in errors:
        return LAUNCHES
    absent = re.search(r'cannot open source file "([^"]+)"', errors)
    if unknown := _UNKNOWN.search(errors):
        return f"gpuless has what kernels use of the standard library, and std::{unknown[1]} is none of it."
    if not absent:
        return ""
    name = absent.group(1)
    if f'"{name}"' in build.source:
        return f"{name} was not found: beside the file, nor in the folders above it and their folders include."
    if re.fullmatch(r"[a-z_]+(?:\.h)?", name) and f"<{name}>" in build.source:
        return f"<{name}> is none of the standard headers that gpuless has for kernels; put it beside the file."
    if _of_cuda(name):
        return (
            f"CUDA's headers come from: {found.source}. Install nvidia-cuda-runtime, nvidia-cuda-crt and "
            f"nvidia-cuda-cccl of NVRTC's version, or set {OVERRIDE} to a toolkit's include folder."
        )
    return ""
