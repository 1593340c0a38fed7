"""How the configurations of a sweep are evaluated: timed on a GPU, by the compiler's report, or emulated."""

from __future__ import annotations

import copy
import gc
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from typing import Any

import torch

from rung.errors import RungError, first_line
from rung.profile import inspect
from rung.rungs import base
from rung.rungs.base import Device, Rung, Subject
from rung.rungs.cuda import CudaRung
from rung.sweep.sweep import ContextLost, Measure, Outcome, Tuning

BATCH = 7  # plus the default


def measure_named(name: str | None, arch: str | None = None) -> Measure:
    """`time` (GPU), `compiler` or `emulator`; by default, the best that this machine allows."""
    gpu = torch.cuda.is_available()
    if name is None:
        name = "time" if gpu else "compiler"
    if name == "time":
        if not gpu:
            raise RungError(
                "no CUDA device was found to take times on; --measure compiler and --measure emulator need none."
            )
        return Timed()
    if name == "compiler":
        return Compiled(arch or base.arch())
    if name == "emulator":
        return Emulated()
    raise RungError(f"--measure {name} is not known; use time, compiler or emulator.")


class Compiled:
    """Registers, occupancy and spills, without a GPU and without times."""

    name, timed, batch = "compiler", False, 1
    device: Device = "emulator"

    def __init__(self, arch: str) -> None:
        self.arch = arch

    def __call__(self, subject: Subject, batch: Sequence[Tuning], effort: float) -> Iterator[Outcome]:
        for tuning in batch:
            found = compiler_figures(subject, tuning, self.arch)
            yield Outcome("failed" if found.reason else "ok", found.reason, dict(found.figures), detail=found.detail)


class Emulated:
    """Right or wrong, on the emulator, at the operation's first case, without times."""

    name, timed, batch = "emulator", False, 1
    device: Device = "emulator"
    arch = "sm_90"

    def __call__(self, subject: Subject, batch: Sequence[Tuning], effort: float) -> Iterator[Outcome]:
        from rung.check.judge import check

        for tuning in batch:
            report = check(subject.rung, subject.dtype.name, device="emulator", tuning=tuning, quick=True)
            right = report.verdict == "ok"
            yield Outcome("ok" if right else "failed", report.reason, {"element": report.element})


class Timed:
    """Checked and timed on the GPU, a batch interleaved with the default configuration."""

    name, timed = "time", True
    device: Device = "cuda"

    def __init__(self, batch: int = BATCH) -> None:
        self.batch = batch
        self.arch = base.arch()

    def __call__(self, subject: Subject, batch: Sequence[Tuning], effort: float) -> Iterator[Outcome]:
        from rung.bench import race

        default = subject.rung.tuned(None)
        tunings = [default, *(t for t in batch if t != default)]
        variants = [_variant(subject.rung, t) for t in tunings]
        try:
            rows = race.bench(
                variants,
                shape=subject.shape,
                values=subject.values,
                dtype=subject.dtype.name,
                tunings={v.full_name: t for v, t in zip(variants, tunings, strict=True)},
                seconds=effort,
                warm=False,
            )
        except RuntimeError as error:
            if not _alive() and len(batch) == 1:
                raise ContextLost(dict(batch[0]), first_line(error)) from None
            if not _alive():
                raise ContextLost({}, first_line(error)) from None
            gc.collect()
            torch.cuda.empty_cache()
            yield from [Outcome("failed", first_line(error))] * len(batch)
            return
        if not _alive():
            failed_at = next((i for i, r in enumerate(rows) if r.verdict == "failed"), 0)
            raise ContextLost(dict(tunings[failed_at]), rows[failed_at].reason)
        reference = rows[0].cold_us if rows[0].verdict == "ok" else None
        found = {_key(t): r for t, r in zip(tunings, rows, strict=True)}
        del variants
        gc.collect()
        torch.cuda.empty_cache()
        for tuning in batch:
            yield _outcome(found[_key(tuning)], reference, subject, tuning, self.arch)


def _outcome(row: Any, reference: float | None, subject: Subject, tuning: Tuning, arch: str) -> Outcome:
    compiled = CompilerFigures()
    if isinstance(subject.rung, CudaRung):
        compiled = compiler_figures(subject, tuning, arch)
    if row.verdict != "ok" or row.cold_us is None:
        reason = row.reason or "no time was taken"
        verdict = "illegal" if row.verdict == "refused" else "failed"
        return Outcome(verdict, reason, dict(compiled.figures), detail=compiled.detail)
    figures = {
        **compiled.figures,
        "cold_us": row.cold_us,
        "cold_p20_us": row.cold_p20_us,
        "cold_p80_us": row.cold_p80_us,
        "n": row.n,
        "default_us": reference,
        "ratio": row.cold_us / reference if reference else None,
        "gbps": row.gbps,
        "tflops": row.tflops,
    }
    samples = {"cold_us": row.cold_samples_us}
    return Outcome("ok", "", figures, samples, compiled.detail, row.notes)


@dataclass(frozen=True)
class CompilerFigures:
    """The compiler's report on a configuration, or the reason why there is none."""

    figures: dict[str, float | None] = field(default_factory=dict)
    detail: dict[str, str] = field(default_factory=dict)
    reason: str = ""


def compiler_figures(subject: Subject, tuning: Tuning, arch: str) -> CompilerFigures:
    """Registers, spills and occupancy over the rung's kernels (the worst of each), or why there are none."""
    shape = (subject.shape, subject.values)
    rows = list(
        inspect.inspect([subject.rung], [arch], dtype=subject.dtype.name, shape=shape, tuning=tuning, mix=False)
    )
    bad = next((r for r in rows if r.state == "failed"), None)
    if bad is not None:
        return CompilerFigures(reason=" ".join(bad.reason.split())[:300])
    measured = [r for r in rows if r.occupancy is not None]
    if not measured:
        return CompilerFigures(reason=rows[0].reason if rows else "nothing was compiled")
    tightest = min(measured, key=lambda r: r.occupancy or 0.0)
    figures: dict[str, float | None] = {
        "registers": max(r.registers or 0 for r in measured),
        "shared": max((r.static_shared or 0) + (r.dynamic_shared or 0) for r in measured),
        "spills": sum((r.spill_stores or 0) + (r.spill_loads or 0) for r in measured),
        "occupancy": tightest.occupancy,
        "threads": max(_threads(r.block) for r in measured),
        "blocks_sm": tightest.blocks_sm,
    }
    return CompilerFigures(figures, {"limiter": tightest.limiter} if tightest.limiter else {})


def _threads(block: tuple[int, int, int] | None) -> int:
    x, y, z = block or (1, 1, 1)
    return x * y * z


def _variant(rung: Rung, tuning: Tuning) -> Rung:
    """The same rung under another name, so that several configurations can be timed in one race."""
    variant = copy.copy(rung)
    variant.name = f"{rung.name}[{_key(tuning)}]"
    return variant


def _key(tuning: Tuning) -> str:
    return ",".join(f"{n}={v}" for n, v in sorted(tuning.items()))


def _alive() -> bool:
    try:
        torch.cuda.synchronize()
    except RuntimeError:
        return False
    return True
