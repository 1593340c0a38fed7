"""Compiles the libraries that stand in for NVIDIA's: the runtime, cuBLAS, cuBLASLt and cuRAND, over the driver in this folder."""

from __future__ import annotations

import functools
import hashlib
import re
import subprocess
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from gpuless.base.errors import UserError
from gpuless.compile import toolchain

HERE = Path(__file__).parent
_FLAGS = ("-std=c++20", "-O2", "-fPIC", "-shared", "-fvisibility=hidden", "-ffp-contract=off", "-pthread", "-w")
_DECLARED = re.compile(r"\b((?:cuda|cublas|curand)[A-Z]\w*)\s*\(")


@dataclass(frozen=True)
class Library:
    """One library: its files, what programs link, and the names that it gives them."""

    soname: str
    sources: tuple[str, ...]
    exported: str  # patterns of names
    defines: tuple[str, ...] = ()
    headers: tuple[str, ...] = ()  # whose other functions refuse by name
    status: int = 801  # what these return: "not supported"
    version: str = ""  # of the names

    @property
    def linked(self) -> str:
        """The name without its version, for a linker."""
        return self.soname.split(".so")[0] + ".so"


_RUNTIME = tuple(f"{part}.cpp" for part in ("devices", "errors", "forwarded", "graphs", "memory", "registered", "textures"))
LIBRARIES = (
    Library("libcudart.so.13", _RUNTIME, "cuda*; __cuda*;", ("CUDART=13",), ("cuda_runtime_api.h",), version="libcudart.so.13"),
    Library("libcudart.so.12", _RUNTIME, "cuda*; __cuda*;", ("CUDART=12",), ("cuda_runtime_api.h",), version="libcudart.so.12"),
)  # fmt: skip


def build(folder: Path, include: Sequence[Path], libcuda: Path) -> None:
    """Compiles all of them into a folder, beside a name for linkers."""
    for library in LIBRARIES:
        _compile(library, folder, include, libcuda)
        if not (folder / library.linked).exists():
            (folder / library.linked).symlink_to(library.soname)


def _compile(library: Library, folder: Path, include: Sequence[Path], libcuda: Path) -> None:
    version = folder / f"{library.soname}.map"
    version.write_text(f"{library.version} {{ global: {library.exported} local: *; }};\n")
    flags = [*_FLAGS, *toolchain.machine_flags(), *(f"-D{name}" for name in library.defines)]
    flags += [word for path in include for word in ("-isystem", str(path))]
    link = [f"-Wl,-soname,{library.soname}", f"-Wl,--version-script={version}", str(libcuda), "-Wl,-rpath,$ORIGIN", "-Wl,-z,lazy"]
    target = folder / library.soname
    sources = [str(HERE / name) for name in library.sources]
    _run([*flags, *sources, *link, "-o", str(target)], folder)
    version.unlink()


def _run(command: list[str], folder: Path) -> None:
    result = toolchain.run(command, folder)
    if result.returncode:
        raise UserError(f"The libraries of the GPU in software do not compile: {result.stderr.strip()[:1500]}")


def missing(library: Library, include: Path, folder: Path) -> list[str]:
    """The functions that its headers declare and the library lacks."""
    listed = subprocess.run(["nm", "-D", "--defined-only", str(folder / library.soname)], capture_output=True, text=True)
    have = {line.split()[-1].split("@")[0] for line in listed.stdout.splitlines()}
    declared = {name for header in library.headers for name in _DECLARED.findall((include / header).read_text())}
    return sorted(declared - have)


@functools.cache
def digest() -> str:
    texts = (path.read_bytes() for path in sorted(HERE.iterdir()) if path.is_file())
    return hashlib.sha256(b"\0".join(texts)).hexdigest()
