"""CUDA without a GPU: executes a GPU's machine code, and reports faults by kernel, block, thread and line.

docs/emulator.md says what it models, what it catches and what it cannot.
"""

from gpuless.base.errors import EmulatorFault, FaultKind
from gpuless.driver import faults, use
from gpuless.guard import guarded_empty, guarded_file, mark_data
from gpuless.machine import available, compiled
from gpuless.module import EmulatedModule, load
from gpuless.session import Session, Settings, current, under

__all__ = [
    "EmulatedModule",
    "EmulatorFault",
    "FaultKind",
    "Session",
    "Settings",
    "available",
    "compiled",
    "current",
    "faults",
    "guarded_empty",
    "guarded_file",
    "load",
    "mark_data",
    "under",
    "use",
]
