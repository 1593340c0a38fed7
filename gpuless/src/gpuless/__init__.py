"""CUDA without a GPU: executes a GPU's machine code, and reports faults by kernel, block, thread and line.

README.md has the public interface: compile_cuda, load_cubin, Session, predict, use, faults. The rest serves rung.
"""

from gpuless.api import Kernel, Module, Prediction, Session, compile_cuda, load_cubin, predict
from gpuless.base.errors import EmulatorFault, FaultKind
from gpuless.driver import counted, faults, use
from gpuless.guard import guarded_empty, guarded_file, mark_data
from gpuless.machine import available, compiled
from gpuless.module import EmulatedModule, load
from gpuless.session import Settings, current, under

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
