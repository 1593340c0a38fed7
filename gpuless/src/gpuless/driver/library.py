"""Compiles libcuda.so.1 at its first use, or finds the one that a wheel brings."""

from __future__ import annotations

import functools
import hashlib
import importlib.util
import os
import shutil
import sys
from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

from gpuless import machine
from gpuless.base import disk_cache
from gpuless.base.errors import UserError
from gpuless.compile import elf, headers, nvrtc, sass, toolchain
from gpuless.driver import interface
from gpuless.facts import gpus
from gpuless.facts.limits import limits
from gpuless.machine import compiling

HERE = Path(__file__).parent
MACHINE = HERE.parent / "machine"
FLAGS = (
    *("-std=gnu++17", "-O2", "-fPIC", "-fvisibility=hidden", "-ffp-contract=off", "-fno-strict-aliasing", "-fwrapv"),
    *(
        "-fno-gnu-unique",
        "-pthread",
        "-Wall",
        "-Wextra",
        "-Wno-deprecated-declarations",
        "-Wno-missing-field-initializers",
    ),
)


def include() -> Path:
    """The folder of NVIDIA's cuda.h: of its wheel, whatever toolkit the environment names."""
    of_nvidia = importlib.util.find_spec("nvidia")
    roots = [Path(root) for root in (of_nvidia.submodule_search_locations or [])] if of_nvidia else []
    wheels = (root / "cu13/include" for root in roots)
    found = next((folder for folder in wheels if (folder / "cuda.h").is_file()), None) or headers.types(nvrtc.version())
    if found is None or not (found / "cuda.h").is_file():
        raise UserError("CUDA's header cuda.h is not found: pip install nvidia-cuda-runtime.")
    return found


def _rows() -> str:
    """gpus.toml as C++, the usual GPU first."""
    every = sorted(gpus.rows().values(), key=lambda gpu: gpu.key != gpus.USUAL)
    return "".join(map(_row, every))


def _row(gpu: gpus.Gpu) -> str:
    of = limits(gpu.arch)
    card = [gpu.multiprocessors, gpu.memory_gib, gpu.clock_mhz, gpu.memory_clock_mhz, gpu.bus_bits, gpu.l2_mib]
    each = [of.shared_sm >> 10, of.shared_reserved >> 10, of.threads_sm, of.blocks_sm]
    numbers = [*divmod(int(of.arch.removeprefix("sm_")), 10), *card, *each]
    return f'{{"{gpu.key}", "{gpu.name}", {", ".join(map(str, numbers))}}},\n'


def _version() -> str:
    """Of what writes module files."""
    texts = (Path(str(part.__file__)).read_bytes() for part in (elf, sass, machine))
    own = ((HERE / name).read_bytes() for name in ("modules.py", "images.py"))
    return hashlib.sha256(b"".join([*texts, *own])).hexdigest()[:12]


def paths() -> str:
    """Where the loader finds this package and what it imports: not the present folder, which would be compiled in."""
    own = Path(__file__).resolve().parents[2]
    return os.pathsep.join(dict.fromkeys([str(own), *(path for path in sys.path if path.endswith("-packages"))]))


def _digest() -> str:
    """Of the library's own files, and of how they are put together."""
    own = (p for p in sorted(HERE.iterdir()) if p.suffix in (".cpp", ".h") or p.stem in ("interface", "library"))
    return hashlib.sha256(b"".join(path.read_bytes() for path in own)).hexdigest()


def shipped() -> Path:
    """Where a wheel has the folder, if it has one."""
    parts = (_digest(), compiling.digest(), _rows(), _version())
    return HERE / f"built-{hashlib.sha256(repr(parts).encode()).hexdigest()[:16]}"


def folder() -> Path:
    """The folder with libcuda.so.1."""
    return _folder(_rows())


@functools.cache
def _folder(_: str) -> Path:
    compiled = machine.compiled()
    if compiled == compiling.shipped() and (path := shipped()).is_dir():
        return path
    key, make = _recipe(compiled, [*FLAGS, *toolchain.machine_flags()], sys.executable, paths())
    return toolchain.cached_folder(f"driver-{key}", make)


def ship(flags: Sequence[str]) -> None:
    """Compiles it for a wheel: where that is installed, the environment names the Python."""
    _, make = _recipe(compiling.shipped(), [*FLAGS, *flags], "python3", "")
    shipped().mkdir()
    make(shipped())


def _recipe(
    compiled: Path, flags: Sequence[str], python: str, path: str
) -> tuple[str, Callable[[Path], None]]:
    rows, version, where = _rows(), _version(), include()
    named = {"GPULESS_DEFAULT_PYTHON": python, "GPULESS_DEFAULT_PATH": path, "GPULESS_VERSION": version}

    def make(target: Path) -> None:
        shutil.copy(compiled, target / "libgpuless_machine.so")
        work = target / "work"
        work.mkdir()
        (work / "gpus.inc").write_text(rows)
        interface.write(where, toolchain.require(), work)
        sources = [*sorted(HERE.glob("*.cpp")), work / "refusals.cpp", work / "per_thread.cpp"]
        own = [f"-I{work}", f"-I{HERE}", f"-I{MACHINE}", "-isystem", str(where)]

        kept = disk_cache.folder("driver-objects")  # an object is compiled anew where its file or a header has changed
        every = (path for place in (HERE, MACHINE, work) for path in sorted(place.iterdir()))
        read = [path.read_bytes() for path in every if path.suffix in (".h", ".inc", ".def")]

        def compile_one(source: Path) -> str:
            text = source.read_bytes()
            defines = [f'-D{name}="{value}"' for name, value in named.items() if name.encode() in text]
            key = toolchain.key(flags, defines, str(where), hashlib.sha256(b"\0".join([text, *read])).hexdigest())
            made = work / f"{source.stem}.o"
            if (kept / f"{key}.o").is_file():
                shutil.copy(kept / f"{key}.o", made)
                return ""
            done = toolchain.run([*flags, *defines, *own, "-c", str(source), "-o", made.name], work)
            if done.returncode:
                return done.stderr.strip()
            shutil.copy(made, kept / f".{key}-{os.getpid()}")
            (kept / f".{key}-{os.getpid()}").replace(kept / f"{key}.o")
            return ""

        with ThreadPoolExecutor(os.cpu_count()) as pool:
            told = [*filter(None, pool.map(compile_one, sources))]
        if told:
            raise UserError(f"libcuda.so.1 does not compile: {told[0][:1500]}")
        objects = [str(work / f"{source.stem}.o") for source in sources]

        def link(name: str, *parts: str) -> None:
            how = ["-shared", f"-Wl,-soname,{name}", "-Wl,--no-as-needed", f"-L{target}", "-Wl,-rpath,$ORIGIN"]
            done = toolchain.run([*how, *parts, "-o", str(target / name)], work)
            if done.returncode:
                raise UserError(f"{name} does not link: {done.stderr.strip()[:1500]}")

        link("libcuda.so.1", *flags[len(FLAGS) :], *objects, "-l:libgpuless_machine.so", "-ldl", "-lpthread")
        link("libcuda.so", "-l:libcuda.so.1")  # Numba's first choice, which on a machine with a GPU would be NVIDIA's
        shutil.rmtree(work)

    return toolchain.key(flags, named, str(compiled), rows, str(where), version, _digest()), make


if __name__ == "__main__":
    print(folder())
