"""Python runs this file when it starts in the environment of the GPU in software; `gpuless.use()` runs it, too.

cuda.bindings.runtime carries NVIDIA's static runtime, which asks the driver for undocumented tables and fails without
them. cuda.core calls a few functions of it: here they are done by the driver's own. Nothing but Python's library is
imported, since a project's Python may not have gpuless.
"""

from __future__ import annotations

import importlib.abc
import importlib.machinery
import importlib.util
import sys
from pathlib import Path
from types import ModuleType
from typing import Any

_NAME = "cuda.bindings.runtime"
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


class _Loader(importlib.abc.Loader):
    def __init__(self, inner: Any) -> None:
        self._inner = inner

    def create_module(self, spec: Any) -> Any:
        return self._inner.create_module(spec)

    def exec_module(self, module: ModuleType) -> None:
        self._inner.exec_module(module)
        _replace(module)


class _Finder(importlib.abc.MetaPathFinder):
    def find_spec(self, name: str, path: Any = None, target: Any = None) -> Any:
        if name != _NAME:
            return None
        spec = importlib.machinery.PathFinder.find_spec(name, path, target)
        if spec and spec.loader:
            spec.loader = _Loader(spec.loader)
        return spec


def install() -> None:
    """From now on the module is changed when it is imported; at once if it has been."""
    if _NAME in sys.modules:
        _replace(sys.modules[_NAME])
    elif not any(type(one).__name__ == "_Finder" and type(one).__module__ == __name__ for one in sys.meta_path):
        sys.meta_path.insert(0, _Finder())


install()

if __name__ == "sitecustomize":  # another file of this name, whose place this one takes, runs, too
    _path = [part for part in sys.path if str(Path(part or ".").resolve()) != _HERE]
    _spec = importlib.machinery.PathFinder.find_spec("sitecustomize", _path)
    if _spec and _spec.loader:
        _spec.loader.exec_module(importlib.util.module_from_spec(_spec))
