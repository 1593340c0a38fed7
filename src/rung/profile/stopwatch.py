"""How a kernel spends its time, from a build of the rung with timers.

A rung whose header has `[inside]` counts cycles in a buffer (blocks, rows, columns) when it is compiled with
RUNG_TIMED (see stopwatch.cuh). Counting costs a little, so both builds are timed, and both times reported.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import asdict, dataclass
from typing import Any

import torch

from rung.bench import timing
from rung.dtypes import Dtype
from rung.errors import RungError
from rung.operation import Tensors, Values
from rung.rungs.base import Prepared, Rung
from rung.rungs.cuda import CudaRung

CALLS = 32
TIMED = "RUNG_TIMED"


@dataclass(frozen=True)
class Inside:
    """Seconds of a call by row and column, the mean of all blocks; `rows` are grouped by the thread that counted."""

    rung: str
    blocks: int
    seconds: float  # of a call
    timed_seconds: float  # of a call of the build with timers, which the table describes
    default_tuning: bool  # both with the rung's own values, because with the tuned ones the timers' registers spill
    columns: tuple[str, ...]
    rows: tuple[tuple[str, ...], ...]
    spent: list[list[float]]  # a list for each row

    def as_json(self) -> dict[str, Any]:
        return asdict(self)

    def groups(self) -> list[list[tuple[str, list[float]]]]:
        """(row, seconds by column) for each thread that counts."""
        left = iter(self.spent)
        return [[(row, next(left)) for row in group] for group in self.rows]


def of(
    rung: Rung, tensors: Tensors, values: Values, dtype: Dtype, tuning: Mapping[str, int] | None = None
) -> Inside | None:
    """Time both builds on these tensors; None if the rung does not count."""
    if not isinstance(rung, CudaRung) or rung.header.inside is None:
        return None
    if not torch.cuda.is_available():
        raise RungError("a time inside a kernel needs a CUDA device, and none was found.")
    builds = rung, rung.built_for(TIMED)
    plain, timed = (b.prepare(tensors, values, dtype, device="cuda", tuning=tuning) for b in builds)
    default_tuning = spills(timed) and not spills(plain) and timed.tuning != rung.tuned({})
    if default_tuning:  # spilled registers would cost more than the waits that the table should show
        plain, timed = (b.prepare(tensors, values, dtype, device="cuda", tuning={}) for b in builds)
    for call in (plain, timed):
        call.run()
    counter = timed.buffers[rung.header.inside.counter]
    counter.zero_()
    seconds, timed_seconds = _seconds(plain), _seconds(timed)
    return table(rung, counter.cpu(), seconds, timed_seconds, default_tuning=default_tuning)


def spills(call: Prepared) -> bool:
    return call.module is not None and any(r.spill_stores or r.spill_loads for r in call.module.resources.values())


def table(
    rung: CudaRung, counted: torch.Tensor, seconds: float, timed_seconds: float, *, default_tuning: bool = False
) -> Inside:
    """Converts the cycles (blocks, rows, columns) of CALLS calls to seconds per call: the longest-running thread is
    taken to run all the time."""
    inside = rung.header.inside
    assert inside is not None
    sizes = [len(group) for group in inside.rows]
    if counted.dim() != 3 or counted.shape[1:] != (sum(sizes), len(inside.columns)):
        expected = f"(blocks, {sum(sizes)}, {len(inside.columns)})"
        raise RungError(f"{rung.full_name}: {inside.counter} is {tuple(counted.shape)}; [inside] says {expected}.")
    cycles = counted.double() / CALLS
    by_thread = torch.split(cycles, sizes, dim=1)
    whole = max(float(part.sum((1, 2)).max()) for part in by_thread)
    if whole <= 0:
        raise RungError(f"{rung.full_name} counted nothing; check that it calls its stopwatch's stop().")
    spent = (cycles.mean(0) * (timed_seconds / whole)).tolist()
    blocks = len(counted)
    return Inside(rung.full_name, blocks, seconds, timed_seconds, default_tuning, inside.columns, inside.rows, spent)


def _seconds(call: Prepared) -> float:
    """Seconds per call, for CALLS consecutive calls on the device."""

    def calls() -> None:
        for _ in range(CALLS):
            call.run()

    return timing.seconds(calls) / CALLS
