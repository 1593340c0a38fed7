"""Plans the races of one ladder or of all ladders, and runs them one after another."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import cache

from gpuless.base.expressions import Number
from rung.bench import race as bench
from rung.dtypes import DTYPES
from rung.errors import RungError
from rung.operation import Race
from rung.results import codes, machine, store
from rung.results.row import Row as Result
from rung.rungs import catalogue, tunings
from rung.rungs.base import Rung
from rung.rungs.compile_ahead import Compilers, finish
from rung.rungs.subjects import shapes_of

MANY = 8  # with more builds than this, all cores compile them before the first race


@dataclass(frozen=True)
class Planned:
    """One race: which rungs and libraries run at which shape and in which format."""

    running: list[Rung]
    chosen: list[Rung]  # those that were requested
    shape: str
    values: Mapping[str, Number]
    dtype: str
    patience: float

    @property
    def operation(self) -> str:
        return self.running[0].operation.name

    def tunings(self, given: Mapping[str, int] | None) -> dict[str, dict[str, int]]:
        """The given tunables for the requested rungs, otherwise what sweeps found best."""
        complete = self.running[0].operation.complete(self.values)
        best = {
            r.full_name: (dict(given) if given and r in self.chosen else None) or tunings.best(r, complete, self.dtype)
            for r in self.running
        }
        return {name: tuning for name, tuning in best.items() if tuning}


def of_ladder(
    chosen: Sequence[Rung],
    shapes: Sequence[str] | None,
    dtypes: Sequence[str] | None,
    patience: float,
    some: bool,
    vs: Sequence[str] | None,
) -> list[Planned]:
    """One ladder's races; if only some of its rungs were requested, the libraries run too."""
    contestants = list(chosen)
    if some:
        contestants += [catalogue.find(v) for v in vs or []]
        libraries = catalogue.rungs(chosen[0].operation.name)
        contestants += [r for r in libraries if r.kind == "library" and r not in contestants]
    races = []
    for name, values in shapes_of(chosen[0].operation, shapes or ()):
        for kind in ("f32", "tf32", "f16", "bf16"):
            running = [r for r in contestants if kind in r.dtypes]
            if (not dtypes or kind in dtypes) and any(r in chosen for r in running):
                races.append(Planned(running, list(chosen), name, values, kind, patience))
    return races


def of_all(shapes: Sequence[str] | None, dtypes: Sequence[str] | None, patience: float) -> list[Planned]:
    """Every ladder's races: at the shapes that its operation names, or at the requested shapes, where it has them."""
    races = []
    for name, operation in catalogue.operations().items():
        every = list(catalogue.rungs(name))
        supported = tuple(d for d in DTYPES if any(d in r.dtypes for r in every))
        for race in operation.races or [Race(shape, supported) for shape in operation.shapes]:
            for dtype in race.dtypes:
                running = [r for r in every if dtype in r.dtypes]
                if running and (not shapes or race.shape in shapes) and (not dtypes or dtype in dtypes):
                    values, least = operation.shapes[race.shape], min(patience, race.patience)
                    races.append(Planned(running, every, race.shape, values, dtype, least))
    if not races:
        raise RungError("no ladder has such a shape in such a format; `rung list` names the shapes.")
    return races


def compile_ahead(races: Sequence[Planned]) -> int:
    """Compile what the races need on all cores if it is much; returns the number of builds."""
    if sum(r.kind == "cuda" for race in races for r in race.running) < MANY:
        return 0
    with Compilers() as compilers:
        waiting = [
            compilers.submit(r.full_name, race.values, race.dtype, best.get(r.full_name))
            for race in races
            for best in [race.tunings(None)]
            for r in race.running
            if r.kind == "cuda"
        ]
        finish(waiting)
    return len(waiting)


def known(race: Planned) -> bool:
    """Whether every rung of the race has a row of its present code, on a GPU of this name."""
    measured = {(r.what, r.dtype, r.shape) for r in _rows_here() if codes.current(r)}
    return all((r.full_name, race.dtype, race.shape) in measured for r in race.running)


@cache
def _rows_here() -> tuple[Result, ...]:
    gpu = machine.facts()["gpu"]
    return tuple(r for r in store.gather() if r.kind == "bench" and r.gpu == gpu and r.verdict != "failed")


def run(
    races: Iterable[Planned],
    tuning: Mapping[str, int] | None,
    ceilings: bench.Ceilings | None,
    seconds: float,
    progress: Callable[[str], None] = lambda _: None,
) -> Iterator[tuple[Planned, list[bench.Timed]]]:
    """Runs race after race; a rung's speed at one shape, now or in an earlier run, decides whether it is too slow for
    the next."""
    pace: dict[str, bench.Pace] = {}
    for race in races:
        if race.dtype not in pace:
            pace[race.dtype] = bench.Pace(r for r in _rows_here() if r.dtype == race.dtype)
        found = bench.bench(
            race.running,
            shape=race.shape,
            values=race.values,
            dtype=race.dtype,
            tunings=race.tunings(tuning),
            ceilings=ceilings,
            seconds=seconds,
            pace=pace[race.dtype],
            patience=race.patience,
            progress=progress,
        )
        pace[race.dtype].learn(found)
        yield race, found
