"""Runs CUDA C++ on the CPU: compiled by g++, threads as fibers, faults reported with kernel, block and thread.

docs/emulator.md says what it models, what it catches and what it cannot.
"""

from rung.emulator.guard import guarded_empty, guarded_file, mark_data
from rung.emulator.module import (
    EmulatedModule,
    Settings,
    atomics_ran,
    begin,
    launches_ran,
    load,
    switches,
    under,
    unwatched,
    without_launches,
)
from rung.emulator.toolchain import available
from rung.errors import EmulatorFault, FaultKind

__all__ = [
    "EmulatedModule",
    "EmulatorFault",
    "FaultKind",
    "Settings",
    "atomics_ran",
    "available",
    "begin",
    "guarded_empty",
    "guarded_file",
    "launches_ran",
    "load",
    "mark_data",
    "switches",
    "under",
    "unwatched",
    "without_launches",
]
