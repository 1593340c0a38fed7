"""`rung inspect`: the compiler's report on a rung."""

from __future__ import annotations

from typing import TYPE_CHECKING, Annotated

import typer

from rung.cli import console, options

if TYPE_CHECKING:
    from rung.operation import Values


def inspect(
    rung: Annotated[str, typer.Argument(metavar="OP[/RUNG]", help="A ladder or one rung.")],
    file: options.File = None,
    arch: Annotated[
        list[str] | None, typer.Option(help="sm_75 ... sm_120 (may be repeated; default: your GPU, or sm_90).")
    ] = None,
    dtype: options.Dtype = None,
    shape: options.Shape = None,
    tune: options.Tune = None,
    mix: Annotated[
        bool | None, typer.Option("--mix/--no-mix", help="Count instructions by class (default: for one rung).")
    ] = None,
    json: options.Json = False,
) -> None:
    """Registers, shared memory, spills, stack and theoretical occupancy of a rung, without a GPU.

    Exit code 0: everything compiles and can be launched; 1: something cannot.

    Examples: rung inspect softmax · rung inspect gelu/2 --arch sm_75 --arch sm_90 · rung inspect gelu x.cu
    """
    from rung import adopt
    from rung.dtypes import dtype as dtype_named
    from rung.profile import inspect as inspection
    from rung.rungs import base

    if dtype is not None:
        dtype_named(dtype)
    chosen = [r for r in adopt.select(rung, file) if r.kind != "library" or "/" in rung]
    rows = list(
        inspection.inspect(
            chosen,
            arch or [base.arch()],
            dtype=dtype,
            shape=_shape(rung, shape),
            tuning=options.parse_tuning(tune),
            mix=(len(chosen) == 1) if mix is None else mix,
        )
    )
    failed = [row for row in rows if row.state == "failed"]
    if json:
        from rung.show import document

        found = [document.finding("compile", row.reason, about=f"{row.rung} {row.dtype} {row.arch}") for row in failed]
        console.print_json(document.document("inspect", int(bool(failed)), [row.as_json() for row in rows], found))
    else:
        from rung.show import verb_tables

        console.show(verb_tables.inspected(rows))
        for warning in verb_tables.warnings_of(rows):
            console.note(warning)
    if failed:
        raise typer.Exit(1)


def _shape(spec: str, word: str | None) -> tuple[str, Values] | None:
    from rung.rungs import catalogue

    if word is None:
        return None
    from rung.rungs.subjects import shapes_of

    return next(shapes_of(catalogue.operation(spec.partition("/")[0]), [word]))
