"""Compiles CUDA C++ to a cubin with NVRTC, and caches the result; needs no GPU and no driver."""

from __future__ import annotations

import functools
import io
import pickle
import re
import subprocess
import sys
import threading
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

from gpuless.base.errors import CompileError, UserError, first_line
from gpuless.base.files import whole
from gpuless.base.processors import processors
from gpuless.compile import cubin_cache, headers, host_code
from gpuless.compile.headers import NEEDED, OVERRIDE, Headers
from gpuless.compile.source import code_only, kernels_in
from gpuless.launch import Build, Resources

_STANDARD = ("algorithm", "cmath", "cstdint", "limits", "type_traits", "utility")
_INCLUDED = "".join(f"#include <{name}>\n" for name in _STANDARD)
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
_IMPORTS = threading.Lock()  # cuda.core cannot be imported by two threads at once
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
            "install cuda-core and nvidia-cuda-nvrtc with pip."
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
    with _IMPORTS:
        from cuda.core import Program, ProgramOptions

    fields, source, absent = _option_fields(build), build.source, ""
    fields["include_path"] = [*build.include, str(headers.STANDARD), *found.folders]
    fields["pre_include"] = headers.PRELUDE.name
    if found.bundled:
        fields["use_bundled_headers"] = True
    logs = io.StringIO()

    def compiled() -> tuple[bytes, dict[str, str]]:
        options = ProgramOptions(name=build.origin, arch=arch, define_macro=list(build.defines) or None, **fields)
        program = Program(source, "c++", options)
        target = "ltoir" if fields.get("link_time_optimization") else "cubin"
        made = program.compile(target, name_expressions=build.kernels, logs=logs)
        lowered = {k: _text(v) for k, v in made.symbol_mapping.items()}
        code = bytes(made.code)
        program.close()
        return code, lowered

    while True:
        try:
            with ThreadPoolExecutor(1) as beside:  # while NVRTC is at work this thread answers signals
                code, lowered = beside.submit(compiled).result()
            break
        except Exception as problem:  # cuda.core has no public class for a failed compilation
            missing = re.search(r'cannot open source file "([^"]+)"', str(problem))
            brackets = '[<"]' if missing and _on_this_machine(missing[1]) else '"'
            included = rf"^[ \t]*#[ \t]*include[ \t]*{brackets}{re.escape(missing[1])}[>\"]" if missing else r"(?!)"
            left = re.sub(included, "", source, flags=re.MULTILINE)
            # nvcc's --expt-relaxed-constexpr, and members that the device does not call
            relaxed = "considered a host function" in str(problem) and not host_code.lacks_device(build.source)
            lacks = 'namespace "std" has no member' in str(problem) and _INCLUDED not in source
            limits = _LIMIT.search(str(problem)) and _LIMITS not in source
            fixed = _CONSTANT.sub(r"\1constexpr", source) if "dynamic initialization" in str(problem) else source
            plain = _LAMBDA.sub(r"\1", source) if "--extended-lambda" in str(problem) else source
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
            elif relaxed and "device_as_default_execution_space" not in fields:
                fields["device_as_default_execution_space"] = True
            else:
                missed = absent or (missing[1] if missing else "")
                raise compile_error(build, arch, found, str(problem), absent, missed) from problem
    return code, {k: lowered.get(k, k) for k in build.kernels}, logs.getvalue().replace("\0", "").strip()


def _text(name: bytes | str) -> str:
    return name.decode() if isinstance(name, bytes) else name


_FLAGS = {
    "use_fast_math": "use_fast_math",
    "lineinfo": "lineinfo",
    "generate-line-info": "lineinfo",
    "device-debug": "debug",
    "restrict": "restrict",
    "extra-device-vectorization": "extra_device_vectorization",
    "device-int128": "device_int128",
    "device-as-default-execution-space": "device_as_default_execution_space",
    "default-device": "device_as_default_execution_space",
    "disable-warnings": "disable_warnings",
}
_SWITCHES = {
    "ftz": "ftz",
    "prec-div": "prec_div",
    "prec-sqrt": "prec_sqrt",
    "fmad": "fma",
    "relocatable-device-code": "relocatable_device_code",
}
_NUMBERS = {"maxrregcount": "max_register_count"}
_LISTS = {"diag-suppress": "diag_suppress"}


def _option_fields(build: Build) -> dict[str, Any]:
    """NVRTC's option strings as the fields of cuda.core's ProgramOptions."""
    fields: dict[str, Any] = {"std": "c++17", "ptxas_options": ["-v"]}
    for option in build.options:
        name, equals, value = option.strip().lstrip("-").partition("=")
        name, value = name.strip(), value.strip()
        if name in _FLAGS and not equals:
            fields[_FLAGS[name]] = True
        elif name in _SWITCHES and value in ("true", "false"):
            fields[_SWITCHES[name]] = value == "true"
        elif name in _NUMBERS and (number := whole(value)) is not None:
            fields[_NUMBERS[name]] = number
        elif name in _LISTS and None not in (numbers := [whole(v) for v in value.split(",")]):
            fields[_LISTS[name]] = numbers
        elif name == "std" and value:
            fields["std"] = value
        elif name in ("Xptxas", "ptxas-options") and value:
            fields["ptxas_options"] += value.split(",")
        else:
            known = [f"--{n}" for n in _FLAGS] + [f"--{n}=true|false" for n in _SWITCHES]
            known += ["--maxrregcount=N", "--diag-suppress=N,N", "--std=c++20", "-Xptxas=OPTION"]
            raise UserError(f"{build.origin}: the compiler option '{option}' is not known; {', '.join(known)} are.")
    return fields


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
    return CompileError(whole, missed, hint or shown[0].strip())


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
    if not absent:
        return ""
    name = absent.group(1)
    if f'"{name}"' in build.source:
        return f"{name} was not found: beside the file, nor in the folders above it and their folders include."
    if re.fullmatch(r"[a-z_]+(?:\.h)?", name) and f"<{name}>" in build.source:
        return f"rung has the standard headers that kernels use, and <{name}> is none of them; put it beside the file."
    if _of_cuda(name):
        return (
            f"CUDA's headers come from: {found.source}. Install nvidia-cuda-runtime, nvidia-cuda-crt and "
            f"nvidia-cuda-cccl of NVRTC's version, or set {OVERRIDE} to a toolkit's include folder."
        )
    return ""
