"""Programs on a GPU, without nvcc: CUDA's runtime library behind the host functions that the emulator declares
(gpu_runtime.cpp), for objects whose kernels are compiled for that GPU."""

from __future__ import annotations

import importlib.util
import re
from collections.abc import Iterator
from pathlib import Path

from gpuless.base.errors import UserError
from gpuless.compile import headers, nvrtc, toolchain
from gpuless.program import executable

_DECLARED = re.compile(r"^RUNG_HOST ((?:cudaError_t|const char\*) (\w+)\(([^;]*)\));", re.MULTILINE)


def library() -> Path:
    """CUDA's runtime library under the emulator's declarations, compiled once."""
    flags = ("-std=gnu++17", "-O1", *executable.COMMON, *toolchain.machine_flags())
    source = (toolchain.HERE / "program" / "gpu_runtime.cpp").read_text()
    api = (executable.HOST / "include/rung_host/api.h").read_text()
    text = source + "\n".join(_forwards(api, source)) + "\n"

    def make(target: Path) -> None:
        (target / "gpu.cpp").write_text(text)
        command = [*flags, f"-I{toolchain.HERE / 'program'}", *executable.headers()]
        command += ["-shared", "-Wl,-soname,librung_gpu.so"]
        executable.made([*command, "gpu.cpp", "-o", "librung_gpu.so", "-ldl"], target)

    key = toolchain.key(flags, text, folders=(executable.HOST,))
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
        raise UserError("--device cuda: no CUDA device was found; without --device the program runs on the emulator.")
    return "sm_" + "".join(str(int(value)) for _, value in found)
