"""How long a launch takes on a GPU, by the model of an SM in machine/simulate.cpp and caches.cpp: a prediction.

Blocks that stand for the grid are executed and recorded; an SM's share of them is simulated.
"""

from __future__ import annotations

import math
import re
import tomllib
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from gpuless import machine
from gpuless.base import disk_cache
from gpuless.base.errors import UserError
from gpuless.facts import gpus, limits
from gpuless.launch import LaunchConfig

DEFINED = Path(machine.__file__).with_name("timing.def")  # which C++ reads, too


def _defined(kind: str, value: str) -> dict[str, str]:
    rows = re.findall(rf'^{kind}\((\w+), ({value})(?:, ".*")?\)$', DEFINED.read_text(), re.MULTILINE)
    return dict(rows)


STALLS = tuple(shown.strip('"') for shown in _defined("STALL", '".*"').values())  # Nsight Compute's names
_PIPES = _defined("PIPE", r"[\d.]+")
PIPES = tuple(_PIPES)
TABLE = Path(__file__).with_name("constants.toml")
_FOOTPRINT, _MOST_SETS = 256 << 20, 256
Stalls = list[list[float]]  # of each instruction, by STALLS


Value = float | tuple[float, ...]  # the latter by unit
# Of a Hopper GPU; those that differ elsewhere are in constants.toml. `occupied`: the clocks for which the units of
# opcodes are, of those in the table of opcodes.
CONSTANTS: Mapping[str, Value] = {
    **{name: float(value) for name, value in _defined("CONSTANT", r"[\d.]+").items()},
    "latency": tuple(map(float, _PIPES.values())),
    "occupied": (1.0,) * len(_PIPES),
}


@dataclass(frozen=True)
class Constants:
    """Clocks, and bytes a clock, of a GPU, by their names in machine/timing.def, and in its order."""

    values: Mapping[str, Value]

    def __getitem__(self, name: str) -> float:
        value = self.values[name]
        assert isinstance(value, float)
        return value

    def of_unit(self, name: str, unit: str) -> float:
        value = self.values[name]
        assert isinstance(value, tuple)
        return value[PIPES.index(unit)]

    def with_row(self, row: Mapping[str, Any]) -> Constants:
        """A table by unit changes the units that it names."""
        new = dict(self.values)
        for name, value in row.items():
            if isinstance(value, Mapping):
                new[name] = tuple(float(value.get(unit, self.of_unit(name, unit))) for unit in PIPES)
            elif name in new:
                new[name] = float(value)
            else:
                raise KeyError(name)
        return Constants(new)

    def row(self) -> list[float]:
        return [one for value in self.values.values() for one in (value if isinstance(value, tuple) else (value,))]


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
    own = {"multiprocessors": gpu.multiprocessors, "memory_bytes": per_clock, "second_cache_size": gpu.l2_mib * 1e6}
    made = Constants(CONSTANTS).with_row(own)
    if gpu.arch != "sm_90":
        share = made["second_cache_bytes"] / gpus.find("h100").multiprocessors
        partition = gpu.rates["f16"] / clock / gpu.multiprocessors / 4  # operations a clock, of which an MMA has 4096
        of_all = {"second_cache_bytes": share * gpu.multiprocessors, "product_interval": 4096 / partition}
        made = made.with_row(of_all | tomllib.loads(TABLE.read_text()).get(gpu.arch, {}))
    return made


def basis(gpu: gpus.Gpu) -> Basis:
    made = tabled(gpu)
    if (found := calibrated_file(gpu.name)).is_file():
        try:
            row = tomllib.loads(found.read_text())
            return Basis(made.with_row(row["constants"]), "calibrated", row["when"])
        except (tomllib.TOMLDecodeError, KeyError, TypeError, ValueError) as problem:
            raise UserError(f"{found} has no constants ({problem}): delete it, or calibrate again.") from None
    return Basis(made, "compared" if gpu.name in COMPARED else "published")


def calibrated_file(gpu: str) -> Path:
    """The row that `rung calibrate` writes for the GPU that the driver calls so."""
    return disk_cache.cache_folder() / "constants" / f"{re.sub(r'[^A-Za-z0-9]+', '-', gpu)}.toml"


@dataclass
class SimulatedLaunch:
    """A launch as the model simulated it."""

    program: machine.Program
    config: LaunchConfig
    clocks: float  # of an SM for its share of the grid
    resident: int
    stalls: Stalls
    together: bool  # its blocks wait for each other, and how long is not modelled
    atomic_clocks: float = 0.0  # of the memory that is busiest with atomics
    swaps: bool = False  # that memory takes compare-and-swaps, which fail and are tried again: not modelled
    launches: int = 1
    profiled: bool = False  # from empty caches, as Nsight Compute measures it; else behind another launch

    @property
    def contended(self) -> bool:
        """Whether atomics take most of its time."""
        return self.atomic_clocks > 0.5 * self.clocks


def microseconds(of: gpus.Gpu, one: SimulatedLaunch) -> float:
    return one.clocks / of.clock_mhz + (0 if one.profiled else LAUNCH * 1e6)


@dataclass
class Recording:
    """Launches simulated for a GPU; `sets`: of operands, that calls take in turn."""

    gpu: gpus.Gpu
    sets: float
    launches: list[SimulatedLaunch]

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
        model = machine.Model(row, resident, shared + here.shared_reserved, self.sets)
        made, stalls = execute(model=model)
        facts = (made.clocks, resident, stalls, bool(made.together), made.atomic_clocks, bool(made.swaps))
        self.launches.append(SimulatedLaunch(of, config, *facts))


def sets_of(operands: int) -> int:
    """Sets of operands of so many bytes that `rung bench` takes in turn, so that the caches hold none of the next."""
    return max(2, min(_MOST_SETS, math.ceil(_FOOTPRINT / max(1, operands)) + 1))
