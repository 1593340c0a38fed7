"""A folder like that of a CUDA toolkit: NVIDIA's compiler and headers as their wheels have them, and our libraries.

nvcc, make and CMake find in it what they expect: bin, include, nvvm, lib64. It is made of symbolic links, once for the
wheels and libraries that are installed, in the disk cache.
"""

from __future__ import annotations

import functools
import hashlib
import importlib.metadata
import importlib.util
import json
import shlex
import shutil
import stat
import subprocess
import sys
import tempfile
from collections.abc import Sequence
from pathlib import Path

from gpuless.base import disk_cache
from gpuless.base.errors import UserError
from gpuless.compile import toolchain
from gpuless.driver import library
from gpuless.driver.runtime import building

HERE = Path(__file__).parent
STANDARD = HERE.parent / "compile/standard"  # headers of our own
_WHEELS = {
    "nvidia-cuda-nvcc": "bin/nvcc",
    "nvidia-nvvm": "nvvm/bin/cicc",
    "nvidia-cuda-crt": "include/crt/host_runtime.h",
    "nvidia-cuda-cccl": "include/cccl/cuda/std/version",
    "nvidia-cuda-runtime": "include/cuda_runtime.h",
}  # and a file that each has
_TOOLS = ("cudafe++", "ptxas", "fatbinary", "nvlink", "bin2c", "__nvcc_device_query", "crt")
_COMPILERS = ("libnvrtc.so", "libnvrtc-builtins.so", "libnvJitLink.so")  # as libraries, which programs may load
_PROFILE = """TOP = $(_HERE_)/..
CICC_PATH = $(TOP)/nvvm/bin
NVVMIR_LIBRARY_DIR = $(TOP)/nvvm/libdevice
LD_LIBRARY_PATH += $(TOP)/lib64:
PATH += $(CICC_PATH):$(_HERE_):
INCLUDES += "-I$(TOP)/include" $(_SPACE_)
SYSTEM_INCLUDES += "-isystem" "$(TOP)/include/cccl" $(_SPACE_)
LIBRARIES =+ $(_SPACE_) "-L$(TOP)/lib64/stubs" "-L$(TOP)/lib64"
CUDAFE_FLAGS +=
PTXAS_FLAGS +=
"""


@functools.cache
def _roots() -> tuple[Path, ...]:
    """The folders of CUDA 13's wheels."""
    found = importlib.util.find_spec("nvidia")
    places = [*(found.submodule_search_locations or [])] if found else []
    return tuple(path for place in places if (path := Path(place) / "cu13").is_dir())


def _file(name: str) -> Path | None:
    return next((root / name for root in _roots() if (root / name).exists()), None)


def runtime_folders() -> list[Path]:
    """Where NVIDIA's own libraries for programs are, of wheels or of an installed toolkit."""
    places = [*(root / "lib" for root in _roots()), Path("/usr/local/cuda/lib64")]
    return [place for place in places if any(place.glob("libcudart.so.*"))]


def require_compiler() -> None:
    """NVIDIA's nvcc and g++, or an error that says what to install."""
    lacking = [wheel for wheel, name in _WHEELS.items() if _file(name) is None]
    if lacking:
        raise UserError(f"CUDA's compiler is not whole: pip install {' '.join(lacking)} (or gpuless[nvcc]).")
    toolchain.require()


def folder() -> Path:
    """The toolkit's folder; without nvcc's wheels it has no compiler."""
    return _folder(library.folder())


@functools.cache
def _folder(driver: Path) -> Path:
    versions = [(wheel, _version(wheel)) for wheel in _WHEELS]
    made = (building.folder(_include()), driver)
    parts = (versions, made, _roots(), sys.executable, _digest(), toolchain.key())
    key = hashlib.sha256(repr(parts).encode()).hexdigest()[:24]
    where = disk_cache.folder("toolkits")
    path = where / key
    if path.is_dir():
        return path
    with disk_cache.alone(where, key), tempfile.TemporaryDirectory(dir=where, prefix=".") as work:
        if not path.is_dir():
            fresh = Path(work) / key
            _fill(fresh)
            fresh.replace(path)
    return path


def is_made() -> bool:
    """Whether some toolkit is there: else the GPU in software is compiled first."""
    return any(path.is_dir() for path in disk_cache.folder("toolkits").iterdir())


def _version(wheel: str) -> str:
    try:
        return importlib.metadata.version(wheel)
    except importlib.metadata.PackageNotFoundError:  # files without their record
        return "?"


def _digest() -> str:
    """Of what is written into it."""
    digest = hashlib.sha256()
    for path in (Path(__file__), HERE / "nvcc_options.py", *sorted((HERE / "include").rglob("*.h"))):
        digest.update(path.read_bytes())
    return digest.hexdigest()


def ship(flags: Sequence[str]) -> None:
    """Compiles the libraries for a wheel, into this package's own folders."""
    library.ship(flags)
    target = building.shipped(_include())
    target.mkdir()
    building.make(target, _include(), flags)


def _include() -> list[Path]:
    """The folders of headers, ours first."""
    return [HERE / "include", *(root / "include" for root in _roots()), *(root / "include/cccl" for root in _roots())]


def _fill(target: Path) -> None:
    for name in ("bin", "compiler", "include", "lib64/stubs"):
        (target / name).mkdir(parents=True)
    _link_headers(target / "include")
    (target / "lib").symlink_to("lib64")
    (target / "version.json").write_text(
        json.dumps({"cuda": {"name": "CUDA SDK", "version": _version("nvidia-cuda-nvcc")}})
    )
    _fill_libraries(target)
    wrapper = target / "bin/nvcc"
    words = (sys.executable, "-IS", str(HERE / "nvcc_options.py"))
    said = "gpuless: NVIDIA's compiler is not installed: pip install 'gpuless[nvcc]'."
    call = "exec " + shlex.join(words) + ' "$here/.." "$@"' if _link_compiler(target) else f'echo "{said}" >&2; exit 1'
    wrapper.write_text("#!/bin/sh\nhere=${0%/*}\n" + call + "\n")
    wrapper.chmod(wrapper.stat().st_mode | stat.S_IXUSR | stat.S_IXGRP | stat.S_IXOTH)


def _link_compiler(target: Path) -> bool:
    """NVIDIA's nvcc with what it calls; false if it is not installed: programs that are compiled need none."""
    nvcc, nvvm = _file("bin/nvcc"), _file("nvvm/bin/cicc")
    if nvcc is None or nvvm is None:
        return False
    for name in ("nvcc", *_TOOLS):
        (target / "compiler" / name).symlink_to(nvcc.parent / name)
    for name in _TOOLS:
        (target / "bin" / name).symlink_to(nvcc.parent / name)
    (target / "compiler/nvcc.profile").write_text(_PROFILE)
    (target / "nvvm/lib64").mkdir(parents=True)
    for part in nvvm.parents[1].iterdir():
        if part.name != "lib64":
            (target / "nvvm" / part.name).symlink_to(part)
    if optimizer := _file("lib/libnvvm.so.4"):  # by which the linker optimises
        (target / "nvvm/lib64/libnvvm.so").symlink_to(optimizer)
    _make_device_library(target)
    return True


def _make_device_library(target: Path) -> None:
    """In place of that file an archive with code for the device, as the linker's optimiser wants one."""
    empty = target / "lib64/empty.cu"
    empty.write_text("")
    command = [str(target / "compiler/nvcc"), "-rdc=true", "-lib", str(empty)]
    if toolchain.available() is None:
        subprocess.run([*command, "-o", str(target / "lib64/libcudadevrt.a")], capture_output=True, check=False)
    empty.unlink()


def _link_headers(target: Path) -> None:
    ours = HERE / "include"
    (target / "curand_kernel.h").symlink_to(STANDARD / "curand_kernel.h")
    for place in (ours, *(root / "include" for root in _roots())):
        for path in sorted(place.iterdir()) if place.is_dir() else ():
            if not (target / path.name).exists():
                (target / path.name).symlink_to(path)


def _fill_libraries(target: Path) -> None:
    """Our libraries; the static ones that linkers ask for stand for the shared ones."""
    lib = target / "lib64"
    for path in library.folder().glob("*.so*"):
        if path.name != "libcuda.so":  # which is for programs that load it; linkers want the library itself
            (lib / path.name).symlink_to(path)
    for path in building.folder(_include()).glob("*.so*"):  # linkers look for what these need beside the file itself
        shutil.copy(path, lib / path.name)
    for one in building.LIBRARIES:
        if not (lib / one.linked).exists():
            (lib / one.linked).symlink_to(one.soname)
    driver = lib / "libcuda.so.1"
    for name in ("libcuda.so", "stubs/libcuda.so"):
        (lib / name).symlink_to(driver.resolve())
    (lib / "libcudart_static.a").write_text("INPUT(libcudart.so)\n")  # which a linker finds beside it, -L or not
    # NVIDIA's library for kernels that launch kernels is not there; builds that name it need a file.
    (lib / "libcudadevrt.a").write_bytes(b"!<arch>\n")

    for path in (path for root in _roots() for path in sorted((root / "lib").glob("*.so.*"))):
        if path.name.startswith(_COMPILERS) and not (lib / path.name).exists():
            (lib / path.name).symlink_to(path)  # one looks for the next beside itself
            (lib / f"{path.name.split('.so')[0]}.so").symlink_to(path)


def compiler() -> Path:
    """nvcc, which calls g++ for the host's code."""
    require_compiler()
    return folder() / "bin/nvcc"


def remove() -> None:
    """Removes all that were made."""
    shutil.rmtree(disk_cache.folder("toolkits"))
