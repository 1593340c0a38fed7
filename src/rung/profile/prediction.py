"""How long a rung takes on a chosen GPU, predicted without one from the machine code that it would run."""

from __future__ import annotations

import contextlib
from collections.abc import Mapping
from dataclasses import dataclass

from rung.check.operands import Operands
from rung.emulator import module, timing
from rung.errors import RungError
from rung.profile import emulated
from rung.rungs.base import Subject, emulated_multiprocessors


@dataclass(frozen=True)
class Prediction:
    gpu: str
    launches: list[timing.Played]

    @property
    def us(self) -> float:
        of = timing.GPUS[self.gpu]
        return sum(p.clocks / of.hertz + of.launch for p in self.launches) * 1e6


def predict(subject: Subject, tuning: Mapping[str, int] | None = None, gpu: str = "NVIDIA H200") -> Prediction:
    rung, values, dtype = subject.rung, subject.values, subject.dtype
    if rung.kind not in ("cuda", "triton"):
        raise RungError(f"{rung.full_name} is a {rung.kind} rung: only kernels in CUDA C++ and Triton are predicted.")
    operands = Operands(
        rung.operation, values, dtype, rung.operand_names, 1, device="cpu", empty=emulated.aligned_empty
    )
    with contextlib.ExitStack() as here:
        here.enter_context(emulated_multiprocessors(emulated.SMS))
        here.enter_context(module.under(poison=False, seconds=emulated.PATIENCE))
        prepared = rung.prepare(
            operands.tensors, values, dtype, device="emulator", tuning=tuning, empty=emulated.aligned_empty
        )
        launches = here.enter_context(timing.predicted(gpu))
        prepared.run()
    return Prediction(gpu, launches)
