"""Compiles CUDA C++ to a cubin with NVRTC, and keeps what it compiled; no GPU and no driver are needed.

The key of a cached cubin holds everything that determines it: source, the files of ours that it includes, macros,
options, architecture, compiler and header versions. cuda.core's own cache refuses template instances and include
folders, hence this one.
"""

from __future__ import annotations

import functools
import hashlib
import io
import json
import os
import re
import tempfile
from collections.abc import Iterator
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any

from rung.cuda import headers
from rung.cuda.launch import Build, Resources
from rung.cuda.source import code_only, kernels_in
from rung.errors import RungError

_FORMAT = "1"  # of the cache's entries
_SHOWN_ERRORS = 3
_INCLUDE = re.compile(r'^[ \t]*#[ \t]*include[ \t]*(?:"([^"\n]+)"|<([^>\n]+)>)', re.MULTILINE)
_ERROR = re.compile(r"^(?P<file>[^\n]*?)\((?P<line>\d+)\): (?:catastrophic )?error(?: #\S+)?: (?P<text>.*)$")


@dataclass(frozen=True)
class Cubin:
    """Compiled code on disk; `lowered` gives each kernel's symbol, which for a template is its mangled name."""

    path: Path
    arch: str
    lowered: dict[str, str]
    resources: dict[str, Resources]
    log: str
    key: str = field(default="", compare=False)

    @property
    def spilling(self) -> tuple[str, ...]:
        """Kernels whose registers did not suffice."""
        return tuple(k for k, r in self.resources.items() if r.spill_stores or r.spill_loads)


def compile_cubin(build: Build, arch: str) -> Cubin:
    """The cubin of `build` for `arch` ("sm_90"), compiled or from the cache."""
    arch = _arch(build, arch)
    found = headers.find(version())
    includes = dict(_includes(build))
    key = _key(build, arch, found, includes)
    cached = _read(key, build, arch)
    if cached:
        return cached
    _require_kernels(build, includes)
    code, lowered, log = _compile(build, arch, found)
    resources = {k: _resources(log, lowered[k]) for k in build.kernels}
    return _write(key, code, arch, lowered, resources, log)


def cache_folder() -> Path:
    """Where compiled code is kept: $RUNG_CACHE, or ~/.cache/rung."""
    given = os.environ.get("RUNG_CACHE")
    if given:
        return Path(given).expanduser()
    return Path(os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache") / "rung"


@functools.cache
def version() -> tuple[int, int]:
    """NVRTC's version; a RungError says how to get one that is missing."""
    try:
        from cuda.bindings import nvrtc

        error, major, minor = nvrtc.nvrtcVersion()
    except (ImportError, RuntimeError, OSError) as problem:
        raise RungError(
            f"CUDA's compiler NVRTC cannot be used ({str(problem).strip().splitlines()[0]}): "
            "install cuda-core and nvidia-cuda-nvrtc with pip."
        ) from problem
    if int(error):
        raise RungError(f"CUDA's compiler NVRTC does not answer ({error.name}): reinstall nvidia-cuda-nvrtc.")
    return int(major), int(minor)


@functools.cache
def supported_archs() -> tuple[int, ...]:
    """Compute capabilities this NVRTC has code for, as 75, 90, ..."""
    version()
    from cuda.bindings import nvrtc

    _, archs = nvrtc.nvrtcGetSupportedArchs()
    return tuple(int(a) for a in archs)


def _arch(build: Build, arch: str) -> str:
    found = re.fullmatch(r"sm_(\d+)([af]?)", arch)
    if not found:
        raise RungError(f"'{arch}' is not an architecture: write it as sm_90.")
    if int(found.group(1)) not in supported_archs():
        known = ", ".join(f"sm_{a}" for a in supported_archs())
        raise RungError(f"NVRTC {'.'.join(map(str, version()))} cannot compile for {arch}: it knows {known}.")
    if build.arch_specific and not found.group(2) and int(found.group(1)) >= 90:
        return arch + "a"
    return arch


# ---- key -------------------------------------------------------------------------------------------------------


def _includes(build: Build) -> Iterator[tuple[str, str]]:
    """(path, text) of every file of ours that the source includes, at any depth; CUDA's headers are not ours."""
    folders = [Path(f) for f in build.include]
    queue = [(build.source, Path(build.origin).parent)]
    seen: set[Path] = set()
    while queue:
        text, here = queue.pop()
        for match in _INCLUDE.finditer(text):
            name = match.group(1) or match.group(2)
            for folder in (here, *folders):
                path = folder / name
                if path.is_file():
                    if path.resolve() not in seen:
                        seen.add(path.resolve())
                        inner = path.read_text(errors="replace")
                        queue.append((inner, path.parent))
                        yield str(path), inner
                    break


def _key(build: Build, arch: str, found: headers.Headers, includes: dict[str, str]) -> str:
    line_info = any("lineinfo" in option for option in build.options)
    parts = [
        _FORMAT,
        build.source,
        build.origin if line_info else "",
        build.kernels,
        build.defines,
        build.options,
        arch,
        sorted((Path(path).name, _digest(text.encode())) for path, text in includes.items()),
        version(),
        [found.source, found.folders, found.version],
    ]
    return _digest(json.dumps(parts).encode())[:32]


def _digest(data: bytes) -> str:
    return hashlib.sha256(data).hexdigest()


def _require_kernels(build: Build, includes: dict[str, str]) -> None:
    names = [name for text in (build.source, *includes.values()) for name in kernels_in(text)]
    for kernel in build.kernels:
        name = kernel.partition("<")[0].strip().rpartition("::")[2]
        if name not in names and not re.search(rf"\b{re.escape(name)}\b", code_only(build.source)):
            there = f"it defines {', '.join(names)}" if names else "it defines no __global__ function"
            raise RungError(f"{build.origin} has no kernel named '{name}': {there}.")


# ---- compile ---------------------------------------------------------------------------------------------------


def _compile(build: Build, arch: str, found: headers.Headers) -> tuple[bytes, dict[str, str], str]:
    from cuda.core import Program, ProgramOptions

    fields = _option_fields(build)
    fields["include_path"] = [*build.include, *found.folders] or None
    if found.bundled:
        fields["use_bundled_headers"] = True
    options = ProgramOptions(name=build.origin, arch=arch, define_macro=list(build.defines) or None, **fields)
    logs = io.StringIO()
    try:
        program = Program(build.source, "c++", options)
        compiled = program.compile("cubin", name_expressions=build.kernels, logs=logs)
        lowered = {k: _text(v) for k, v in compiled.symbol_mapping.items()}
        code = bytes(compiled.code)
        program.close()
    except Exception as problem:  # cuda.core has no public class for a failed compilation
        raise RungError(_complaint(build, arch, found, str(problem))) from problem
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
_SWITCHES = {"ftz": "ftz", "prec-div": "prec_div", "prec-sqrt": "prec_sqrt", "fmad": "fma"}
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
        elif name in _NUMBERS and value.isdigit():
            fields[_NUMBERS[name]] = int(value)
        elif name in _LISTS and all(v.isdigit() for v in value.split(",")):
            fields[_LISTS[name]] = [int(v) for v in value.split(",")]
        elif name == "std" and value:
            fields["std"] = value
        elif name in ("Xptxas", "ptxas-options") and value:
            fields["ptxas_options"] += value.split(",")
        else:
            known = [f"--{n}" for n in _FLAGS] + [f"--{n}=true|false" for n in _SWITCHES]
            known += ["--maxrregcount=N", "--diag-suppress=N,N", "--std=c++20", "-Xptxas=OPTION"]
            raise RungError(f"{build.origin}: the compiler option '{option}' is not known; {', '.join(known)} are.")
    return fields


def _complaint(build: Build, arch: str, found: headers.Headers, text: str) -> str:
    """NVRTC's log as its first errors, each with file, line and the line itself."""
    lines = text.replace("\0", "").splitlines()
    errors = [match for line in lines if (match := _ERROR.match(line))]
    shown = []
    for match in errors[:_SHOWN_ERRORS]:
        shown.append(f"  {match['file']}:{match['line']}: {match['text']}")
        if match["file"] == build.origin:
            code = build.source.splitlines()[int(match["line"]) - 1 : int(match["line"])]
            shown += [f"    {match['line']} | {c.strip()}" for c in code]
    count = len(errors)
    if not errors:
        assembler = [line.strip() for line in lines if re.search(r"\b(error|fatal)\b", line)]
        count, shown = len(assembler), [f"  {line}" for line in assembler[:_SHOWN_ERRORS]]
    if not shown:
        shown = [f"  {line}" for line in lines if line.strip()][:_SHOWN_ERRORS]
    if count > _SHOWN_ERRORS:
        shown.append(f"  and {count - _SHOWN_ERRORS} more")
    hint = _hint(found, " ".join(match["text"] for match in errors))
    return "\n".join([f"{build.origin} does not compile for {arch}:", *shown, *([f"  {hint}"] if hint else [])])


def _hint(found: headers.Headers, errors: str) -> str:
    absent = re.search(r'cannot open source file "([^"]+)"', errors)
    if not absent:
        return ""
    name = absent.group(1)
    if re.fullmatch(r"std\w+\.h|c?std\w+|math\.h|cmath|vector|string|algorithm|iostream", name):
        return f"NVRTC has no standard library: leave <{name}> out, the types and maths it is for are built in."
    if name in headers.NEEDED or name.startswith(("crt/", "nv/", "cuda", "cooperative_groups/")):
        return (
            f"CUDA's headers come from: {found.source}. Install nvidia-cuda-runtime, nvidia-cuda-crt and "
            f"nvidia-cuda-cccl of NVRTC's version, or set {headers.OVERRIDE} to a toolkit's include folder."
        )
    return ""


def _resources(log: str, symbol: str) -> Resources:
    """Reads `ptxas -v`: a line of stack and spills, a line of registers and shared memory, for each kernel."""
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


# ---- cache -----------------------------------------------------------------------------------------------------


def _read(key: str, build: Build, arch: str) -> Cubin | None:
    """The cached cubin, or None when it is absent or damaged."""
    folder = cache_folder() / "cubin"
    try:
        entry = json.loads((folder / f"{key}.json").read_text())
        path = folder / f"{entry['sha256'][:32]}.cubin"
        if _digest(path.read_bytes()) != entry["sha256"] or set(entry["lowered"]) != set(build.kernels):
            return None
        resources = {k: Resources(**r) for k, r in entry["resources"].items()}
        return Cubin(path, arch, entry["lowered"], resources, entry["log"], key)
    except (OSError, ValueError, KeyError, TypeError):
        return None


def _write(
    key: str, code: bytes, arch: str, lowered: dict[str, str], resources: dict[str, Resources], log: str
) -> Cubin:
    """The code is stored under its own hash and first, so that an entry never names code of another writer."""
    folder = cache_folder() / "cubin"
    digest = _digest(code)
    entry = {
        "sha256": digest,
        "arch": arch,
        "lowered": lowered,
        "resources": {k: asdict(r) for k, r in resources.items()},
        "log": log,
    }
    path = folder / f"{digest[:32]}.cubin"
    try:
        folder.mkdir(parents=True, exist_ok=True)
        _replace(path, code)
        _replace(folder / f"{key}.json", json.dumps(entry).encode())
    except OSError as problem:
        raise RungError(
            f"The cache folder {folder} cannot be written ({problem.strerror}): set RUNG_CACHE to one that can."
        ) from problem
    return Cubin(path, arch, lowered, resources, log, key)


def _replace(path: Path, data: bytes) -> None:
    handle, temporary = tempfile.mkstemp(dir=path.parent, prefix=".", suffix=".part")
    try:
        with os.fdopen(handle, "wb") as file:
            file.write(data)
        Path(temporary).replace(path)
    except BaseException:
        Path(temporary).unlink(missing_ok=True)
        raise
