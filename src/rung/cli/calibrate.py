"""`rung calibrate`: measures the constants of predicted times on the present GPU."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from rung.cli import console, options


def calibrate(
    recorded: Annotated[
        Path | None, typer.Option("--from", metavar="FILE", help="Read probes recorded earlier (.jsonl); needs no GPU.")
    ] = None,
    output: Annotated[
        Path | None, typer.Option("-o", metavar="FILE", help="The file of constants (default: where --time reads it).")
    ] = None,
    json: options.Json = False,
) -> None:
    """Small kernels measure this GPU's latencies and rates, from which `rung count --time` predicts; a minute or two.

    The constants are written where `rung count --time` finds them; a GPU whose predictions have been compared with
    measurements keeps its own unless -o names a file. What was measured is kept among the results.

    Examples: rung calibrate · rung calibrate --from probe.jsonl -o constants.toml
    """
    from gpuless import timing
    from gpuless.facts import gpus
    from rung.errors import RungError
    from rung.profile import calibration
    from rung.results import machine, store
    from rung.results.row import Row

    if recorded is not None:
        if not recorded.is_file():
            raise RungError(f"{recorded} is no file of recorded probes.")
        rows = store.load(recorded)
        name, probes = calibration.recorded(rows)
        of, when = gpus.find(name), max(row.time for row in rows)[:10]
    else:
        of, probes, when = calibration.present(), {}, ""
        for what, value, unit in calibration.measured(of):
            probes[what] = value
            console.note(f"{what:60} {value:12.4g} {unit}")
            row = Row(kind="probe", what=f"probe/{what}", metrics={unit: value}, verdict="ok", machine=machine.facts())
            when = store.append(row, store.default_path()).time[:10]
    found = calibration.constants(of, probes)
    if not found:
        raise RungError(f"no probe of {of.name} was recorded that tells a constant.")
    path = output or (None if of.name in timing.COMPARED else timing.calibrated_file(of.name))
    if path:
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(calibration.row_of(of, found, when))
    beside = list(calibration.beside(of, found))
    if json:
        constants = [{"name": n, "table": before, "measured": now} for n, before, now in beside]
        console.print_json({"gpu": of.name, "when": when, "constants": constants, "file": str(path) if path else None})
        return
    console.table(
        ("constant", "in the table", "measured", "of it"),
        [(n, f"{before:.4g}", f"{now:.4g}", f"{now / before:.2f}") for n, before, now in beside],
        right=("in the table", "measured", "of it"),
    )
    said = f"written to {path}" if path else "not written, since predictions for it were compared with the table's"
    console.note(f"{of.name}, {when}: {len(beside)} constants, {said}.")
