"""What works on this machine, what is missing, and what to do about it: each component is tested by using it."""

from __future__ import annotations

import importlib.util
import platform
import re
import shutil
import subprocess
import tempfile
from collections.abc import Callable, Iterator
from contextlib import nullcontext
from dataclasses import asdict, dataclass
from importlib.metadata import PackageNotFoundError
from importlib.metadata import version as package_version
from typing import Any, Literal

from rung.errors import RungError, first_line, with_extra

State = Literal["works", "missing", "broken"]


@dataclass(frozen=True)
class Finding:
    """One component; "broken" means that rung needs it here, "missing" that it is optional."""

    name: str
    state: State
    detail: str
    mend: str = ""

    def as_json(self) -> dict[str, Any]:
        return asdict(self)


_PROBE = 'extern "C" __global__ void probe(float* x, int n) { if (threadIdx.x < n) x[threadIdx.x] *= 2.0f; }\n'


def examine() -> Iterator[Finding]:
    """Every finding, from Python to the cluster."""
    examined: list[Callable[[], Iterator[Finding]]] = [
        _python, _gpu, _compiler, _launch, _emulator, _triton, _tools, _cluster, _cache,
    ]  # fmt: skip
    for part in examined:
        try:
            yield from part()
        except Exception as problem:  # unforeseen errors are reported, too
            lacking = isinstance(problem, ModuleNotFoundError) and f"pip install {problem.name}."
            yield Finding(part.__name__.strip("_"), "broken", first_line(problem), lacking or "please report this.")


def _python() -> Iterator[Finding]:
    import torch

    yield Finding("Python", "works", f"{platform.python_version()} on {platform.platform(terse=True)}")
    built = f"for CUDA {torch.version.cuda}" if torch.version.cuda else "for the CPU only"
    yield Finding("torch", "works", f"{torch.__version__}, built {built}")


def _gpu() -> Iterator[Finding]:
    import torch

    version = _driver_version()
    if not torch.cuda.is_available():
        if version is None:
            yield Finding("GPU", "missing", "no NVIDIA driver was found", "kernels run on the CPU emulator.")
        elif not torch.version.cuda:
            mend = "install the CUDA build of torch (pytorch.org has the command)."
            yield Finding("GPU", "missing", "there is a driver, but this torch is built for the CPU", mend)
        else:
            mend = "check nvidia-smi, CUDA_VISIBLE_DEVICES and the driver's version."
            yield Finding("GPU", "broken", "there is a driver, but torch finds no device", mend)
        return
    for index in range(torch.cuda.device_count()):
        facts = torch.cuda.get_device_properties(index)
        yield Finding(
            f"GPU {index}",
            "works",
            f"{facts.name}, sm_{facts.major}{facts.minor}, {facts.multi_processor_count} multiprocessors, "
            f"{facts.total_memory / 2**30:.0f} GiB",
        )
    if version:
        yield Finding("driver", "works", f"{_smi_driver()} for CUDA up to {version[0]}.{version[1]}".strip())


def _driver_version() -> tuple[int, int] | None:
    try:
        from cuda.bindings import driver

        error, number = driver.cuDriverGetVersion()
    except (ImportError, RuntimeError, OSError):
        return None
    return None if error or not number else (number // 1000, number % 1000 // 10)


def _smi_driver() -> str:
    return _output("nvidia-smi", "--query-gpu=driver_version", "--format=csv,noheader").partition("\n")[0]


def _compiler() -> Iterator[Finding]:
    from gpuless.compile import headers, nvrtc
    from gpuless.launch import Build

    install = "pip install cuda-bindings nvidia-cuda-nvrtc."
    found = _package("cuda-bindings")
    yield Finding("cuda-bindings", "works" if found else "broken", found or "not installed", "" if found else install)
    try:
        number = nvrtc.version()
    except RungError as problem:
        yield Finding("NVRTC", "broken", str(problem), install)
        return
    driver = _driver_version()
    where = f"{number[0]}.{number[1]}, {_nvrtc_path()}"
    if driver and driver[0] < number[0]:
        mend = f"update the driver, or {with_extra('cuda12')} and remove nvidia-cuda-nvrtc."
        yield Finding("NVRTC", "broken", f"{where}: newer than the driver's CUDA {driver[0]}.{driver[1]}", mend)
    else:
        yield Finding("NVRTC", "works", where)
    found_headers = headers.find(number)
    shown = f"{found_headers.source} {found_headers.version}".strip()
    for header in headers.NEEDED:
        build = Build(f"#include <{header}>\n{_PROBE}", f"probe of {header}", ("probe",), ())
        try:
            nvrtc.compile_fresh(build, "sm_90", found_headers)
            yield Finding(header, "works", shown)
        except RungError as problem:
            mend = (
                "pip install nvidia-cuda-runtime, nvidia-cuda-crt and nvidia-cuda-cccl of NVRTC's version, "
                f"or set {headers.OVERRIDE} to a toolkit's include folder."
            )
            reason = next((x.strip() for x in str(problem).splitlines()[1:]), str(problem))
            yield Finding(header, "broken", f"{shown}: {reason}", mend)


def _nvrtc_path() -> str:
    from cuda.pathfinder import load_nvidia_dynamic_lib

    return str(load_nvidia_dynamic_lib("nvrtc").abs_path)


def _launch() -> Iterator[Finding]:
    import torch

    if not torch.cuda.is_available():
        return
    from gpuless.launch import Build, LaunchConfig
    from rung.cuda.driver import load_module
    from rung.cuda.launcher import synchronize

    x = torch.arange(32, dtype=torch.float32, device="cuda")
    try:
        module = load_module(Build(_PROBE, "probe.cu", ("probe",), ()))
        module.launch("probe", LaunchConfig((1, 1, 1), (32, 1, 1)), [("pointer", x), ("i32", 32)])
        synchronize()
    except RungError as problem:
        yield Finding("a CUDA kernel", "broken", str(problem), "fix what is broken above.")
        return
    right = bool((x.cpu() == 2 * torch.arange(32)).all())
    yield Finding(
        "a CUDA kernel", "works" if right else "broken", "compiled, launched" + (", right" if right else ", wrong")
    )


def _emulator() -> Iterator[Finding]:
    import torch

    has_gpu = torch.cuda.is_available()
    lacking: State = "missing" if has_gpu else "broken"
    import gpuless
    from gpuless.compile import toolchain
    from gpuless.launch import Build, LaunchConfig

    if (problem := gpuless.available()) is not None:
        yield Finding("g++", lacking, problem, "without it no CUDA kernel runs on the CPU.")
        return
    version = ".".join(map(str, toolchain.compiler_version() or ()))
    yield Finding("g++", "works", f"{version}, {toolchain.compiler()}")

    x = torch.arange(32, dtype=torch.float32)
    try:
        module = gpuless.load(Build(_PROBE, "probe.cu", ("probe",), ()))
        module.launch("probe", LaunchConfig((1, 1, 1), (32, 1, 1)), [("pointer", x), ("i32", 32)])
    except RungError as problem:
        yield Finding("CPU emulator", lacking, str(problem), "check that g++ can compile C++17.")
        return
    right = bool((x == 2 * torch.arange(32)).all())
    yield Finding("CPU emulator", "works" if right else lacking, "a kernel ran" + (", right" if right else ", wrong"))


def _triton() -> Iterator[Finding]:
    import torch

    found = _package("triton")
    if not found:
        yield Finding("Triton", "missing", "not installed", "pip install 'rung[triton]' (Linux), for the Triton rungs.")
        return
    yield Finding("Triton", "works", found)
    from rung.cuda import triton
    from rung.operation import LADDERS
    from rung.rungs import python_module

    here = [("a Triton kernel", "cuda")] if torch.cuda.is_available() else []
    places = [("a Triton kernel's machine code", "cpu"), *here]
    for name, device in places:
        try:
            rung = python_module.load(LADDERS / "relu" / "03_triton.py", emulated=device == "cpu")
            x = torch.arange(-20, 20, dtype=torch.float32, device=device)
            out = torch.empty_like(x)
            with triton.enabled() if device == "cpu" else nullcontext():
                rung.run(x, out, N=40, BLOCK=32, NUM_WARPS=4)
            right = bool((out == x.clamp(min=0)).all())
            yield Finding(name, "works" if right else "broken", "a kernel ran" + (", right" if right else ", wrong"))
        except Exception as problem:  # Triton raises many kinds of errors
            yield Finding(name, "broken", first_line(problem), "reinstall Triton; it needs a C compiler, too.")


def _tools() -> Iterator[Finding]:
    from gpuless.compile import sass

    found = sass.disassembler()
    mend = "pip install nvidia-cuda-nvdisasm; for what rung checks and counts without a GPU."
    yield Finding("disassembler", "works" if found else "missing", str(found or "no nvdisasm"), "" if found else mend)
    from rung.profile import ncu

    try:
        path = ncu.find()
    except RungError as problem:
        yield Finding("ncu", "missing", str(problem), "only for `rung profile`.")
    else:
        number = re.search(r"\d+\.\d+[\d.]*", _output(path, "--version"))
        yield Finding("ncu", "works", f"{number.group() if number else ''} {path}".strip())


def _cluster() -> Iterator[Finding]:
    runner = shutil.which("mpirun") or shutil.which("mpiexec") or shutil.which("srun")
    binding = _package("mpi4py")
    if runner and binding:
        yield Finding("MPI", "works", f"mpi4py {binding}, {runner}")
    else:
        lacks = " and ".join(n for n, have in (("mpirun", runner), ("mpi4py", binding)) if not have)
        yield Finding("MPI", "missing", f"no {lacks}", "only for `rung study attention --mpi`.")
    sbatch = shutil.which("sbatch")
    missing = "only for running on a Slurm cluster."
    yield Finding("Slurm", "works" if sbatch else "missing", sbatch or "no sbatch", "" if sbatch else missing)


def _cache() -> Iterator[Finding]:
    from gpuless.base.disk_cache import cache_folder

    folder = cache_folder()
    try:
        folder.mkdir(parents=True, exist_ok=True)
        with tempfile.NamedTemporaryFile(dir=folder):
            pass
        yield Finding("cache", "works", str(folder))
    except OSError as problem:
        reason = problem.strerror or str(problem)
        yield Finding("cache", "broken", f"{folder}: {reason}", "set RUNG_CACHE to a folder that can be written.")


def _package(name: str) -> str:
    try:
        if name in ("triton", "mpi4py") and not importlib.util.find_spec(name):
            return ""
        return package_version(name)
    except PackageNotFoundError:
        return ""


def _output(*command: str) -> str:
    try:
        done = subprocess.run(command, capture_output=True, text=True, timeout=30, check=False)
    except (OSError, subprocess.TimeoutExpired):
        return ""
    return done.stdout.strip()
