"""How long a launch takes on a GPU, by the model of a multiprocessor in machine/issue.cpp and caches.cpp: a prediction.

Blocks that stand for the grid are executed and recorded; a multiprocessor plays its share of them.
"""

from __future__ import annotations

import math
import re
import tomllib
from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from gpuless import machine
from gpuless.base import disk_cache
from gpuless.base.errors import UserError
from gpuless.facts import gpus, limits
from gpuless.launch import LaunchConfig

# In the order of machine/model.h, under Nsight Compute's names.
STALLS = (
    "selected", "wait", "long_scoreboard", "short_scoreboard", "math_pipe_throttle", "lg_throttle", "mio_throttle",
    "barrier", "membar", "gmma", "not_selected", "branch_resolving",
)  # fmt: skip
PIPES = ("NONE", "ALU", "FMA", "FMA_HEAVY", "XU", "FP64", "TENSOR", "LSU", "TMA", "ADU", "CBU")
TABLE = Path(__file__).with_name("constants.toml")
_FOOTPRINT, _MOST_SETS = 256 << 20, 256
Stalls = list[list[float]]  # of each instruction, by STALLS


@dataclass(frozen=True)
class Constants:
    """Clocks, and bytes a clock, of a Hopper GPU; the fields are those of `Constants` in machine/model.h. What differs
    elsewhere is in constants.toml.

    Sources: [1] NVIDIA's data sheets; [2] probes on an H100 (profile/probes.cu, results/h100/probe.jsonl);
    [3] published microbenchmarks; [4] Huerta et al., MICRO'25. What has no source is a guess that no measurement has
    refuted. `rung calibrate` reads most of [2] again.
    """

    multiprocessors: float
    memory_bytes: float
    second_cache_size: float
    second_cache_bytes: float = 3000  # fitted; [2]: 3400 where all read the same MiB, 2060 where they read more
    port_bytes: float = 64  # [2]: 61
    first_cache_size: float = 256 * 1024  # [1]
    fetch: float = 2  # sectors
    # Latencies without the 8 clocks on the way to memory and the pass of the data path.
    shared_latency: float = 15  # [2]: a chain of loads takes 29, of which 5 are its addresses
    first_cache_latency: float = 27  # [2]: 40
    second_cache_latency: float = 274  # [2]: 283 to 291
    memory_latency: float = 833  # fitted; [2]: 683 where nothing else is asked for
    atomic_latency: float = 0  # [2]: as a load
    fence_latency: float = 660  # [2]
    # Of instructions that lower a counter, by unit.
    latency: tuple[float, ...] = (4, 12, 6, 6, 17, 16, 24, 24, 20, 20, 10)  # [2]: XU, TENSOR, LSU; [3]
    occupied: tuple[float, ...] = (1,) * len(PIPES)  # by unit, of the clocks in the table of opcodes
    product_interval: float = 6  # [2]
    group_tail: float = 64  # [3]
    copy_latency: float = 400  # fitted, of many copies; [2]: 10 of a copy alone
    copy_interval: float = 32  # [3]
    barrier_latency: float = 12  # [2]
    barrier_interval: float = 2  # [2]
    bytes_latency: float = 30  # [2]
    branch: float = 0
    first_start: float = 50
    block_start: float = 500  # fitted; [2]: 260 of a block without work
    block_interval: float = 1.19  # [2]
    line: float = 1  # fitted; [2]: 0.5 where every line is there
    missed_line: float = 0.5  # fitted; [2]: 1.05
    pending_line: float = 0
    stored_line: float = 2  # [2]
    line_of_quarter: float = 1.25  # [2]
    cold_start: float = 1200  # fitted; its cause is not known
    line_sectors: float = 2.6  # fitted; a slice of the second cache gives 2, and a line may be in two
    stores_wait: float = 32  # fitted
    queue: float = 8  # [3]

    def row(self) -> list[float]:
        flat: list[float] = []
        for value in vars(self).values():
            flat += value if isinstance(value, tuple) else [value]
        return flat


LAUNCH = 0.8e-6  # seconds of a launch that follows another, without its blocks [2]


COMPARED = ("NVIDIA H200", "NVIDIA H100 80GB HBM3")  # predictions have been compared with measurements


@dataclass(frozen=True)
class Basis:
    """A GPU's constants and where they come from: compared (with measurements), calibrated (by `rung calibrate`
    on such a GPU; when), or published."""

    constants: Constants
    kind: str
    when: str = ""


def tabled(gpu: gpus.Gpu) -> Constants:
    """As the tables have them."""
    clock = gpu.clock_mhz * 1e6
    per_clock = gpu.rates["bytes"] * 0.92 / clock  # [1], of which reading reaches so much [2]
    made = Constants(gpu.multiprocessors, per_clock, gpu.l2_mib * 1e6)
    if gpu.arch != "sm_90":
        share = made.second_cache_bytes / gpus.find("h100").multiprocessors
        quarter = gpu.rates["f16"] / clock / gpu.multiprocessors / 4  # operations a clock, of which a product has 4096
        made = replace(made, second_cache_bytes=share * gpu.multiprocessors, product_interval=4096 / quarter)
        made = _with(made, tomllib.loads(TABLE.read_text()).get(gpu.arch, {}))
    return made


def basis(gpu: gpus.Gpu) -> Basis:
    made = tabled(gpu)
    if (found := calibrated_file(gpu.name)).is_file():
        try:
            row = tomllib.loads(found.read_text())
            return Basis(_with(made, row["constants"]), "calibrated", row["when"])
        except (tomllib.TOMLDecodeError, KeyError, TypeError, ValueError) as problem:
            raise UserError(f"{found} has no constants ({problem}): delete it, or run `rung calibrate`.") from None
    return Basis(made, "compared" if gpu.name in COMPARED else "published")


def _with(made: Constants, row: Mapping[str, Any]) -> Constants:
    """The constants with those of a row; a table by unit changes the units that it names."""
    new: dict[str, Any] = {}
    for name, value in row.items():
        if isinstance(value, Mapping):
            units = dict(zip(PIPES, getattr(made, name), strict=True)) | {unit: float(v) for unit, v in value.items()}
            new[name] = tuple(units[unit] for unit in PIPES)
        else:
            new[name] = float(value)
    return replace(made, **new)


def calibrated_file(gpu: str) -> Path:
    """The row that `rung calibrate` writes for the GPU that the driver calls so."""
    return disk_cache.cache_folder() / "constants" / f"{re.sub(r'[^A-Za-z0-9]+', '-', gpu)}.toml"


@dataclass
class Played:
    """A launch as the model played it."""

    program: machine.Program
    config: LaunchConfig
    clocks: float  # of a multiprocessor for its share of the grid
    resident: int
    stalls: Stalls
    together: bool  # its blocks wait for each other, and how long is not modelled
    launches: int = 1


def microseconds(of: gpus.Gpu, played: Played) -> float:
    return played.clocks / of.clock_mhz + LAUNCH * 1e6


@dataclass
class Recording:
    """Launches simulated for a GPU; `sets`: of operands, that calls take in turn."""

    gpu: gpus.Gpu
    sets: float
    launches: list[Played]

    def run(
        self,
        of: machine.Program,
        config: LaunchConfig,
        execute: Callable[..., tuple[machine.Prediction, Stalls]],
    ) -> None:
        """Executes the blocks that stand for the grid, or all if those wait for others, and simulates them."""
        shared = of.resources.static_shared + config.shared
        here = limits.limits(self.gpu.arch)
        resident = limits.occupancy(here, config.threads, of.resources.registers, shared).blocks
        if not resident:
            hint = limits.hint(here.arch, config.threads, of.resources.registers, shared)
            raise UserError(f"{of.place(-1)} does not fit {self.gpu.name}: {hint}.")
        row = basis(self.gpu).constants.row()
        model = machine.Play(row, resident, shared + here.shared_reserved, self.sets)
        made, stalls = execute(play=model)
        self.launches.append(Played(of, config, made.clocks, resident, stalls, bool(made.together)))


def sets_of(operands: int) -> int:
    """Sets of operands of so many bytes that `rung bench` takes in turn, so that the caches hold none of the next."""
    return max(2, min(_MOST_SETS, math.ceil(_FOOTPRINT / max(1, operands)) + 1))
