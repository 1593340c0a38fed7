"""`rung list`: the ladders, or the rungs of one."""

from __future__ import annotations

from typing import Annotated

import typer

from rung.cli import console, options
from rung.cli.show import show_operation


def list_(
    operation: Annotated[str | None, typer.Argument(metavar="[OP[/RUNG]]", help="The ladder to list.")] = None,
    json: options.Json = False,
) -> None:
    """The ladders, or the rungs of one with their ideas."""
    from rung.rungs import catalogue

    if operation is None:
        rows = [
            (name, len(catalogue.rungs(name, libraries=False)), of.summary)
            for name, of in catalogue.operations().items()
        ]
        if json:
            console.print_json([{"operation": n, "rungs": c, "summary": s} for n, c, s in rows])
        else:
            console.table(("operation", "rungs", "what it computes"), rows, right=("rungs",))
        return
    ladder = catalogue.select(operation)
    if json:
        fields = ("name", "kind", "idea", "expect", "found", "provenance", "dtypes", "needs", "tune")
        console.print_json([{f: getattr(r, f) for f in fields} for r in ladder])
        return
    ideas = [(r.name, r.kind, " ".join(r.dtypes), r.idea) for r in ladder]
    console.table(("rung", "kind", "dtypes", "idea"), ideas)
    print()
    show_operation(ladder[0].operation, json=False)
