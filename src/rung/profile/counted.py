"""A rung's counts at one shape."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any, NamedTuple

from gpuless.counts.counters import Launched
from gpuless.counts.counters_explained import figures, summed

PATIENCE = 120.0  # seconds of CPU time without a thread that ends: blocks of a persistent kernel all end last


class Tensor(NamedTuple):
    """An operand or a buffer, and its first address."""

    name: str
    shape: tuple[int, ...]
    size: int  # bytes of an element
    at: int


@dataclass
class Counted:
    """A rung's counts at one shape."""

    rung: str
    dtype: str
    shape: str
    kernels: list[Launched]
    tuning: dict[str, int]
    exact: bool = True  # false: taken from smaller shapes
    sizes: tuple[str, ...] = ()  # the shapes that were run
    memory: list[Tensor] = field(default_factory=list)  # with a trace: what lay where

    def as_json(self) -> dict[str, Any]:
        from rung.profile.counters import SINGLE  # which imports all that reads Nsight's reports

        return {
            "rung": self.rung, "dtype": self.dtype, "shape": self.shape, "tuning": self.tuning,
            "source": "counted on the emulator", "sizes": list(self.sizes),
            "kernels": [
                {
                    "kernel": k.kernel, "grid": list(k.config.grid), "block": list(k.config.block),
                    **({"launches": k.launches} if k.launches > 1 else {}),
                    "figures": figures(k),
                    "nsight": {SINGLE[name]: value for name, value in figures(k).items() if name in SINGLE},
                    "opcodes": dict(summed(k.executed)),
                    "resident": k.resident,
                    "mix": [{"file": f, "line": n, "executed": of} for (f, n), of in sorted(k.executed.items())],
                    "lines": [a._asdict() | vars(c) for a, c in sorted(k.accesses.items())],
                }
                for k in self.kernels
            ],
        }  # fmt: skip
