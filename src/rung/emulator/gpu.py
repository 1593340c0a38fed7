"""Builds a CUDA program for a GPU without nvcc: g++ for the host's part, in which each kernel's body becomes a stub,
NVRTC for the kernels, and CUDA's runtime library behind the host functions that the emulator declares
(gpu/runtime.cpp)."""

from __future__ import annotations

import importlib.util
import re
import shutil
import subprocess
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import NamedTuple

from rung.cuda import headers, host_code, nvrtc
from rung.cuda.cubin_cache import Cubin
from rung.cuda.launch import Build
from rung.cuda.source import code_only, kernels_in
from rung.emulator import executable, toolchain
from rung.errors import RungError

HERE = toolchain.HERE / "gpu"
_DECLARED = re.compile(r"^RUNG_HOST ((?:cudaError_t|const char\*) (\w+)\(([^;]*)\));", re.MULTILINE)
_QUOTED = re.compile(r'^[ \t]*#[ \t]*include[ \t]*"([^"\n]+)".*$', re.MULTILINE)
_VARIABLE = re.compile(r"__(?:device|constant)__\s[^;{}()=]*?\b(\w+)\s*(?:\[[^;={]*\]\s*)*(?==|;|\{)")
_MANAGED = re.compile(_VARIABLE.pattern.replace("device|constant", "managed"))
_RUNTIME = re.compile(r"\b(cuda[A-Z]\w*)\s*\(")
_ALIGNED = re.compile(r"\b(?:__align__|alignas|__attribute__|__launch_bounds__)\s*\((?:[^()]|\([^()]*\))*\)")


def library() -> Path:
    """CUDA's runtime library under the emulator's declarations, compiled once."""
    runtime = toolchain.runtime_library()
    flags = ("-std=gnu++17", "-O1", *executable.COMMON, *toolchain.machine_flags())
    source = (HERE / "runtime.cpp").read_text()
    api = (executable.HOST / "include/rung_host/api.h").read_text()
    text = source + "\n".join(_forwards(api, source)) + "\n"

    def make(target: Path) -> None:
        shutil.copy(runtime, target / "librung_runtime.so")
        (target / "gpu.cpp").write_text(text.replace('"../', f'"{toolchain.HERE}/'))
        command = [
            *flags,
            *executable.headers(),
            "-shared",
            "-Wl,-soname,librung_gpu.so",
            "gpu.cpp",
            "-o",
            "librung_gpu.so",
        ]
        executable.made([*command, "-L.", "-lrung_runtime", "-Wl,-rpath,$ORIGIN", "-ldl"], target)

    key = toolchain.key(flags, text, runtime.name, folders=(toolchain.INCLUDE, toolchain.RUNTIME, executable.HOST))
    return toolchain.cached_folder(f"gpu-{key}", make) / "librung_gpu.so"


def _forwards(api: str, source: str) -> Iterator[str]:
    """Definitions of the declared functions that the source has not: the same call of the library's function."""
    for whole, name, listed in _DECLARED.findall(api):
        if re.search(rf"^cudaError_t {name}\(", source, re.MULTILINE):
            continue
        parts = [re.sub(r"\s*=.*", "", part.strip(), flags=re.DOTALL) for part in listed.split(",") if part.strip()]
        typed, names = [], []
        for number, part in enumerate(parts):
            if part.startswith("RungSite"):
                typed.append("RungSite")
                continue
            named = re.search(r"[\w*] ?\b(\w+)$", part)
            names.append(named[1] if named and part not in ("int", "unsigned") else f"a{number}")
            typed.append(part if names[-1] != f"a{number}" else f"{part} a{number}")
        given = "".join(f", {word}" for word in names)
        result = whole.split(f" {name}(")[0]
        yield f'{result} {name}({", ".join(typed)}) {{ return real<{result}>("{name}"{given}); }}'


def cuda_runtime() -> str:
    """The path of libcudart, or its name for the loader to look for."""
    spec = importlib.util.find_spec("nvidia")
    roots = [Path(folder).parent for folder in headers.find(nvrtc.version()).folders]
    roots += [Path(place) / "cu13" for place in (spec.submodule_search_locations if spec else None) or ()]
    for root in [*roots, Path("/usr/local/cuda")]:
        for folder in ("lib", "lib64"):
            if found := sorted((root / folder).glob("libcudart.so.*"), key=lambda path: len(path.name)):
                return str(found[0])
    return "libcudart.so.13"


def architecture() -> str:
    """The GPU's, as its driver says."""
    from cuda.bindings import driver

    names = driver.CUdevice_attribute
    wanted = (names.CU_DEVICE_ATTRIBUTE_COMPUTE_CAPABILITY_MAJOR, names.CU_DEVICE_ATTRIBUTE_COMPUTE_CAPABILITY_MINOR)
    try:
        (failed,), (_, first) = driver.cuInit(0), driver.cuDeviceGet(0)
        found = [] if int(failed) else [driver.cuDeviceGetAttribute(name, first) for name in wanted]
    except RuntimeError:  # there is no driver
        found = []
    if not found or any(int(error) for error, _ in found):
        raise RungError("--device cuda: no CUDA device was found; without --device the program runs on the emulator.")
    return "sm_" + "".join(str(int(value)) for _, value in found)


class Symbol(NamedTuple):
    """A kernel or a variable: its address and size in the program, in hexadecimal digits, and its name in the cubin."""

    kind: str
    address: str
    size: str
    name: str
    expression: str


def cubins(
    sources: Sequence[Path], objects: Sequence[Path], program: Path, options: executable.Options, arch: str
) -> Path:
    """Compiles each file's kernels; a list of the cubins, with the program's addresses of their symbols."""
    lines = []
    for _, cubin, symbols in compiled(sources, objects, program, options, arch):
        lines.append(f"cubin {cubin.path}")
        lines += [" ".join(symbol[:4]) for symbol in symbols]
    listed = program.with_name(f"{program.name}.cubins")
    listed.write_text("\n".join(lines) + "\n")
    return listed


def compiled(
    sources: Sequence[Path], objects: Sequence[Path], program: Path, options: executable.Options, arch: str,
    *, emulated: bool = False,
) -> Iterator[tuple[Path, Cubin, list[Symbol]]]:
    """The cubin of each file with kernels; `emulated`: the host library is the emulator's."""  # fmt: skip
    placed = {name: (address, size) for address, size, _, name in _symbols(program)}
    where = "when its kernels are counted" if emulated else "with --device cuda"
    for source, made in zip(sources, objects, strict=True):
        if source.suffix not in executable.CUDA_SUFFIXES:
            continue
        whole = _with_headers(source, options.include)
        if not emulated and (calls := re.search(r"#\s*include\s*<(cu(?:blas|rand|fft|sparse|solver|dnn))", whole)):
            raise RungError(f"{source}: {calls[1]} is not linked {where}.")
        text = host_code.device_part(whole)
        code = code_only(text)
        for name in ("thrust", "cub") if emulated else ():  # what only the host's part calls runs there
            if f"{name}::" not in code:
                whole = re.sub(rf"^[ \t]*#[ \t]*include[ \t]*<{name}/.*$", "", whole, flags=re.MULTILINE)
        if not emulated and "__managed__" in code:
            raise RungError(f"{source}: __managed__ variables are refused {where}: use cudaMallocManaged.")
        kernels, variables = set(kernels_in(text)), set(_VARIABLE.findall(_ALIGNED.sub("", code)))
        managed = set(_MANAGED.findall(_ALIGNED.sub("", code)))  # their names are no expressions for NVRTC
        wanted: dict[str, tuple[str, str]] = {}
        for _, _, kind, mangled in _symbols(made):
            plain = _demangled(mangled)
            expression = _expression(plain)
            last = re.sub(r"<.*", "", expression, flags=re.DOTALL).rpartition("::")[2]
            if last in kernels and kind in "tTwWuiI":
                if "{lambda" in plain:
                    raise RungError(f"{source}: kernel '{last}' takes a lambda, which is refused {where}.")
                wanted[mangled] = ("kernel", expression)
            elif expression in variables | managed and kind in "bBdDgGsSuVrR":
                wanted[mangled] = ("variable", mangled if expression in managed else f"&{expression}")
        if not wanted or (emulated and all(kind != "kernel" for kind, _ in wanted.values())):
            continue
        expressions = [expression for _, expression in wanted.values()]
        names = tuple(name for name in expressions if expressions.count(name) == 1 and name not in managed)
        # an overload has its mangled name
        options_of = (f"--std={options.standard}", "--lineinfo")
        defines = tuple((name, value or "1") for name, _, value in (word.partition("=") for word in options.defines))
        needed = frozenset(word for name in names for word in re.findall(r"[A-Za-z_]\w*", name))
        text = host_code.device_part(whole, needed)
        absent = sorted(set(_RUNTIME.findall(code_only(text))) - _device_runtime())
        declared = "".join(f"template <class... A> __device__ cudaError_t {name}(A...);\n" for name in absent)
        text = f'#include <cuda_device_runtime_api.h>\n{declared}#line 1 "{source}"\n{text}'
        build = Build(text, str(source), names, defines, options_of, include=options.include, arch_specific=True)
        cubin = nvrtc.compile_cubin(build, arch)
        found = ((*placed[mangled], mangled, *of) for mangled, of in wanted.items() if mangled in placed)
        yield source, cubin, [
            Symbol(kind, address, size, cubin.lowered.get(expression, mangled), expression)
            for address, size, mangled, kind, expression in found
        ]


def _device_runtime() -> set[str]:
    """What kernels may call of the runtime. Members of their classes may call the rest, in the host's part."""
    folders = map(Path, headers.find(nvrtc.version()).folders)
    header = next((f / name for f in folders if (f / (name := "cuda_device_runtime_api.h")).is_file()), None)
    declared: list[str] = _RUNTIME.findall(header.read_text(errors="replace")) if header else []
    return set(declared) - {"cudaDeviceSynchronize"}  # of old architectures


def _symbols(path: Path) -> list[tuple[str, str, str, str]]:
    """Address, size, kind and mangled name of what an object or a program defines."""
    done = subprocess.run(["nm", "-S", "--defined-only", str(path)], capture_output=True, text=True, check=True)
    rows = [line.split() for line in done.stdout.splitlines()]
    return [(row[0], row[1], row[2], row[3]) for row in rows if len(row) == 4]


def _demangled(name: str) -> str:
    return subprocess.run(["c++filt", name], capture_output=True, text=True, check=True).stdout.strip()


def _expression(demangled: str) -> str:
    """`void sum<float, 256>(float const*)` as `sum<float, 256>`."""
    depth, start = 0, 0
    text = demangled.replace("(anonymous namespace)::", "")
    for i, letter in enumerate(text):
        depth += (letter == "<") - (letter == ">")
        if letter == " " and not depth:
            start = i + 1
        if letter == "(" and not depth:
            return text[start:i]
    return text


def _with_headers(source: Path, include: Sequence[str], seen: set[Path] | None = None) -> str:
    """The file with the user's own headers in their places, whose host functions NVRTC does not take either."""
    seen = set() if seen is None else seen
    text = source.read_text(errors="replace")

    def put(match: re.Match[str]) -> str:
        places = [source.parent, *map(Path, include)]
        found = next((folder / match[1] for folder in places if (folder / match[1]).is_file()), None)
        if found is None:
            return match[0]
        if found.resolve() in seen:
            return ""
        seen.add(found.resolve())
        line = text.count("\n", 0, match.start()) + 2
        return f'#line 1 "{found}"\n{_with_headers(found, include, seen)}\n#line {line} "{source}"'

    return re.sub(r"^[ \t]*#[ \t]*pragma[ \t]+once.*$", "", _QUOTED.sub(put, text), flags=re.MULTILINE)
