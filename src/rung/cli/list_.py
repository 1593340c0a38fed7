"""`rung list`: the ladders, or the rungs of one."""

from __future__ import annotations

from typing import TYPE_CHECKING, Annotated

import typer

from rung.cli import console, options

if TYPE_CHECKING:
    from rung.operation import Operation


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
    print("\n" + _names(ladder[0].operation))


def _names(of: Operation) -> str:
    """The names that a kernel's parameters are bound to."""
    operands = []
    for o in of.operands:
        dtype = "" if o.dtype == "real" else f" {o.dtype}"
        role = {"in": "", "out": " (out)", "inout": " (in and out)"}[o.role]
        optional = " (optional)" if o.optional or o.nullable else ""
        operands.append(f"{o.name}[{', '.join(map(str, o.shape))}]{dtype}{role}{optional}")
    derived = [f"{name} = {rule}" for name, rule in of.derived.items()]
    scalars = [f"{name} ({default})" for name, default in of.scalars.items()]
    values = ", ".join([*of.dims, *derived, *scalars])
    return f"A kernel's parameters may be called {', '.join(operands)}; {values}."
