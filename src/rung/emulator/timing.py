"""How long a launch takes on a GPU, by the model of a multiprocessor in machine/issue.cpp and caches.cpp: a prediction.

Blocks that stand for the grid are executed and recorded; a multiprocessor plays its share of them.
"""

from __future__ import annotations

import contextlib
import math
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, replace
from typing import NamedTuple

from rung.cuda import limits
from rung.cuda.launch import LaunchConfig
from rung.emulator import machine
from rung.errors import EmulatorFault, RungError

# In the order of machine/model.h, under Nsight Compute's names.
STALLS = (
    "selected", "wait", "long_scoreboard", "short_scoreboard", "math_pipe_throttle", "lg_throttle", "mio_throttle",
    "barrier", "membar", "gmma", "not_selected", "branch_resolving",
)  # fmt: skip
_MOST_SAMPLES = 24
_ALONE = 4  # samples of a grid with a block for each multiprocessor at most


@dataclass(frozen=True)
class Constants:
    """Of a GPU: clocks, and bytes a clock; the fields are those of `Constants` in machine/model.h.

    Sources: [1] Luo et al., arXiv 2402.13499 (latencies of Hopper's memories); [2] Huerta et al., MICRO'25 (issue and
    memory pipeline); [3] rung's own ceilings (results/*/ceilings.jsonl); [4] CUDA C++ Programming Guide (throughputs);
    [5] NVIDIA's data sheets.
    """

    multiprocessors: float = 132
    memory_bytes: float = 4.8e12 * 0.92 / 1.98e9  # [5], of which a copy reaches so much [3]
    second_cache_bytes: float = 5.6e12 / 1.98e9
    port_bytes: float = 64
    first_cache_size: float = 256 * 1024
    second_cache_size: float = 60e6
    shared_latency: float = 15  # [1]: 29 with issue and return
    first_cache_latency: float = 27  # [1]: 40
    second_cache_latency: float = 222  # [1]: 263
    memory_latency: float = 552
    atomic_latency: float = 100
    fence_latency: float = 200
    #                        NONE ALU FMA HEAVY XU FP64 TENSOR LSU TMA ADU CBU
    latency: tuple[float, ...] = (4, 12, 6, 6, 22, 16, 33, 26, 20, 20, 10)
    product_interval: float = 4
    group_tail: float = 64
    copy_latency: float = 300
    copy_interval: float = 32
    barrier_latency: float = 16
    bytes_latency: float = 20
    branch: float = 0
    block_start: float = 60
    block_interval: float = 10
    line_beyond_four: float = 1
    queue: float = 64

    def row(self) -> list[float]:
        flat: list[float] = []
        for value in vars(self).values():
            flat += value if isinstance(value, tuple) else [value]
        return flat


class Gpu(NamedTuple):
    constants: Constants
    hertz: float
    launch: float  # seconds of a launch that follows another, without its blocks


_H200 = Constants()
GPUS = {
    "NVIDIA H200": Gpu(_H200, 1.98e9, 2.0e-6),
    "NVIDIA H100 80GB HBM3": Gpu(
        replace(_H200, memory_bytes=3.35e12 * 0.92 / 1.98e9, second_cache_size=50e6), 1.98e9, 2.0e-6
    ),
}


@dataclass
class Played:
    """A launch as the model played it."""

    program: machine.Program
    config: LaunchConfig
    clocks: float  # of a multiprocessor for its share of the grid
    resident: int
    stalls: list[list[float]]  # of each instruction, by STALLS


@dataclass
class _Recording:
    gpu: Gpu
    launches: list[Played]


_recording: _Recording | None = None


@contextlib.contextmanager
def predicted(gpu: str) -> Iterator[list[Played]]:
    """Inside, launches are played for this GPU and kept in the list; only the blocks that stand for the grid are
    executed, so that results are those of no run."""
    global _recording
    if gpu not in GPUS:
        raise RungError(f"the model of time has no constants of {gpu!r}; it has those of {', '.join(GPUS)}.")
    before, _recording = _recording, _Recording(GPUS[gpu], [])
    machine.library().rung_machine_cold()
    try:
        yield _recording.launches
    finally:
        _recording = before


def recording() -> bool:
    return _recording is not None


def run(
    of: machine.Program, config: LaunchConfig, asked: machine.Asked, execute: Callable[[machine.Asked], None]
) -> None:
    """Executes the blocks that stand for the grid, or all if those wait for others, and plays them."""
    assert _recording is not None
    constants = _recording.gpu.constants
    shared = of.resources.static_shared + config.shared
    resident = limits.occupancy(machine.ARCH, config.threads, of.resources.registers, shared).blocks
    cluster = math.prod(config.cluster or (1, 1, 1))
    units, places = config.blocks // cluster, max(1, int(constants.multiprocessors) // cluster)
    sampled = sample(units, places, max(1, resident))
    some = replace_asked(asked, sampled, only=not config.cooperative)
    try:
        execute(some)
    except EmulatorFault:
        if not some.only:
            raise
        execute(replace_asked(asked, sampled, only=False))
    found = machine.play(of, constants.row(), max(1, resident), shared + limits.KIB)
    if found is None:
        raise RungError(f"{of.place(-1)}: its blocks wait for each other: the model of time does not play that.")
    _recording.launches.append(Played(of, config, found[0], resident, found[1]))


def replace_asked(asked: machine.Asked, sampled: Sequence[int], *, only: bool) -> machine.Asked:
    return asked._replace(sampled=sampled, only=only, timed=False, races=False)


def sample(units: int, places: int, resident: int) -> list[int]:
    """Blocks from all over the grid; the neighbours of two tell whether neighbours share memory."""
    each = -(-units // places)
    most = min(units, _ALONE if each == 1 else min(2 * resident, each, _MOST_SAMPLES))
    step = max(1, units // most)
    step -= step > 1 and step % 2 == 0
    chosen = [i * step for i in range(most)]
    near = [chosen[0] + 1, chosen[most // 2] + 1] if step > 2 else []
    return sorted({*chosen, *(n for n in near if n < units)})
