"""How long a rung takes on a chosen GPU, predicted without one from the machine code that it would run."""

from __future__ import annotations

import contextlib
import json
import math
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import NamedTuple

import gpuless
from gpuless import machine, timing
from gpuless.facts import gpus, opcodes
from rung.errors import CompileError, EmulatorFault, RungError
from rung.rungs.base import Subject, emulated_multiprocessors

ERRORS = Path(__file__).with_name("prediction_errors.json")


@dataclass(frozen=True)
class Prediction:
    """The launches of a call as they were simulated."""

    gpu: str
    launches: list[timing.SimulatedLaunch]

    def __post_init__(self) -> None:
        of = gpus.find(self.gpu)
        if of.arch != "sm_90" and self.code == "sm_90" and self.kind == "wgmma, TMA":
            raise RungError(f"It uses wgmma or bulk copies as sm_90 has them, and {of.name} is of {of.arch}.")

    @property
    def basis(self) -> timing.Basis:
        return timing.basis(gpus.find(self.gpu))

    @property
    def kind(self) -> str:
        """Its class, by the units that its instructions use: each has an error of its own."""
        if any(one.together for one in self.launches):
            return "blocks that wait for blocks"
        if sum(p.clocks * p.launches for p in self.launches if p.contended) > 0.5 * sum(
            p.clocks * p.launches for p in self.launches
        ):
            return "contended atomics"
        units = {
            row.unit if row.width != "GROUP" else "warp group"
            for one in self.launches
            for instruction, stalls in zip(one.program.instructions, one.stalls, strict=True)
            if stalls[0] and (row := opcodes.row(instruction.name))
        }
        return "wgmma, TMA" if units & {"warp group", "TMA"} else "mma.sync" if "TENSOR" in units else "plain"

    @property
    def code(self) -> str:
        """The architecture whose code was simulated."""
        return self.launches[0].program.arch.rstrip("af") if self.launches else ""

    @property
    def parts(self) -> list[float]:
        """Microseconds of each launch."""
        return [timing.microseconds(gpus.find(self.gpu), one) for one in self.launches]

    @property
    def us(self) -> float:
        return sum(us * p.launches for us, p in zip(self.parts, self.launches, strict=True))


class Error(NamedTuple):
    """Of predictions of one class: shares of the measured time."""

    rungs: int
    mean: float
    median: float
    ninetieth: float
    worst: float


def error(kind: str) -> Error | None:
    """Of rungs on which no constant was fitted; benchmarks/predictions.py writes the file."""
    known = json.loads(ERRORS.read_text()) if ERRORS.is_file() else {}
    return Error(**known[kind]) if kind in known else None


def limit(subject: Subject, gpu: str) -> float:
    """Microseconds that no kernel can beat: compulsory bytes and operations at the data sheet's rates."""
    rates = gpus.find(gpu).rates
    cost = subject.rung.operation.cost_with(subject.values, subject.dtype, subject.rung.binds)
    return max(cost.bytes / rates["bytes"], cost.flops / rates.get(subject.dtype.name, math.inf)) * 1e6


def predict(subject: Subject, tuning: Mapping[str, int] | None = None, gpu: str = gpus.USUAL) -> Prediction:
    """From the code for the GPU's architecture, or from that for sm_90 where the machine does not execute it."""
    rung, of = subject.rung, gpus.find(gpu)
    if rung.kind not in ("cuda", "triton"):
        raise RungError(f"{rung.full_name} is a {rung.kind} rung: only kernels in CUDA C++ and Triton are predicted.")
    if of.arch == "sm_90":
        return _predict(subject, tuning, of, machine.ARCH)
    try:
        return _predict(subject, tuning, of, of.arch)
    except EmulatorFault as fault:
        if fault.kind != "unsupported":
            raise
    except CompileError as problem:
        raise RungError(f"{rung.full_name} does not compile for {of.arch} ({of.name}): {problem}") from None
    return _predict(subject, tuning, of, machine.ARCH)


def _predict(subject: Subject, tuning: Mapping[str, int] | None, of: gpus.Gpu, arch: str) -> Prediction:
    from rung.check.operands import Operands
    from rung.profile import emulated
    from rung.profile.counted import PATIENCE

    rung, values, dtype = subject.rung, subject.values, subject.dtype
    operands = Operands(
        rung.operation, values, dtype, rung.operand_names, 1, device="cpu", empty=emulated.aligned_empty
    )
    with contextlib.ExitStack() as here:
        here.enter_context(emulated_multiprocessors(of.multiprocessors))
        here.enter_context(gpuless.under(poison=False, seconds=PATIENCE, arch=arch))
        prepared = rung.prepare(
            operands.tensors, values, dtype, device="emulator", tuning=tuning, empty=emulated.aligned_empty
        )
        launches = here.enter_context(gpuless.current().predicted(of.key, timing.sets_of(operands.bytes)))
        prepared.run()
    return Prediction(of.name, launches)
