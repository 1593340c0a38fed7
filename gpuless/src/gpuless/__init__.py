"""Runs kernels on the CPU: the machine code that a GPU would run; faults are reported by kernel, block, thread, line.

docs/emulator.md says what it models, what it catches and what it cannot.
"""

from gpuless.base.errors import EmulatorFault, FaultKind
from gpuless.driver import faults, use
from gpuless.guard import guarded_empty, guarded_file, mark_data
from gpuless.machine import available, compiled
from gpuless.module import (
    EmulatedModule,
    Settings,
    atomics_ran,
    begin,
    launches_ran,
    load,
    steps,
    under,
    unwritten_read,
    without_launches,
)

__all__ = [
    "EmulatedModule",
    "EmulatorFault",
    "FaultKind",
    "Settings",
    "atomics_ran",
    "available",
    "begin",
    "compiled",
    "faults",
    "guarded_empty",
    "guarded_file",
    "launches_ran",
    "load",
    "mark_data",
    "steps",
    "under",
    "unwritten_read",
    "use",
    "without_launches",
]
