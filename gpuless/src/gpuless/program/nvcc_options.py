"""NVIDIA's nvcc for the GPU in software: the user's options, and what every program needs.

A script of its own, which imports nothing of gpuless: make and CMake start it for each file. Its first argument is the
toolkit's folder.

Code is compiled for the GPU in software, whatever architecture a build names, since that is where it runs; lines are
kept for reports; the runtime is the shared library, which is ours.
"""

import itertools
import os
import sys
from collections.abc import Mapping, Sequence

ARCH = "sm_90"
OF_ARCH = ("-arch", "--gpu-architecture", "-gencode", "--generate-code", "-code", "--gpu-code")
ONLY_TOLD = ("--version", "-V", "--help", "-h", "--list-gpu-arch", "--list-gpu-code", "-arch-ls", "-code-ls")
OF_LINES = ("-lineinfo", "--generate-line-info", "-G", "--device-debug")
OPTIMIZED = ("-O", "--optimize", "-G", "--device-debug")
RELOCATABLE = {
    *("-rdc=true", "--relocatable-device-code=true", "-dc", "--device-c"),
    *("-dlink", "--device-link", "-dlto", "--dlink-time-opt"),
}


def chosen(words: list[str], environment: Mapping[str, str]) -> str:
    """The architecture: that of the GPU in software, with its special instructions where the build asks for them."""
    given = environment.get("GPULESS_ARCH") or ARCH
    return given + "a" if given == "sm_90" and any("90a" in word for word in words) else given


def relocatable(words: Sequence[str]) -> bool:
    """Whether device functions of several files may call each other."""
    pairs = map("=".join, itertools.pairwise(words))  # `-rdc true` means `-rdc=true`
    return not RELOCATABLE.isdisjoint([*words, *pairs])


def translated(words: list[str], toolkit: str, environment: Mapping[str, str] = os.environ) -> list[str]:
    """The options for NVIDIA's nvcc."""
    kept, of_arch, rest = [], [], list(words)
    optimized = False
    while rest:
        word = rest.pop(0)
        name, has_value, value = word.partition("=")
        if name in OF_ARCH:
            of_arch.append(value if has_value else rest.pop(0) if rest else "")
        elif name in ("-cudart", "--cudart"):
            if not has_value and rest:
                rest.pop(0)
        else:
            optimized |= word.startswith(OPTIMIZED)
            kept.append(word)
    if any(word in ONLY_TOLD for word in kept):
        return kept
    more = [f"-arch={chosen(of_arch, environment)}", "-cudart", "shared", "-Wno-deprecated-gpu-targets", "-no-compress"]
    if not any(word in OF_LINES for word in kept):
        more.append("-lineinfo")
    more += ["-Xcompiler", "-g1", "-DCCCL_DISABLE_NVTX"]  # CUB marks its calls for a profiler that is not there
    if not optimized:
        more += ["-Xcompiler", "-O1"]
    if "-arch=native" in more:  # the libraries are NVIDIA's
        return [*kept, *more]
    return [*kept, *more, "-Xlinker", f"-rpath={toolkit}/lib64"]


def main() -> None:
    toolkit = os.path.realpath(sys.argv[1])
    nvcc = f"{toolkit}/compiler/nvcc"
    os.execv(nvcc, [nvcc, *translated(sys.argv[2:], toolkit)])


if __name__ == "__main__":
    main()
