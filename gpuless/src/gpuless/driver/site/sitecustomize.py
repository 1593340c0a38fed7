"""Python runs this file when it starts in the environment of the GPU in software; `gpuless.use()` runs it, too.

cuda.bindings.runtime carries NVIDIA's static runtime, which asks the driver for undocumented tables and fails without
them. cuda.core calls a few functions of it: here they are done by the driver's own. PyTorch built for CUDA links to
NVIDIA's runtime and libraries by their places: ours are loaded before it. Nothing but Python's library is imported,
since a project's Python may not have gpuless.
"""

from __future__ import annotations

import importlib.abc
import importlib.machinery
import importlib.util
import os
import sys
from collections.abc import Callable
from pathlib import Path
from types import ModuleType
from typing import Any

_RUNTIME, _TORCH = "cuda.bindings.runtime", "torch"
_OURS = ("libcudart.so.13", "libcublasLt.so.13", "libcublas.so.13", "libcurand.so.10")
_HERE = str(Path(__file__).resolve().parent)


def _replace(runtime: Any) -> None:
    from cuda.bindings import driver

    def error(code: Any) -> Any:
        try:
            return runtime.cudaError_t(int(code))
        except ValueError:
            return runtime.cudaError_t.cudaErrorUnknown

    def begun() -> None:
        driver.cuInit(0)
        code, context = driver.cuCtxGetCurrent()
        if not int(code) and not int(context):
            code, context = driver.cuDevicePrimaryCtxRetain(0)
            code = code or driver.cuCtxSetCurrent(context)[0]

    def synchronize() -> tuple[Any, ...]:
        begun()
        return (error(driver.cuCtxSynchronize()[0]),)

    def count() -> tuple[Any, ...]:
        code = driver.cuInit(0)[0]
        if int(code):
            return error(code), 0
        code, number = driver.cuDeviceGetCount()
        return error(code), number

    def get_device() -> tuple[Any, ...]:
        begun()
        code, device = driver.cuCtxGetDevice()
        return error(code), int(device)

    def set_device(device: int) -> tuple[Any, ...]:
        driver.cuInit(0)
        code, context = driver.cuDevicePrimaryCtxRetain(device)
        return (error(code if int(code) else driver.cuCtxSetCurrent(context)[0]),)

    def version() -> tuple[Any, ...]:
        return runtime.cudaError_t.cudaSuccess, runtime.CUDART_VERSION if hasattr(runtime, "CUDART_VERSION") else 13000

    runtime.cudaDeviceSynchronize = synchronize
    runtime.cudaGetDeviceCount, runtime.cudaGetDevice, runtime.cudaSetDevice = count, get_device, set_device
    runtime.cudaRuntimeGetVersion = runtime.getLocalRuntimeVersion = version


def _is_for_cuda(spec: Any) -> bool:
    runtime = Path(spec.origin).parent / "lib/libc10_cuda.so"
    return runtime.is_file() and _OURS[0].encode() in runtime.read_bytes()


def _load_libraries() -> None:
    import ctypes  # here: each Python in the environment runs this file
    import subprocess

    words = [os.environ.get("GPULESS_PYTHON", sys.executable), "-P", "-m", "gpuless", "toolkit"]
    environment = os.environ | {"PYTHONPATH": os.environ.get("GPULESS_PYTHONPATH", "")}
    folder = subprocess.run(words, env=environment, check=True, stdout=subprocess.PIPE, text=True).stdout.strip()
    for name in _OURS:
        ctypes.CDLL(f"{folder}/lib64/{name}", mode=ctypes.RTLD_GLOBAL)


class _Loader(importlib.abc.Loader):
    def __init__(self, inner: Any, execute: Callable[[Any, ModuleType], None]) -> None:
        self._inner, self._execute = inner, execute

    def create_module(self, spec: Any) -> Any:
        return self._inner.create_module(spec)

    def exec_module(self, module: ModuleType) -> None:
        self._execute(self._inner, module)

    def __getattr__(self, name: str) -> Any:
        return getattr(self._inner, name)


def _load_runtime(loader: Any, module: ModuleType) -> None:
    loader.exec_module(module)
    _replace(module)


def _load_torch(loader: Any, module: Any) -> None:
    """A function that our libraries lack ends the process by its name when it is called, not when torch is loaded."""
    _load_libraries()
    os.environ.setdefault("PYTORCH_NO_CUDA_MEMORY_CACHING", "1")  # then each tensor has bounds of its own
    flags = sys.getdlopenflags()
    sys.setdlopenflags(flags & ~os.RTLD_NOW | os.RTLD_LAZY)
    try:
        loader.exec_module(module)
    finally:
        sys.setdlopenflags(flags)
    module.backends.cudnn.enabled = False  # NVIDIA's closed library; torch has kernels of its own


class _Finder(importlib.abc.MetaPathFinder):
    def find_spec(self, name: str, path: Any = None, target: Any = None) -> Any:
        if name not in (_RUNTIME, _TORCH):
            return None
        spec = importlib.machinery.PathFinder.find_spec(name, path, target)
        if spec and spec.loader and (name == _RUNTIME or _is_for_cuda(spec)):
            spec.loader = _Loader(spec.loader, _load_runtime if name == _RUNTIME else _load_torch)
        return spec


def install() -> None:
    """From now on the modules are changed when they are imported; cuda.bindings' at once if it has been."""
    if _RUNTIME in sys.modules:
        _replace(sys.modules[_RUNTIME])
    if not any(type(one).__name__ == "_Finder" and type(one).__module__ == __name__ for one in sys.meta_path):
        sys.meta_path.insert(0, _Finder())


install()

if __name__ == "sitecustomize":  # another file of this name, whose place this one takes, runs, too
    _path = [part for part in sys.path if str(Path(part or ".").resolve()) != _HERE]
    _spec = importlib.machinery.PathFinder.find_spec("sitecustomize", _path)
    if _spec and _spec.loader:
        _spec.loader.exec_module(importlib.util.module_from_spec(_spec))
