"""What is asked of a check, and what it found about one rung in one dtype. Nothing here needs torch."""

from __future__ import annotations

import math
import time
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import asdict, dataclass, field
from typing import TYPE_CHECKING, Any, Literal

from gpuless.compile.source import Unreached
from gpuless.counts import fidelity
from rung.rungs.base import Device, Rung

if TYPE_CHECKING:
    from rung.results.row import Row

Verdict = Literal["ok", "failed", "few cases", "calls the library", "compiled", "skipped", "stopped", "not judged"]
NOT_JUDGED: tuple[Verdict, ...] = ("few cases", "calls the library", "compiled", "skipped", "stopped", "not judged")
SHARE_REFUSED = 0.5  # a rung whose `needs` refuses a larger share of the cases is not called right


@dataclass(frozen=True)
class Effort:
    """What a check may cost, in seconds per run (of the emulator, of instructions: runner.PACE), and what it adds for a
    rung that is checked alone."""

    affordable: float  # seconds of a run, for the case with all checks
    alone: bool  # tries every pair of values of two tunables, and runs the usual checks of one case at all
    later_runs: int  # at the smallest case, before its outputs are compared again
    shapes: float = 1.0  # share of the work of `THOROUGH` on shapes that no case has
    slow: float = math.inf  # seconds of a kernel's run on a GPU from which one run of a case is enough
    patience: float = 5.0  # seconds: a case whose run on a GPU is forecast to take longer is left out and reported


LADDER = Effort(0.02, alone=False, later_runs=0, slow=0.25, patience=1.5)
THOROUGH = Effort(0.3, alone=True, later_runs=2100)
ALONE = Effort(0.1, alone=True, later_runs=2100, shapes=0.06)
QUICK = Effort(0.0, alone=False, later_runs=0)
_MEANT = "If that is meant, the header has the line {} = {}, and a Python file {} = {}"
ADMITS = {  # what a key of the header admits, and how it is told where the key is missing
    "loses_nan": "NaN is lost: fmaxf and fminf return their other number; x < 0 ? 0 : x keeps it",
    "only_finite": "NaN is given where an input is infinite: exp(m - m) is NaN for m = -INFINITY, as in a masked row",
}


def admitted_by(key: str) -> str:
    """Why a result is refused that this key of the header admits, and how to write it."""
    return f"{ADMITS[key]}. {_MEANT.format(key, 'true', key.upper(), True)}"


def right_where(needs: str, place: Mapping[str, Any]) -> str:
    """What the calls tried have shown of a condition, and how to write it."""
    line = f'the header has the line needs = "{needs}", and a Python file NEEDS = "{needs}"'
    return f"It {wrong_beyond(needs, place)}, in all calls tried. Only if it is for such sizes alone, {line}."


def wrong_beyond(needs: str, place: Mapping[str, Any]) -> str:
    """That a kernel is wrong at other sizes, and in which line."""
    return f"is wrong{' in line ' + str(place['line']) if place.get('line') else ''} unless {needs}"


OF_THE_KERNEL = ("barrier", "race", "trap", "deadlock", "async")  # faults that seldom come from wrong arguments
SLOW = "slow"  # the kind of a failure by the limit on a run's work
TIME = "time"  # of what a limit on time has ended: judged again, it may get a verdict
RAISED = "raised"  # the kind of an error that the file itself raises: it does not take such a call
REFUSES = "refuses"  # the same, by an exception with which code says so
OFTEN = 0.03  # seconds per run, for cases that every setting of the tunables is checked at


@dataclass(frozen=True)
class CheckRequest:
    """One rung in one dtype, and how it is checked: plain data, which the processes of a check exchange."""

    rung: str = ""  # "layernorm/03_restrict"
    dtype: str = ""
    device: Device = "emulator"
    file: str | None = None  # of a rung that is not the ladder's
    seed: int = 0
    case: str | None = None
    tuning: tuple[tuple[str, int], ...] = ()
    coverage: bool = False  # branches that no case has taken are reported
    effort: Effort = LADDER

    @property
    def operation(self) -> str:
        return self.rung.partition("/")[0]

    @property
    def tuned(self) -> dict[str, int] | None:
        return dict(self.tuning) or None

    @property
    def quick(self) -> bool:
        return self.effort is QUICK or self.effort == QUICK


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
    place: dict[str, Any] = field(default_factory=dict)  # of a fault: file, line, kernel, block and thread
    related: list[dict[str, Any]] = field(default_factory=list)  # what a race is with
    failure: dict[str, Any] = field(default_factory=dict)  # of wrong values: the call, places, pairs, what separates
    seconds: dict[str, float] = field(default_factory=dict)  # seconds by phase
    kernels: list[str] = field(default_factory=list)  # of a file: those that its call launches
    fidelity: dict[str, Any] = field(default_factory=dict)  # how their instructions were executed here

    def as_json(self) -> dict[str, Any]:
        return asdict(self)

    def add(self, other: Report, before: Report) -> None:
        """What a copy of `before` has found in another process."""
        self.runs += other.runs - before.runs
        self.tunings += other.tunings - before.tunings
        self.element, self.norm = max(self.element, other.element), max(self.norm, other.norm)
        self.nondeterministic |= other.nondeterministic
        self.notes = list(dict.fromkeys([*self.notes, *other.notes]))
        self.fidelity = fidelity.merged(filter(None, [self.fidelity, other.fidelity]))
        for phase, seconds in other.seconds.items():
            self.seconds[phase] = self.seconds.get(phase, 0.0) + seconds - before.seconds.get(phase, 0.0)
        if other.verdict != "ok":
            self.verdict, self.reason, self.cause = other.verdict, other.reason, other.cause
            self.case, self.failure = other.case, other.failure
            self.place, self.related = other.place, other.related

    @contextmanager
    def phase(self, name: str) -> Iterator[None]:
        """Adds the duration of the block to the phase."""
        start = time.perf_counter()
        try:
            yield
        finally:
            self.seconds[name] = self.seconds.get(name, 0.0) + time.perf_counter() - start


class Failure(Exception):
    """A rung failed; the message says why. `kind` is "values" if its outputs are wrong, or that of an error; it would
    be right if the outputs `zeroed` were zero before. `unwritten`: elements of an output still hold the poison."""

    def __init__(self, message: str, kind: str = "", zeroed: Sequence[str] = (), *, unwritten: bool = False) -> None:
        super().__init__(message)
        self.kind, self.zeroed, self.unwritten = kind, [*zeroed], unwritten


def as_result(report: Report, rung: Rung) -> Row:
    """A report as the results store keeps it."""
    from rung.results import machine
    from rung.results.row import Row
    from rung.rungs import identity

    figures = {
        "cases": report.cases,
        "runs": report.runs,
        "error_element": report.element,
        "error_norm": report.norm,
        "norm_cap": report.norm_cap,
        **{f"seconds_{phase}": round(seconds, 3) for phase, seconds in report.seconds.items()},
    }
    detail = {"case": report.case, "nondeterministic": report.nondeterministic, "left_out": report.left_out}
    facts = machine.facts()
    return Row(
        kind="check",
        what=report.rung,
        dtype=report.dtype,
        options={"device": report.device},
        texts={rung.full_name: identity.text(rung)},
        verdict=report.verdict,
        reason=report.reason,
        metrics={name: float(value) for name, value in figures.items() if value is not None},
        detail={name: value for name, value in detail.items() if value},
        notes=list(report.notes),
        machine=facts if report.device == "cuda" else {**facts, "gpu": ""},
    )


def known(device: str, rows: Iterable[Row]) -> set[tuple[str, str]]:
    """The rungs and number formats whose present code is known to be right on this device."""
    from rung.results import codes

    some = (r for r in rows if r.kind == "check" and r.options.get("device") == device and r.verdict != "failed")
    return {(r.what, r.dtype) for r in some if codes.current(r)}


def exit_code(reports: Sequence[Report], libraries: set[str]) -> int:
    """1 if a rung is wrong, 3 if a rung was not judged; a library that needs a GPU may be skipped among others."""
    if any(r.verdict == "failed" for r in reports):
        return 1
    if any(r.verdict == "stopped" for r in reports):
        return 130
    unjudged = [r for r in reports if r.verdict in NOT_JUDGED and r.verdict != "skipped" and r.rung not in libraries]
    return 3 if unjudged or not any(r.verdict == "ok" for r in reports) else 0
