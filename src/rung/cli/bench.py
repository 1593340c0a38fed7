"""`rung bench`: how fast are rungs and libraries, checked and timed in one run?"""

from __future__ import annotations

import time
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from rung.cli import console, options
from rung.errors import RungError

if TYPE_CHECKING:
    from rung.bench.plan import Planned

QUICK = 0.05  # seconds for each rung, below which a bench counts as quick


def bench(
    rung: Annotated[
        str, typer.Argument(metavar="OP[/RUNG]", help="A ladder, one rung, `all` (at GPT-2's shapes), or `ceilings`.")
    ],
    file: options.File = None,
    shape: options.Shapes = None,
    dtype: options.Dtypes = None,
    vs: Annotated[list[str] | None, typer.Option(help="Time this rung too, for comparison (repeatable).")] = None,
    tune: options.Tune = None,
    seconds: Annotated[float, typer.Option(min=0.05, help="Time cap for each rung and shape.")] = 0.6,
    patience: Annotated[
        float, typer.Option(min=0.0, help="Leave out rungs that would take longer than this for one call, in seconds.")
    ] = 2.0,
    limit: Annotated[
        float | None, typer.Option(help="Skip the remaining races after this many seconds in total.")
    ] = None,
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

    from rung import adopt
    from rung.bench import plan
    from rung.bench import race as racing
    from rung.results import machine, store
    from rung.show import result_tables, verb_tables

    def planned() -> list[Planned]:
        if rung == "all":
            return plan.of_all(shape, dtype, patience)
        return plan.of_ladder(adopt.select(rung, file), shape, dtype, patience, "/" in rung or file is not None, vs)

    if not torch.cuda.is_available():
        would = ""
        if rung != "ceilings":
            races = planned()
            if rung == "all":
                ladders = ", ".join(dict.fromkeys(race.operation for race in races))
                would = f" Would have timed {len(races)} races of {ladders}."
            else:
                names = ", ".join(r.full_name for r in races[0].chosen) if races else "nothing"
                would = f" Would have timed {names} at {', '.join(f'{race.shape} {race.dtype}' for race in races)}."
            if not json:
                console.show(result_tables.stored_elsewhere(races))
        raise RungError(f"`rung bench` needs a CUDA device, and none was found.{would}")
    ceilings = racing.measure_ceilings()
    rows = [store.append(racing.ceilings_result(ceilings))]
    if rung == "ceilings":
        sheet = machine.datasheet()
        if json:
            console.print_json({"bytes": ceilings.bytes, "flops": dict(ceilings.flops), "datasheet": dict(sheet)})
        else:
            console.show([verb_tables.ceilings(ceilings.bytes, ceilings.flops, sheet)])
        return
    races = [race for race in planned() if not missing or not plan.known(race)]
    given = options.parse_tuning(tune)
    start = time.monotonic()
    if builds := plan.compile_ahead(races):
        console.note(f"rung: {builds} kernel builds were compiled in {time.monotonic() - start:.0f} s.")
    start = began = time.monotonic()
    took: dict[str, float] = {}
    for race, found in plan.run(_in_time(races, start, limit), given, ceilings, seconds, console.status):
        console.status("")
        ran = {r.full_name: r for r in race.running}
        rows += [store.append(racing.as_result(row, ran[row.rung], quick=seconds < QUICK)) for row in found]
        took[race.operation] = took.get(race.operation, 0.0) + time.monotonic() - began
        began = time.monotonic()
        if not json:
            print(f"\n{race.operation}  {race.dtype}  {race.shape}  {found[0].values}")
            table = verb_tables.timed(found)
            console.table(table.columns, table.rows, right=table.right, drop=table.drop)
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


def _in_time(races: Sequence[Planned], start: float, limit: float | None) -> Iterator[Planned]:
    """The races that begin before the time is up; the others are reported."""
    for race in races:
        if limit is not None and time.monotonic() - start > limit:
            console.note(f"rung: out of time; {race.operation} {race.shape} {race.dtype} is left out.")
        else:
            yield race
