"""A measure that needs no GPU: times that follow from the configuration alone. Run as a program, it sweeps."""

from __future__ import annotations

import sys
import time
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from pathlib import Path

from rung.dtypes import dtype
from rung.rungs import catalogue
from rung.rungs.base import Device
from rung.sweep import sweep as sweeps

RUNG = "layernorm/09_split"


@dataclass
class Invented:
    """BLOCK 256 without STREAM is the fastest; `calls` are the configurations that were asked for."""

    pause: float = 0.0
    batch: int = 1
    broken: sweeps.Tuning | None = None
    name: str = "invented"
    timed: bool = True
    device: Device = "emulator"
    arch: str = "sm_90"
    calls: list[sweeps.Tuning] = field(default_factory=list)

    def __call__(self, subject: sweeps.Subject, batch: Sequence[sweeps.Tuning], effort: float) -> Iterator[sweeps.Outcome]:
        for tuning in batch:
            self.calls.append(dict(tuning))
            time.sleep(self.pause)
            if tuning == self.broken:
                yield sweeps.Outcome("failed", "wrong result")
                continue
            us, default = _us(tuning), _us(subject.rung.tuned(None))
            yield sweeps.Outcome("ok", "", {"cold_us": us, "ratio": us / default})


def _us(tuning: sweeps.Tuning) -> float:
    return 10 + abs(tuning["BLOCK"] - 256) / 32 + 2 * tuning.get("STREAM", 0)


def subject(rung: str = RUNG, shape: str = "b8t1024") -> sweeps.Subject:
    one = catalogue.find(rung)
    return sweeps.Subject(one, shape, one.operation.complete(one.operation.shapes[shape]), dtype("f32"))


def sweep(store: Path, pause: float = 0.0) -> sweeps.Sweep:
    about = subject()
    return sweeps.sweep(about, sweeps.configurations(about.rung), Invented(pause), store=store)


if __name__ == "__main__":
    sweep(Path(sys.argv[1]), pause=float(sys.argv[2]))
