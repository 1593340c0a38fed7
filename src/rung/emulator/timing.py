"""How long a launch takes on a GPU, by the model of a multiprocessor in machine/issue.cpp and caches.cpp: a prediction.

Blocks that stand for the grid are executed and recorded; a multiprocessor plays its share of them.
"""

from __future__ import annotations

import contextlib
import math
from collections.abc import Callable, Iterator
from dataclasses import dataclass

from rung.cuda import gpus, limits
from rung.cuda.launch import LaunchConfig
from rung.emulator import machine

# In the order of machine/model.h, under Nsight Compute's names.
STALLS = (
    "selected", "wait", "long_scoreboard", "short_scoreboard", "math_pipe_throttle", "lg_throttle", "mio_throttle",
    "barrier", "membar", "gmma", "not_selected", "branch_resolving",
)  # fmt: skip
_FOOTPRINT, _MOST_SETS = 256 << 20, 256
Stalls = list[list[float]]  # of each instruction, by STALLS


@dataclass(frozen=True)
class Constants:
    """Of a Hopper GPU: clocks, and bytes a clock; the fields are those of `Constants` in machine/model.h.

    Sources: [1] NVIDIA's data sheets; [2] probes on an H100 (tools/probes, results/h100/probe.jsonl); [3] published
    microbenchmarks; [4] Huerta et al., MICRO'25. What has no source is a guess that no measurement has refuted.
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
    # Of instructions that lower a counter, by unit: NONE ALU FMA FMA_HEAVY XU FP64 TENSOR LSU TMA ADU CBU
    latency: tuple[float, ...] = (4, 12, 6, 6, 17, 16, 24, 24, 20, 20, 10)  # [2]: XU, TENSOR, LSU; [3]
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
    stores_wait: float = 32  # fitted
    queue: float = 8  # [3]

    def row(self) -> list[float]:
        flat: list[float] = []
        for value in vars(self).values():
            flat += value if isinstance(value, tuple) else [value]
        return flat


LAUNCH = 0.8e-6  # seconds of a launch that follows another, without its blocks [2]


def constants(gpu: gpus.Gpu) -> Constants:
    per_clock = gpu.rates["bytes"] * 0.92 / (gpu.clock_mhz * 1e6)  # [1], of which reading reaches so much [2]
    return Constants(gpu.multiprocessors, per_clock, gpu.l2_mib * 1e6)


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


@dataclass
class _Recording:
    constants: Constants
    sets: float
    launches: list[Played]


_recording: _Recording | None = None


@contextlib.contextmanager
def predicted(gpu: str, sets: float = math.inf) -> Iterator[list[Played]]:
    """Inside, launches are played for this GPU and kept in the list; only the blocks that stand for the grid are
    executed, so that results are those of no run. `sets`: of operands, that calls take in turn."""
    global _recording
    before, _recording = _recording, _Recording(constants(gpus.find(gpu, "sm_90")), sets, [])
    machine.library().rung_machine_cold()
    try:
        yield _recording.launches
    finally:
        _recording = before


def sets_of(operands: int) -> int:
    """Sets of operands of so many bytes that `rung bench` takes in turn, so that the caches hold none of the next."""
    return max(2, min(_MOST_SETS, math.ceil(_FOOTPRINT / max(1, operands)) + 1))


def recording() -> bool:
    return _recording is not None


def run(of: machine.Program, config: LaunchConfig, execute: Callable[..., tuple[machine.Prediction, Stalls]]) -> None:
    """Executes the blocks that stand for the grid, or all if those wait for others, and plays them."""
    assert _recording is not None
    shared = of.resources.static_shared + config.shared
    resident = max(1, limits.occupancy(machine.ARCH, config.threads, of.resources.registers, shared).blocks)
    model = machine.Play(_recording.constants.row(), resident, shared + limits.KIB, _recording.sets)
    made, stalls = execute(play=model)
    _recording.launches.append(Played(of, config, made.clocks, resident, stalls, bool(made.together)))
