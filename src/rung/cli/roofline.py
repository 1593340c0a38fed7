"""`rung roofline`: how far are rungs from the hardware's ceilings?"""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from rung.cli import console, options
from rung.errors import RungError

if TYPE_CHECKING:
    pass


def roofline(
    rung: Annotated[list[str], typer.Argument(metavar="OP[/RUNG]...", help="Ladders or rungs that were measured.")],
    dtype: options.Dtypes = None,
    shape: options.Shapes = None,
    gpu: options.Gpu = None,
    results: Annotated[
        list[Path] | None,
        typer.Option(help="A results file or folder (repeatable; default: your store and the published)."),
    ] = None,
    output: options.Output = None,
    dark: Annotated[bool, typer.Option("--dark", help="Draw for a dark page.")] = False,
    json: options.Json = False,
) -> None:
    """Rungs against the measured and the data sheet's ceilings, as a table and a log-log chart.

    Examples: rung roofline matmul --dtype bf16 -o matmul.svg · rung roofline gelu residual layernorm
    """
    from rung.dtypes import dtype as dtype_named
    from rung.profile import roofline as rooflines
    from rung.results import current, store
    from rung.show import charts, roofline_chart

    for name in dtype or ():
        dtype_named(name)
    rows = store.gather(results or ())
    if not any(r.kind == "bench" for r in rows):
        raise RungError(
            f"nothing has been measured yet; `rung bench {rung[0]}` on a GPU does, or --results names a file."
        )
    found = current.of_gpu(rows, gpu)
    chosen = [f for spec in rung for f in rooflines.chosen(found, spec, dtype, shape)]
    placed = rooflines.place(chosen, found.of_kind("profile"))
    if not placed:
        raise RungError(f"what was measured of {', '.join(rung)} does no arithmetic, so it has no place on a roofline.")
    limits = found.limits
    if output is not None:
        svg = charts.standalone(roofline_chart.chart(placed, limits), "dark" if dark else "light")
        store.write_whole(output, svg)
    if json:
        console.print_json(rooflines.as_json(placed, limits))
        return
    print(f"{limits.gpu}")
    for roof in roofline_chart.roofs(limits, list(dict.fromkeys(p.dtype for p in placed))):
        print(f"  {roof.label} FLOP/byte")
    print()
    console.table(rooflines.COLUMNS, rooflines.table(placed), right=rooflines.COLUMNS[3:8] + rooflines.COLUMNS[9:])
    if output is not None:
        console.note(f"drawn in {output}")
