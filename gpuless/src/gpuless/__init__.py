"""CUDA without a GPU: executes a GPU's machine code, and reports faults by kernel, block, thread and line.

README.md has the public interface: compile_cuda, load_cubin, Session, predict, use, faults. The rest serves rung.
"""

import importlib
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from gpuless.api import Kernel, Module, Prediction, Session, compile_cuda, load_cubin, predict
    from gpuless.base.errors import EmulatorFault, FaultKind
    from gpuless.driver import counted, faults, use
    from gpuless.guard import guarded_empty, guarded_file, mark_data
    from gpuless.machine import available, compiled
    from gpuless.module import EmulatedModule, load
    from gpuless.session import Settings, current, under

_HOMES = {  # each is imported at its first use: text on a CPU needs no compiler
    "Kernel": "gpuless.api",
    "Module": "gpuless.api",
    "Prediction": "gpuless.api",
    "Session": "gpuless.api",
    "compile_cuda": "gpuless.api",
    "load_cubin": "gpuless.api",
    "predict": "gpuless.api",
    "EmulatorFault": "gpuless.base.errors",
    "FaultKind": "gpuless.base.errors",
    "counted": "gpuless.driver",
    "faults": "gpuless.driver",
    "use": "gpuless.driver",
    "guarded_empty": "gpuless.guard",
    "guarded_file": "gpuless.guard",
    "mark_data": "gpuless.guard",
    "available": "gpuless.machine",
    "compiled": "gpuless.machine",
    "EmulatedModule": "gpuless.module",
    "load": "gpuless.module",
    "load_ipython_extension": "gpuless.doors.notebook",
    "Settings": "gpuless.session",
    "current": "gpuless.session",
    "under": "gpuless.session",
}


def __getattr__(name: str) -> Any:
    if name not in _HOMES:
        raise AttributeError(f"module 'gpuless' has no attribute {name!r}")
    return getattr(importlib.import_module(_HOMES[name]), name)


__all__ = [
    "EmulatedModule",
    "EmulatorFault",
    "FaultKind",
    "Kernel",
    "Module",
    "Prediction",
    "Session",
    "Settings",
    "available",
    "compile_cuda",
    "compiled",
    "counted",
    "current",
    "faults",
    "guarded_empty",
    "guarded_file",
    "load",
    "load_cubin",
    "mark_data",
    "predict",
    "under",
    "use",
]
