"""Shared by the studies: measuring times, and their results."""

from __future__ import annotations

import gc
import math
import statistics
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Protocol

import torch

from gpuless.base.expressions import Number
from rung import arrays
from rung.dtypes import Dtype
from rung.dtypes import dtype as dtype_named
from rung.errors import RungError, first_line
from rung.operation import Tensors, Values
from rung.rungs import catalogue
from rung.rungs.base import Rung

LAUNCHES = 200


@dataclass(frozen=True)
class Time:
    """One entry of a race: microseconds (cold), or the reason why there is no time."""

    us: float | None
    reason: str = ""
    norm: float = 0.0  # overall error relative to the float64 reference
    tflops: float | None = None


class Runner(Protocol):
    """The source of a study's figures."""

    quick: bool  # fewer points

    @property
    def gpu(self) -> bool:
        """Whether times can be measured here."""

    @property
    def sms(self) -> int:
        """Multiprocessors."""

    def race(
        self, rungs: Sequence[str | Rung], values: Mapping[str, Number], dtype: str, seconds: float = 0.15
    ) -> dict[str, Time]:
        """Rungs and libraries of one operation against each other, by full name, checked.

        Without a GPU: only the errors of the first that the emulator can run.
        """

    def host(self, rungs: Sequence[str], shape: str, dtype: str) -> float | None:
        """Microseconds that the host takes to launch these one after the other."""

    def peak(self, rung: str, values: Mapping[str, Number], dtype: str) -> int | None:
        """Peak memory of a call in addition to its operands, in bytes; None if it cannot run."""


class Gpu:
    """Races on this machine."""

    def __init__(self, *, quick: bool = False, report: Callable[[str], None] = lambda _: None) -> None:
        self.quick, self.report = quick, report
        self.raced: dict[str, None] = {}  # the rungs that ran

    @property
    def gpu(self) -> bool:
        return torch.cuda.is_available()

    @property
    def sms(self) -> int:
        return torch.cuda.get_device_properties(torch.cuda.current_device()).multi_processor_count

    def race(
        self, rungs: Sequence[str | Rung], values: Mapping[str, Number], dtype: str, seconds: float = 0.15
    ) -> dict[str, Time]:
        from rung.bench import race as bench

        shown = ", ".join(f"{n}={v}" for n, v in values.items())
        chosen = [catalogue.find(r) if isinstance(r, str) else r for r in rungs]
        self.report(f"{chosen[0].operation.name} {dtype} {shown}")
        self.raced |= dict.fromkeys(r.full_name for r in chosen if catalogue.shipped(r))
        if not self.gpu:
            return _emulated(chosen, dtype)
        running = [r for r in chosen if dtype in r.dtypes]
        found = {r.full_name: Time(None, f"has no {dtype} version") for r in chosen if r not in running}
        try:
            rows = bench.bench(
                running,
                shape="study",
                values=values,
                dtype=dtype,
                seconds=0.06 if self.quick else seconds,
                warm=False,
            ) if running else []  # fmt: skip
        except (RungError, RuntimeError) as error:  # out of memory, mostly
            return {r.full_name: Time(None, first_line(error, 120)) for r in chosen}
        finally:
            gc.collect()
            torch.cuda.empty_cache()
        for row in rows:
            time = row.cold_us if row.verdict == "ok" else None
            found[row.rung] = Time(time, row.reason, row.norm, row.tflops)
        return found

    def host(self, rungs: Sequence[str], shape: str, dtype: str) -> float | None:
        runs = [self._bound(catalogue.find(name), shape, dtype) for name in rungs]
        taken = []
        for _ in range(9):
            torch.cuda.synchronize()
            began = time.perf_counter()
            for _ in range(LAUNCHES):  # the GPU works them off later
                for run in runs:
                    run()
            taken.append((time.perf_counter() - began) / LAUNCHES)
        return statistics.median(taken) * 1e6

    def _bound(self, rung: Rung, shape: str, dtype: str) -> Callable[[], None]:
        values, real = rung.operation.complete(rung.operation.shapes[shape]), dtype_named(dtype)
        return rung.prepare(_operands(rung, values, real), values, real, device="cuda").run

    def peak(self, rung: str, values: Mapping[str, Number], dtype: str) -> int | None:
        one, real = catalogue.find(rung), dtype_named(dtype)
        if dtype not in one.dtypes:
            return None
        whole = one.operation.complete(values)
        try:
            tensors = _operands(one, whole, real)
            torch.cuda.synchronize()
            gc.collect()
            torch.cuda.empty_cache()
            torch.cuda.reset_peak_memory_stats()
            before = torch.cuda.memory_allocated()
            call = one.prepare(tensors, whole, real, device="cuda")
            call.run()
            torch.cuda.synchronize()
            return torch.cuda.max_memory_allocated() - before
        except (RungError, RuntimeError):
            return None
        finally:
            gc.collect()
            torch.cuda.empty_cache()


def _operands(rung: Rung, values: Values, real: Dtype) -> Tensors:
    """One call's operands on the GPU."""
    make = lambda _, shape, kind: arrays.empty(shape, kind, "cuda")  # noqa: E731
    return rung.operation.inputs(values, real, 1, empty=make, names=rung.operand_names, device="cuda")


def _emulated(rungs: Sequence[Rung], dtype: str) -> dict[str, Time]:
    """The largest error over the operation's cases, of the first rung that the emulator can run; no time."""
    from rung.check.judge import check

    found: dict[str, Time] = {}
    for rung in rungs:
        if dtype not in rung.dtypes:
            found[rung.full_name] = Time(None, f"has no {dtype} version")
            continue
        report = check(rung, dtype, device="emulator")
        right = report.verdict == "ok"
        found[rung.full_name] = Time(None, "" if right else report.reason or report.verdict, report.norm)
        if right:
            break
    return found


def need_gpu(runner: Runner, study: str) -> None:
    """Refuse a study of times on a machine without a GPU."""
    if not runner.gpu:
        stored = "stored ones: `rung results --kind study`, `rung reproduce`"
        raise RungError(f"`rung study {study}` measures times, and no CUDA device was found; {stored}.")


def times(factor: float) -> str:
    """A ratio in words of the same length: 5.1x, 120x."""
    return f"{factor:.2g}x" if factor < 10 else f"{factor:.0f}x"


def shown(us: float | None) -> str:
    """Microseconds with three figures; empty for None."""
    if us is None:
        return ""
    digits = max(0, 2 - math.floor(math.log10(us))) if us > 0 else 0
    return f"{us:.{min(digits, 3)}f}"
