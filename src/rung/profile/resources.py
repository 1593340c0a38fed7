"""The compiler's report on one kernel of a rung, with the occupancy that follows from it."""

from __future__ import annotations

from dataclasses import asdict, dataclass, field
from typing import Any

from gpuless.compile import sass
from gpuless.compile.cubin_cache import Cubin
from gpuless.facts import limits
from gpuless.launch import LaunchConfig, Resources
from rung.errors import RungError


@dataclass
class Compiled:
    """One kernel of a rung for one architecture, or why there is none (`reason`)."""

    rung: str
    arch: str
    dtype: str
    shape: str
    kernel: str = ""
    registers: int | None = None
    static_shared: int | None = None
    dynamic_shared: int | None = None
    spill_stores: int | None = None
    spill_loads: int | None = None
    stack: int | None = None
    block: tuple[int, int, int] | None = None
    blocks_sm: int | None = None
    warps_sm: int | None = None
    occupancy: float | None = None
    limiter: str = ""
    hint: str = ""
    mix: dict[str, int] = field(default_factory=dict)
    state: str = "ok"  # or "skipped": not meant for this; "failed": does not compile, or could not launch
    reason: str = ""

    @property
    def spills(self) -> bool:
        return bool(self.spill_stores or self.spill_loads)

    def as_json(self) -> dict[str, Any]:
        return asdict(self)


def mixes_of(cubin: Cubin) -> dict[str, dict[str, int]]:
    """The instruction mix of each kernel; empty if there is no disassembler, or it is too old."""
    try:
        return sass.instruction_mix(cubin)
    except RungError:
        return {}


def filled(row: Compiled, resources: Resources, config: LaunchConfig) -> Compiled:
    """The row with the compiler's report and the occupancy that follows from it."""
    shared = resources.static_shared + config.shared
    found = limits.occupancy(row.arch, config.threads, resources.registers, shared)
    row.registers, row.stack = resources.registers, resources.stack
    row.static_shared, row.dynamic_shared = resources.static_shared, config.shared
    row.spill_stores, row.spill_loads = resources.spill_stores, resources.spill_loads
    row.block = config.block
    row.blocks_sm, row.warps_sm, row.occupancy = found.blocks, found.warps, found.fraction
    row.limiter = found.limiter
    row.hint = limits.hint(row.arch, config.threads, resources.registers, shared)
    refused = limits.refusal(limits.limits(row.arch), config, resources.registers, resources.static_shared)
    if refused:
        row.state, row.reason = "failed", f"cannot be launched on {row.arch}: {refused}"
    return row
