"""What a check found about one rung in one dtype."""

from __future__ import annotations

import time
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import asdict, dataclass, field
from typing import Any, Literal

from rung.emulator.coverage import Unreached

Verdict = Literal["ok", "failed", "few cases", "arithmetic only", "calls the library", "compiled", "skipped"]
NOT_JUDGED: tuple[Verdict, ...] = ("few cases", "arithmetic only", "calls the library", "compiled", "skipped")
SHARE_REFUSED = 0.5  # a rung whose `needs` refuses a larger share of the cases is not called right


@dataclass
class Report:
    """The findings about one rung in one dtype."""

    rung: str
    dtype: str
    device: str
    verdict: Verdict = "ok"
    reason: str = ""
    cause: str = ""  # of a failure: "values", "compile", or the kind of the emulator's fault
    case: str = ""  # where it failed
    cases: int = 0
    runs: int = 0
    element: float = 0.0  # worst error / bound
    norm: float = 0.0
    norm_cap: float = 0.0
    nondeterministic: bool = False
    tunings: int = 0  # values of tunables tried besides the defaults
    notes: list[str] = field(default_factory=list)
    unreached: list[Unreached] = field(default_factory=list)  # branches that no case takes, where they were counted
    left_out: dict[str, str] = field(default_factory=dict)  # case -> rule that excludes it
    seconds: dict[str, float] = field(default_factory=dict)  # seconds by phase

    def as_json(self) -> dict[str, Any]:
        return asdict(self)

    @contextmanager
    def phase(self, name: str) -> Iterator[None]:
        """Adds the duration of the block to the phase."""
        start = time.perf_counter()
        try:
            yield
        finally:
            self.seconds[name] = self.seconds.get(name, 0.0) + time.perf_counter() - start


class Failure(Exception):
    """A rung failed; the message says why. `kind` is "values" if its outputs are wrong, or that of an error."""

    def __init__(self, message: str, kind: str = "") -> None:
        super().__init__(message)
        self.kind = kind
