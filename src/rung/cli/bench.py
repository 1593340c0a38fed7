"""`rung bench`: how fast are rungs and libraries, checked and timed in one run?"""

from __future__ import annotations

import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from rung.cli import console, options
from rung.errors import RungError
from rung.expressions import Number
from rung.rungs.base import Rung

if TYPE_CHECKING:
    from rung.results.row import Row as Result

QUICK = 0.05  # seconds for each rung, below which a bench counts as quick
MANY = 8  # builds, from which all cores compile them ahead of the first race


def bench(
    rung: Annotated[
        str, typer.Argument(metavar="OP[/RUNG]", help="A ladder, one rung, `all` (at GPT-2's shapes), or `ceilings`.")
    ],
    file: options.File = None,
    shape: options.Shapes = None,
    dtype: options.Dtypes = None,
    vs: Annotated[list[str] | None, typer.Option(help="Race against this rung too (repeatable).")] = None,
    tune: options.Tune = None,
    seconds: Annotated[float, typer.Option(min=0.05, help="Time cap for each rung and shape.")] = 0.6,
    patience: Annotated[
        float,
        typer.Option(min=0.0, help="Leave out rungs that would take longer than this for one call, in seconds."),
    ] = 2.0,
    limit: Annotated[float | None, typer.Option(help="Skip what is left after this many seconds in all.")] = None,
    output: Annotated[
        Path | None,
        typer.Option("--output", "-o", help="Also write the rows to this file; a folder keeps its newest rows."),
    ] = None,
    missing: Annotated[
        bool, typer.Option("--missing", help="Only races in which a rung has no figure of its present code yet.")
    ] = False,
    json: options.Json = False,
) -> None:
    """How fast are rungs and libraries? Interleaved, cold and warm, checked in the same run."""
    import torch

    from rung.bench import race as lab
    from rung.cli.check import parse_tuning
    from rung.results import store
    from rung.rungs import catalogue
    from rung.rungs import tunings as tuned

    if not torch.cuda.is_available():
        would = ""
        if rung == "all":
            planned = _tour(shape, dtype, patience)
            ladders = ", ".join(dict.fromkeys(race.running[0].operation.name for race in planned))
            would = f" Would have timed {len(planned)} races of {ladders}."
        elif rung != "ceilings":
            chosen = catalogue.select(rung, file)
            planned = _ladder(chosen, shape, dtype, patience, "/" in rung or file is not None, vs)
            where = ", ".join(f"{race.shape} {race.dtype}" for race in planned)
            would = f" Would have timed {', '.join(r.full_name for r in chosen)} at {where}."
        raise RungError(f"`rung bench` needs a CUDA device, and none was found.{would}")
    ceilings = lab.measure_ceilings()
    rows = [store.append(lab.ceilings_result(ceilings))]
    if rung == "ceilings":
        _print_ceilings(ceilings, json)
        return
    if rung == "all":
        races = _tour(shape, dtype, patience)
    else:
        races = _ladder(catalogue.select(rung, file), shape, dtype, patience, "/" in rung or file is not None, vs)
    if missing:
        races = [race for race in races if not _known(race)]
    given = parse_tuning(tune)
    if sum(r.kind == "cuda" for race in races for r in race.running) >= MANY:
        _compile(races)
    pace: dict[str, lab.Pace] = {}
    start = time.monotonic()
    took: dict[str, float] = {}
    for race in races:
        name, began = race.running[0].operation.name, time.monotonic()
        if limit is not None and time.monotonic() - start > limit:
            console.note(f"rung: out of time; {name} {race.shape} {race.dtype} is left out.")
            continue
        complete = race.running[0].operation.complete(race.values)
        found = lab.bench(
            race.running,
            shape=race.shape,
            values=race.values,
            dtype=race.dtype,
            tunings={
                r.full_name: t
                for r in race.running
                if (t := (given if r in race.chosen else None) or tuned.best(r, complete, race.dtype))
            },
            ceilings=ceilings,
            seconds=seconds,
            pace=pace.setdefault(race.dtype, lab.Pace()),
            patience=race.patience,
        )
        pace[race.dtype].learn(found)
        ran = {r.full_name: r for r in race.running}
        rows += [store.append(lab.as_result(row, ran[row.rung], quick=seconds < QUICK)) for row in found]
        took[name] = took.get(name, 0.0) + time.monotonic() - began
        if not json:
            _print(found)
        if output is not None and output.is_dir():
            store.publish(rows, output)
        elif output is not None:
            store.write(output, rows)
    if rung == "all":
        each = ", ".join(f"{name} {seconds:.0f}" for name, seconds in took.items())
        console.note(f"rung: {len(rows)} rows in {time.monotonic() - start:.0f} s ({each}).")
    if json:
        console.print_json([r.as_json() for r in rows])
    if any(r.verdict == "failed" for r in rows):
        raise typer.Exit(1)


@dataclass(frozen=True)
class _Race:
    running: list[Rung]
    chosen: list[Rung]  # those that were asked for
    shape: str
    values: Mapping[str, Number]
    dtype: str
    patience: float


def _ladder(
    chosen: Sequence[Rung],
    shapes: Sequence[str] | None,
    dtypes: Sequence[str] | None,
    patience: float,
    some: bool,
    vs: Sequence[str] | None,
) -> list[_Race]:
    """One ladder's races; where only some of its rungs were asked for, the libraries run too."""
    from rung.bench import race as lab
    from rung.rungs import catalogue

    contestants = list(chosen)
    if some:
        contestants += [catalogue.find(v) for v in vs or []]
        libraries = catalogue.rungs(chosen[0].operation.name)
        contestants += [r for r in libraries if r.kind == "library" and r not in contestants]
    races = []
    for name, values in lab.shapes_of(chosen[0].operation, shapes or ()):
        for kind in ("f32", "tf32", "f16", "bf16"):
            running = [r for r in contestants if kind in r.dtypes]
            if (not dtypes or kind in dtypes) and any(r in chosen for r in running):
                races.append(_Race(running, list(chosen), name, values, kind, patience))
    return races


def _tour(shapes: Sequence[str] | None, dtypes: Sequence[str] | None, patience: float) -> list[_Race]:
    """All ladders: the tour's races, or those at the shapes that were asked for, where a ladder has them."""
    from rung.bench import tour
    from rung.rungs import catalogue

    races = []
    for stop in tour.stops():
        every = list(catalogue.rungs(stop.operation))
        running = [r for r in every if stop.dtype in r.dtypes]
        if running and (not shapes or stop.shape in shapes) and (not dtypes or stop.dtype in dtypes):
            values = running[0].operation.shapes[stop.shape]
            races.append(_Race(running, every, stop.shape, values, stop.dtype, min(patience, stop.patience)))
    if not races:
        raise RungError("no ladder has such a shape in such a format; `rung list` names the shapes.")
    return races


def _compile(races: Sequence[_Race]) -> None:
    from rung.check.compile_ahead import Compilers, finish
    from rung.rungs import tunings as tuned

    began = time.monotonic()
    with Compilers() as compilers:
        waiting = [
            compilers.submit(r.full_name, race.values, race.dtype, tuned.best(r, complete, race.dtype))
            for race in races
            for complete in [race.running[0].operation.complete(race.values)]
            for r in race.running
            if r.kind == "cuda"
        ]
        finish(waiting)
    console.note(f"rung: {len(waiting)} builds of kernels were made ready in {time.monotonic() - began:.0f} s.")


def _known(race: _Race) -> bool:
    """Whether every rung of the race has a row of its present code, on a GPU of this name."""
    from rung.results import codes, machine

    there = {(r.what, r.dtype, r.shape) for r in _rows_here(machine.facts()["gpu"]) if codes.current(r)}
    return all((r.full_name, race.dtype, race.shape) in there for r in race.running)


@cache
def _rows_here(gpu: str) -> tuple[Result, ...]:
    from rung.results import store

    return tuple(r for r in store.gather() if r.kind == "bench" and r.gpu == gpu and r.verdict != "failed")


def _print_ceilings(ceilings: Any, json: bool) -> None:
    from rung.results import machine

    sheet = machine.datasheet()
    rows = [("copy, GB/s", f"{ceilings.bytes / 1e9:.0f}", f"{sheet['bytes'] / 1e9:.0f}" if sheet else "")]
    for name, rate in ceilings.flops.items():
        rows.append((f"matmul {name}, TFLOP/s", f"{rate / 1e12:.0f}", f"{sheet[name] / 1e12:.0f}" if sheet else ""))
    if json:
        console.print_json({"bytes": ceilings.bytes, "flops": dict(ceilings.flops), "datasheet": sheet})
    else:
        console.table(("ceiling", "measured", "datasheet"), rows, right=("measured", "datasheet"))


def _print(rows: list[Any]) -> None:
    first = rows[0]
    print(f"\n{first.operation}  {first.dtype}  {first.shape}  {first.values}")
    shown = []
    for r in rows:
        if r.verdict != "ok":
            shown.append((r.rung.partition("/")[2], "", "", "", "", "", "", "", r.verdict, r.reason))
            continue
        share = max(r.of_bandwidth or 0, r.of_rate or 0)
        shown.append(
            (
                r.rung.partition("/")[2],
                f"{r.cold_us:.2f}",
                "" if r.cold_p20_us is None else f"{r.cold_p20_us:.2f}-{r.cold_p80_us:.2f}",
                "" if r.warm_us is None else f"{r.warm_us:.2f}",
                "" if r.gbps is None else f"{r.gbps:.0f}",
                "" if r.tflops is None else f"{r.tflops:.1f}",
                f"{share:.0%}",
                "" if r.library_ratio is None else f"{r.library_ratio:.2f}x",
                r.against_before,
                "; ".join(r.notes),
            )
        )
    columns = (
        "rung",
        "cold us",
        "p20-p80",
        "warm us",
        "GB/s",
        "TFLOP/s",
        "of limit",
        "vs lib",
        "vs before",
        "notes",
    )
    console.table(columns, shown, right=columns[1:8], drop=("p20-p80", "TFLOP/s", "GB/s", "notes", "vs before"))
