"""Compiles the libraries that stand in for NVIDIA's over the driver: the runtime, cuBLAS, cuBLASLt and cuRAND."""

from __future__ import annotations

import hashlib
import os
import re
import shutil
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from pathlib import Path

from gpuless.base.errors import UserError
from gpuless.compile import toolchain

HERE = Path(__file__).parent
MATH = HERE.parent / "math"
_FLAGS = ("-std=c++20", "-O2", "-fPIC", "-shared", "-fvisibility=hidden", "-ffp-contract=off", "-pthread", "-w")
_DECLARED = re.compile(r"CUDARTAPI\s+(cuda[A-Z]\w*)\s*\(")
_HEADERS = ("cuda_runtime_api.h", "cuda_gl_interop.h", "cuda_egl_interop.h", "cuda_vdpau_interop.h")


@dataclass(frozen=True)
class Library:
    """One library: its files, what programs link, and the names that it gives them."""

    soname: str
    sources: tuple[str, ...]
    exported: str  # patterns of names
    defines: tuple[str, ...] = ()
    version: str = ""  # of the names
    declared: tuple[str, ...] = ()  # headers whose functions refuse where they are not there
    needs: tuple[str, ...] = ("libcuda.so.1",)  # whose functions are found by it, too

    @property
    def linked(self) -> str:
        """The name without its version, for a linker."""
        return self.soname.split(".so")[0] + ".so"


_PARTS = ("devices", "errors", "forwarded", "graphs", "memory", "registered", "textures")
_RUNTIME = tuple(f"runtime/{part}.cpp" for part in _PARTS)
_CUBLAS = ("math/cublas.cpp", "math/cublas_vectors.cpp")
LIBRARIES = (
    Library("libcudart.so.13", _RUNTIME, "cuda*; __cuda*;", ("CUDART=13",), "libcudart.so.13", _HEADERS),
    Library("libcudart.so.12", _RUNTIME, "cuda*; __cuda*;", ("CUDART=12",), "libcudart.so.12", _HEADERS),
    Library("libcublas.so.13", _CUBLAS, "cublas*;", needs=("libcuda.so.1", "libcublasLt.so.13")),
    Library("libcublasLt.so.13", ("math/cublaslt.cpp",), "cublasLt*;"),
    Library("libcurand.so.10", ("math/curand.cpp",), "curand*;"),
)  # fmt: skip


def folder(include: Sequence[Path]) -> Path:
    """The folder with all of them. They need libcuda.so.1 when they are loaded."""
    if (path := shipped(include)).is_dir():
        return path
    flags = toolchain.machine_flags()
    key = toolchain.key(_digest(include), list(map(str, include)))
    return toolchain.cached_folder(f"runtime-{key}", lambda target: make(target, include, flags))


def shipped(include: Sequence[Path]) -> Path:
    """Where a wheel has the folder, if it has one."""
    return HERE / f"built-{_digest(include)[:16]}"


def _digest(include: Sequence[Path]) -> str:
    texts = [path.read_bytes() for place in (HERE, MATH) for path in sorted(place.iterdir()) if path.is_file()]
    headers = [path.read_bytes() for place in include[:1] for path in sorted(place.rglob("*.h"))]
    return hashlib.sha256(b"\0".join([*texts, *headers])).hexdigest()


def make(target: Path, include: Sequence[Path], flags: Sequence[str]) -> None:
    """Compiles them."""
    stubs = target / "stubs"
    stubs.mkdir()
    for name in {name for library in LIBRARIES for name in library.needs}:
        _run(["-shared", f"-Wl,-soname,{name}", "-x", "c++", "/dev/null", "-o", name], stubs)
    with ThreadPoolExecutor(os.cpu_count()) as pool:
        list(pool.map(lambda library: _compile(library, target, include, flags), LIBRARIES))
    shutil.rmtree(stubs)


def _compile(library: Library, target: Path, include: Sequence[Path], more: Sequence[str]) -> None:
    version = target / f"{library.soname}.map"
    version.write_text(f"{library.version or library.soname} {{ global: {library.exported} local: *; }};\n")
    flags = [*_FLAGS, *more, *(f"-D{name}" for name in library.defines)]
    flags += [word for path in include for word in ("-isystem", str(path))]
    link = [f"-Wl,-soname,{library.soname}", f"-Wl,--version-script={version}"]
    link += ["-Wl,--no-as-needed", "-Lstubs", *(f"-l:{name}" for name in library.needs)]
    sources = [str(HERE.parent / name) for name in library.sources]
    refusals = target / f"{library.soname}.cpp"
    refusals.write_text(_refusals(library.declared, include) if library.declared else "")
    sources.append(str(refusals))
    _run([*flags, *sources, *link, "-Wl,-rpath,$ORIGIN", "-Wl,-z,lazy", "-o", library.soname], target)
    for made in (version, refusals):
        made.unlink()


def _refusals(headers: Sequence[str], include: Sequence[Path]) -> str:
    """Every function that the headers declare, as a weak one that refuses: what is defined here takes its place."""
    texts = [path.read_text() for place in include for name in headers if (path := place / name).is_file()]
    return "namespace cudart { int refused(const char*, void*); }\n" + "".join(
        f'extern "C" __attribute__((weak, visibility("default"))) int {name}()\n'
        f'{{ return cudart::refused("{name}", __builtin_return_address(0)); }}\n'
        for name in sorted({name for text in texts for name in _DECLARED.findall(text)})
    )


def _run(command: list[str], folder: Path) -> None:
    result = toolchain.run(command, folder)
    if result.returncode:
        raise UserError(f"The libraries of the GPU in software do not compile: {result.stderr.strip()[:1500]}")
