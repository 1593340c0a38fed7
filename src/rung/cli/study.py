"""`rung study`: questions that one figure cannot answer."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from rung.cli import console
from rung.errors import RungError


def study(
    name: Annotated[
        str | None, typer.Argument(metavar="[STUDY]", help="Which one; left out: what there is. `all`: each.")
    ] = None,
    quick: Annotated[bool, typer.Option("--quick", help="Fewer points, shorter looks.")] = False,
    chart: Annotated[Path | None, typer.Option(help="The SVG file to write (default: study-NAME.svg here).")] = None,
    no_chart: Annotated[bool, typer.Option("--no-chart", help="Write no file.")] = False,
    json: Annotated[bool, typer.Option("--json", help="Print the study as JSON.")] = False,
) -> None:
    """Questions about GPUs that one figure cannot answer: a table, a chart and a sentence each.

    Examples: rung study · rung study softmax · rung study waves --quick --chart waves.svg
    """
    from rung.lab import machine, studies
    from rung.lab.studies.common import Gpu
    from rung.lab.sweep_chart import write_svg

    if name is None:
        console.table(("study", "question"), [(n, text) for n, (_, text) in studies.STUDIES.items()])
        return
    if name == "all" and chart is not None:
        raise RungError("--chart names one file; leave it out with `all`, and each study writes its own.")
    answers = []
    for one in studies.STUDIES if name == "all" else [name]:
        found = studies.run(one, Gpu(quick=quick, tell=lambda text: console.note(f"  {text}")))
        row = studies.as_result(one, found, machine.facts())
        studies.keep(one, found, machine.facts())
        path = chart or Path(f"study-{one}.svg")
        drawn = found.drawable and not no_chart
        if drawn:
            write_svg(found.svg(), path)
        answers.append(row)
        if not json:
            print(f"{found.title}\n")
            console.table(found.columns, found.rows, right=[c for c in found.columns if _number(c)])
            print(f"\n{found.finding}")
            print(f"Chart: {path}\n" if drawn else "")
    if json:
        console.print_json(answers if name == "all" else answers[0])


def _number(column: str) -> bool:
    return column in ("N", "M", "tiles", "waves") or column.endswith(("us", "ns", "TFLOP/s"))
