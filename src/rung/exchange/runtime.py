"""The runtime of an exported CUDA rung: NVRTC compiles, the driver launches on torch's current stream.

This file is copied into exports; it imports the standard library and torch alone.
"""

import ctypes
import functools
import os
import site
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import torch

_KINDS: dict[str, Any] = {
    "i32": ctypes.c_int32, "u32": ctypes.c_uint32, "i64": ctypes.c_int64, "u64": ctypes.c_uint64,
    "f32": ctypes.c_float, "f64": ctypes.c_double, "bool": ctypes.c_bool,
}  # fmt: skip


def _wheels(part: str) -> list[str]:
    places = [*site.getsitepackages(), site.getusersitepackages()]
    return sorted(str(path) for place in places for path in Path(place).glob(f"nvidia/*/{part}"))


@functools.cache
def _nvrtc() -> ctypes.CDLL:
    major = (torch.version.cuda or "13").partition(".")[0]
    for name in (f"libnvrtc.so.{major}", *_wheels(f"lib/libnvrtc.so.{major}"), "libnvrtc.so"):
        for built_in in Path(name).parent.glob("libnvrtc-builtins.so*") if "/" in name else ():
            ctypes.CDLL(str(built_in), mode=ctypes.RTLD_GLOBAL)  # NVRTC opens it by its bare name
        try:
            return ctypes.CDLL(name)
        except OSError:
            continue
    raise RuntimeError("NVRTC was not found; install nvidia-cuda-nvrtc.")


@functools.cache
def _cubin(source: str, defines: tuple[tuple[str, int], ...], options: tuple[str, ...], arch: str) -> bytes:
    nvrtc, program = _nvrtc(), ctypes.c_void_p()
    folders = [f"{os.environ[v]}/include" for v in ("CUDA_HOME", "CUDA_PATH") if v in os.environ]
    folders += ["/usr/local/cuda/include", *_wheels("include")]
    words = [f"--gpu-architecture={arch}", "--std=c++17", *options]
    words += [f"-D{name}={value}" for name, value in defines]
    words += [f"-I{p}{end}" for p in folders for end in ("", "/cccl") if Path(p + end).is_dir()]
    nvrtc.nvrtcCreateProgram(ctypes.byref(program), source.encode(), b"kernel.cu", 0, None, None)
    option_array = (ctypes.c_char_p * len(words))(*(word.encode() for word in words))
    failed = nvrtc.nvrtcCompileProgram(program, len(words), option_array)
    size = ctypes.c_size_t()
    if failed:
        nvrtc.nvrtcGetProgramLogSize(program, ctypes.byref(size))
        log = ctypes.create_string_buffer(size.value)
        nvrtc.nvrtcGetProgramLog(program, log)
        raise RuntimeError(f"NVRTC refuses the kernel: {log.value.decode(errors='replace')}")
    nvrtc.nvrtcGetCUBINSize(program, ctypes.byref(size))
    made = ctypes.create_string_buffer(size.value)
    nvrtc.nvrtcGetCUBIN(program, made)
    nvrtc.nvrtcDestroyProgram(ctypes.byref(program))
    return made.raw


def _driver(call: str, *arguments: Any) -> None:
    status = getattr(ctypes.CDLL("libcuda.so.1"), call)(*arguments)
    if status:
        raise RuntimeError(f"{call} fails with CUDA error {status}.")


@functools.cache
def _function(
    source: str, defines: tuple[tuple[str, int], ...], options: tuple[str, ...], kernel: str, device: int
) -> ctypes.c_void_p:
    major, minor = torch.cuda.get_device_capability(device)
    cubin = _cubin(source, defines, options, f"sm_{major}{minor}")
    module, function = ctypes.c_void_p(), ctypes.c_void_p()
    torch.cuda.current_stream(device)  # the context exists
    _driver("cuModuleLoadData", ctypes.byref(module), cubin)
    _driver("cuModuleGetFunction", ctypes.byref(function), module, kernel.encode())
    return function


def _launch(
    source: str,
    defines: dict[str, int],
    options: tuple[str, ...],
    kernel: str,
    grid: tuple[int, int, int],
    block: tuple[int, int, int],
    shared: int,
    arguments: Sequence[tuple[str, Any]],
) -> None:
    """One launch; an argument is ("pointer", a tensor or None) or a kind and a number."""
    device = next(value for kind, value in arguments if kind == "pointer" and value is not None).device
    with torch.cuda.device(device):
        function = _function(source, tuple(sorted(defines.items())), options, kernel, device.index or 0)
        values = [
            ctypes.c_void_p(value.data_ptr() if value is not None else None) if kind == "pointer"
            else _KINDS[kind](value)
            for kind, value in arguments
        ]  # fmt: skip
        packed = (ctypes.c_void_p * len(values))(*(ctypes.addressof(value) for value in values))
        if shared > 48 << 10:
            _driver("cuFuncSetAttribute", function, 8, shared)
        stream = ctypes.c_void_p(torch.cuda.current_stream().cuda_stream)
        _driver("cuLaunchKernel", function, *grid, *block, shared, stream, packed, None)
