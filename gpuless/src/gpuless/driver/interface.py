"""The driver's interface, as NVIDIA's cuda.h and cudaTypedefs.h declare it: read when libcuda.so.1 is compiled.

From it come a refusal for every function (a weak one: what is defined here takes its place), the variants whose null
stream is the thread's own, the table that cuGetProcAddress searches, and the names of errors.
"""

from __future__ import annotations

import re
import subprocess
from collections import defaultdict
from pathlib import Path
from typing import NamedTuple

_FUNCTION = re.compile(r"CUresult\s+(cu\w+)\s*\(([^;{]*)\)\s*;")
_TYPED = re.compile(r"PFN_(cu\w+?)_v(\d{4,5})(_ptsz|_ptds)?\)")
_MACRO = re.compile(r"^\s*#define\s+(cu\w+)\s+(?:__CUDA_API_PT\w+\()?(cu\w+)\)?\s*$", re.MULTILINE)
_ERROR = re.compile(r"\b(CUDA_SUCCESS|CUDA_ERROR_\w+)\s*=\s*(\d+)")
_SUFFIX = re.compile(r"(?:_v(\d))?(?:_pt[sd][sz])?$")

_TEXTS = {
    0: "no error",
    1: "invalid argument",
    2: "out of memory",
    3: "initialization error",
    4: "driver shutting down",
    100: "no CUDA-capable device is detected",
    101: "invalid device ordinal",
    200: "device kernel image is invalid",
    201: "invalid device context",
    209: "no kernel image is available for execution on the device",
    218: "a PTX JIT compilation failed",
    221: "PTX JIT compiler library not found",
    222: "the provided PTX was compiled with an unsupported toolchain.",
    300: "device kernel image is invalid",
    301: "file not found",
    400: "invalid resource handle",
    401: "the operation cannot be performed in the present state",
    500: "named symbol not found",
    600: "device not ready",
    700: "an illegal memory access was encountered",
    701: "too many resources requested for launch",
    702: "the launch timed out and was terminated",
    704: "peer access is already enabled",
    705: "peer access has not been enabled",
    710: "device-side assert triggered",
    712: "part or all of the requested memory range is already mapped",
    713: "pointer does not correspond to a registered memory region",
    715: "an illegal instruction was encountered",
    716: "misaligned address",
    719: "unspecified launch failure",
    720: "too many blocks in cooperative launch",
    800: "operation not permitted",
    801: "operation not supported",
    900: "operation not permitted when stream is capturing",
    901: "operation failed due to a previous error during capture",
    904: "capture was not ended in the same stream as it began",
    905: "capturing stream has unjoined work",
    910: "the graph update was not performed because it included changes which violated constraints specific to "
    "instantiated graph update",
    912: "cluster cannot be scheduled on device",
    999: "unknown error",
}


class Function(NamedTuple):
    """An exported name and its parameters, as text."""

    name: str
    parameters: str

    @property
    def base(self) -> str:
        return _SUFFIX.sub("", self.name)

    @property
    def per_thread(self) -> bool:
        return self.name.endswith(("_ptsz", "_ptds"))

    @property
    def version(self) -> int:
        found = _SUFFIX.search(self.name)
        return int(found[1]) if found and found[1] else 1


def functions(include: Path, compiler: str) -> list[Function]:
    """All that cuda.h declares, of every version."""
    command = [compiler, "-E", "-P", "-D__CUDA_API_VERSION_INTERNAL", "-x", "c++", str(include / "cuda.h")]
    text = subprocess.run(command, capture_output=True, text=True, check=True).stdout
    found = {name: Function(name, " ".join(rest.split())) for name, rest in _FUNCTION.findall(text)}
    return [*found.values()]


def _versions(include: Path) -> dict[str, list[int]]:
    found: dict[str, set[int]] = defaultdict(set)
    for name, version, thread in _TYPED.findall((include / "cudaTypedefs.h").read_text()):
        if not thread:
            found[name].add(int(version))
    return {name: sorted(versions) for name, versions in found.items()}


def _arguments(parameters: str) -> str:
    """The names in a list of parameters."""
    if parameters.strip() in ("", "void"):
        return ""
    return ", ".join(re.findall(r"(\w+)\s*(?:\[\w*\])?\s*(?:,|$)", parameters))


def write(include: Path, compiler: str, folder: Path) -> None:
    """Writes what the library's sources include."""
    every = functions(include, compiler)
    names = {one.name for one in every}
    refusals = "".join(
        f'extern "C" __attribute__((weak, visibility("default"))) int {one.name}() '
        f'{{ return gpuless_refuse("{one.name}"); }}\n'
        for one in every
    )
    (folder / "refusals.cpp").write_text('extern "C" int gpuless_refuse(const char*);\n' + refusals)
    own = "".join(
        f"CUresult {one.name}({one.parameters})\n"
        f"{{\n    const gpuless::PerThread scope(__builtin_return_address(0));\n"
        f"    return {one.name[:-5]}({_arguments(one.parameters)});\n}}\n"
        for one in every
        if one.per_thread and one.name[:-5] in names
    )
    (folder / "per_thread.cpp").write_text('#define __CUDA_API_VERSION_INTERNAL\n#include "driver.h"\n' + own)
    rows = _rows(every, include)
    used = sorted({name for row in rows for name in row[2:] if name})
    declared = "".join(
        f'extern "C" __attribute__((visibility("default"))) char at_{n}[] __asm__("{n}");\n' for n in used
    )
    (folder / "declared.inc").write_text(declared)
    table = (
        f'{{"{base}", {version}, at_{name}, {f"at_{own}" if own else "nullptr"}}},\n'
        for base, version, name, own in rows
    )
    (folder / "functions.inc").write_text("".join(table))
    errors = dict(reversed(pair) for pair in _ERROR.findall((include / "cuda.h").read_text()))
    (folder / "errors.inc").write_text(
        "".join(f'{{{number}, "{name}", "{_text(int(number), name)}"}},\n' for number, name in errors.items())
    )


def _text(number: int, name: str) -> str:
    return _TEXTS.get(number) or name.removeprefix("CUDA_ERROR_").lower().replace("_", " ")


def _rows(every: list[Function], include: Path) -> list[tuple[str, int, str, str]]:
    """Name, version, exported name and the thread's variant."""
    versions, names = _versions(include), {one.name for one in every}
    macros = dict(_MACRO.findall((include / "cuda.h").read_text()))
    plain: dict[str, list[Function]] = defaultdict(list)
    for one in every:
        if not one.per_thread:
            plain[one.base].append(one)
    rows = []
    for base, known in versions.items():
        exported = [one.name for one in sorted(plain.get(base, []), key=lambda one: one.version)]
        if len(known) > len(exported) and (newest := macros.get(base)) and newest not in exported:
            exported.append(newest)
        for version, name in zip(known[-len(exported) :] if exported else [], exported[-len(known) :], strict=True):
            own = next((name + end for end in ("_ptsz", "_ptds") if name + end in names), "")
            rows.append((base, version, name, own))
    return rows
