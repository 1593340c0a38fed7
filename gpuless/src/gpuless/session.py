"""A session: how launches run, what is looked for, and what was executed.

Launches belong to the innermost session that is open (`with Session(...)`), or to the process' own. Nothing
else of this package holds state between launches.
"""

from __future__ import annotations

import contextlib
import functools
import math
import threading
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from typing import Any, Literal

from gpuless import machine, timing
from gpuless.base.errors import EmulatorFault, UserError
from gpuless.counts import counters, coverage
from gpuless.facts import gpus, limits
from gpuless.launch import LaunchConfig

Order = Literal["forward", "reverse", "shuffled"]
ORDERS: tuple[Order, ...] = ("forward", "reverse", "shuffled")
MOST_BLOCKS = 1 << 26  # of a launch; the machine keeps their order, and they take a minute at least
WAITS = "ACQBULK"  # what griddepcontrol.wait compiles to
_PATTERNS = 5  # patterns of unwritten memory: NaN first, then others from launch to launch
_one_at_a_time = threading.Lock()  # the machine keeps the counts and traces of the last launch


@dataclass(frozen=True)
class Settings:
    """How threads take turns, and what is looked for. A result that depends on `order` or `seed` is a race."""

    order: Order = "forward"
    seed: int = 0
    poison: bool = True  # at the start of every block, shared memory holds a pattern that no kernel has written
    seconds: float = 6.0  # of CPU time, until the launch is stopped; if `steps` is 0
    steps: int = 0  # instructions of warps, until the launch is stopped: at the same place on any machine
    check_races: bool = False  # accesses that nothing orders are looked for; takes twice as long
    counters: bool = False  # what the instructions do is counted; counters.py reports it by line
    coverage: bool = False  # branches are counted; coverage.py reports them by line
    few: int = 0  # of each launch only so many blocks run: the first, the middle, the last and drawn ones
    arch: str = machine.ARCH  # that modules are compiled for, and whose limits hold

    def __post_init__(self) -> None:
        if self.order not in ORDERS:
            raise UserError(f"Thread order '{self.order}' is not known: take one of {', '.join(ORDERS)}.")


class Session:
    """The settings of launches, and their record: `launches`, `steps` (instructions of warps), `atomics`, whether a
    module `keeps_state`, the last read of what nothing had written, counts and coverage by line."""

    def __init__(self, **settings: Any) -> None:
        self.settings = Settings(**settings)
        self.launches = self.steps = self.atomics = 0
        self.stored = 0  # bytes, by usual instructions in global memory, where few blocks run
        self.keeps_state = False
        self.unwritten: EmulatorFault | None = None  # the last read of shared or local memory that nothing had written
        self.coverage = coverage.Executed()
        self.counts: list[counters.Launched] | None = None  # of launches that count; None: not kept
        self.room = 0  # for requests of a launch that are kept
        self._prediction: timing.Recording | None = None
        self._left_out: int | None = None  # launches that may still be skipped
        self._followed = False  # a dependent launch has been bound: those ahead of such keep what they touch
        self._ahead = False  # an unknown kernel may still run when the next launch begins

    def __enter__(self) -> Session:
        _open.append(self)
        return self

    def __exit__(self, *_: object) -> None:
        _open.remove(self)

    @contextlib.contextmanager
    def under(self, **changes: Any) -> Iterator[Session]:
        """Inside, launches run with these changes of the settings."""
        before, self.settings = self.settings, replace(self.settings, **changes)
        try:
            yield self
        finally:
            self.settings = before

    @contextlib.contextmanager
    def recorded(self) -> Iterator[list[counters.Launched]]:
        """Inside, launches that count are kept in the list."""
        before, self.counts = self.counts, []
        try:
            yield self.counts
        finally:
            self.counts = before

    @contextlib.contextmanager
    def traced(self, room: int = counters.TRACED) -> Iterator[None]:
        """Inside, recorded launches keep so many requests; a third each: stores to global memory of the first block,
        those of other blocks, and other requests of the first block."""
        self.room = room
        try:
            yield
        finally:
            self.room = 0

    @contextlib.contextmanager
    def predicted(self, gpu: str, sets: float = math.inf) -> Iterator[list[timing.SimulatedLaunch]]:
        """Inside, launches are simulated for this GPU and kept in the list; only the blocks that stand for the grid are
        executed, so that results are those of no run. `sets`: of operands, that calls take in turn."""
        before, self._prediction = self._prediction, timing.Recording(gpus.find(gpu), sets, [])
        machine.clear_caches()
        try:
            yield self._prediction.launches
        finally:
            self._prediction = before

    @contextlib.contextmanager
    def without_launches(self, most: int = 10_000) -> Iterator[None]:
        """Inside, launches do nothing; one more than `most` is an error."""
        self._left_out = most
        try:
            yield
        finally:
            self._left_out = None

    def follow_unknown(self) -> None:
        """The next launch may start while an unknown kernel still runs: one of another part of the model."""
        self._ahead = True

    def expect_dependent(self) -> None:
        """A dependent launch will follow: those ahead of it keep what they touch."""
        self._followed = True

    def admit(self) -> bool:
        """Counts a launch, and returns whether it is to run."""
        self.launches += 1
        if self._left_out is None:
            return True
        self._left_out -= 1
        if self._left_out < 0:
            raise UserError("the run waits for what its kernels would have written")
        return False

    def execute(
        self,
        program: machine.Program,
        config: LaunchConfig,
        variables: machine.Variables,
        values: Sequence[machine.Bytes],
        regions: Sequence[machine.Region],
        *,
        settings: Settings | None = None,
        bounds: bool = True,
        tiles: bool = False,
    ) -> None:
        """Runs a kernel's machine code on the whole grid, and records what it did. `bounds`: no memory outside the
        regions is touched. `tiles`: the code is Triton's, whose threads hold elements of tiles."""
        settings = settings or self.settings
        room = self.room if self.counts is not None and settings.counters else 0
        with _one_at_a_time:
            options = machine.LaunchOptions(
                order=ORDERS.index(settings.order),
                seed=settings.seed & 0xFFFFFFFF,
                races=settings.check_races,
                seconds=settings.seconds,
                steps=settings.steps,
                poison=1 + max(self.launches - 1, 0) % _PATTERNS if settings.poison else 0,
                ahead=self._ahead,
                followed=self._followed,
                bounds=bounds,
                tiles=tiles,
                counts=settings.counters,
                room=room,
                few=settings.few,
            )
            self._ahead = False
            self.keeps_state |= variables.written
            run = functools.partial(machine.run, program, config, variables, values, options, regions)
            try:
                self._prediction.run(program, config, run) if self._prediction else run()
            finally:  # what a launch has done that is stopped counts, too
                tally = program.tally()
                self.steps += sum(warps for warps, _ in tally)
                self.atomics += sum(tally[n][1] for n in program.atomics)
                if settings.coverage:
                    self.coverage.add(program, tally)
                if settings.few:
                    self.stored += sum(lanes * n for (_, lanes), n in zip(tally, program.stores, strict=True) if n)
            if found := machine.unwritten(program, config) if settings.poison else None:
                self.unwritten = found
            if settings.counters and self.counts is not None:
                self.counts.append(counters.collect(program, config, room))
            executed = (i.name for (n, _), i in zip(tally, program.instructions, strict=True) if n)
            if config.pdl and not tiles and not any(name == WAITS for name in executed):
                raise EmulatorFault(
                    "async",
                    f"{program.origin}: kernel '{program.kernel}' is launched with programmatic dependent launch, "
                    "and no thread waits for the kernel before it (griddepcontrol.wait).",
                )


_open = [Session()]  # the process' own, then those that are open


def current() -> Session:
    """The session that launches belong to."""
    return _open[-1]


def under(**changes: Any) -> contextlib.AbstractContextManager[Session]:
    """Inside, launches of the current session run with these changes of the settings."""
    return current().under(**changes)


def require_fit(name: str, arch: str, config: LaunchConfig, static: int, registers: int = 0) -> None:
    """Refuses what a GPU of this architecture cannot launch; `static`: the shared memory that it declares, in bytes."""
    if static > limits.DEFAULT_SHARED:
        raise EmulatorFault(
            "shared",
            f"{name} declares {static} bytes of shared memory; {limits.DEFAULT_SHARED} is the most for __shared__ "
            "arrays of fixed size: use `extern __shared__` and the launch's `shared`.",
        )
    here = limits.limits(arch)
    if reason := limits.refusal(here, config, registers, static):
        too_much = static + config.shared > here.shared_block
        raise EmulatorFault("shared", f"{name}: {reason}.") if too_much else UserError(f"{name}: {reason}.")
    if (blocks := math.prod(config.grid)) > MOST_BLOCKS:
        raise UserError(f"{name}: {blocks:,} blocks are more than the machine runs, at most {MOST_BLOCKS:,}.")
