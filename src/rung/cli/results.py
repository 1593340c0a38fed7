"""`rung results`: what was measured, to list, to filter, to compare and to export."""

from __future__ import annotations

import contextlib
import sys
import warnings
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from rung.cli import console, options
from rung.errors import RungError

if TYPE_CHECKING:
    from rung.results.row import Row


def results(
    files: Annotated[
        list[Path] | None,
        typer.Argument(metavar="[OP[/RUNG]] [FILES]", help="A ladder or rung; files or folders (default: all)."),
    ] = None,
    op: Annotated[str | None, typer.Option(help="Only this operation.")] = None,
    rung: Annotated[str | None, typer.Option(help="Only this rung: layernorm/05_tree, layernorm/5, torch.")] = None,
    dtype: Annotated[str | None, typer.Option(help="Only this number format.")] = None,
    shape: Annotated[str | None, typer.Option(help="Only this shape, by its name.")] = None,
    gpu: options.Gpu = None,
    kind: Annotated[str | None, typer.Option(help="Only rows of this kind: bench, climb, study ...")] = None,
    compare: Annotated[
        tuple[str, str] | None, typer.Option(metavar="A B", help="Compare B with A: two files, commits or GPUs.")
    ] = None,
    all: Annotated[bool, typer.Option("--all", help="Also older rows, and rows of other code.")] = False,
    csv: Annotated[str | None, typer.Option(metavar="FILE", help="Write the rows as CSV (- prints).")] = None,
    publish: Annotated[
        Path | None, typer.Option(help="Put the rows into this folder of current rows, one file per kind.")
    ] = None,
    json: options.Json = False,
) -> None:
    """What was measured so far: list, filter, compare two machines or commits, export.

    Examples: rung results gelu · rung results matmul/25 --kind bench · rung results --compare A100 H200
    · rung results --csv all.csv
    """
    from rung.results import codes, query, store
    from rung.results.row import newest
    from rung.show import result_tables

    files, op, rung = _sorted_out(files or [], op, rung)

    asked = {"--compare": compare, "--csv": csv, "--publish": publish, "--json": (json and compare is None) or None}
    ways = [name for name, given in asked.items() if given is not None]
    if len(ways) > 1:
        raise RungError(f"{' and '.join(ways)} exclude each other; give one of them.")
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        every = store.gather(files or ())
        sides = [query.side(name, every) for name in compare or ()]
    for warning in caught:
        console.note(f"warning: {warning.message}")
    filters = {"op": op, "rung": _full_name(rung), "dtype": dtype, "shape": shape, "gpu": gpu, "kind": kind}
    if compare is not None:
        a, b = (query.chosen(rows, **filters) for rows in sides)
        _compare(compare, a, b, json)
        return
    rows = query.chosen(every, **filters)
    rows = rows if all else [row for row in newest(rows) if codes.current(row)]
    if not rows:
        given = " ".join(f"--{n} {v}" for n, v in filters.items() if v)
        raise RungError(f"no results match{' ' + given if given else ''}; run `rung bench` to create some.")
    if csv == "-":
        sys.stdout.write(query.as_csv(rows))
    elif csv is not None:
        store.write_whole(Path(csv), query.as_csv(rows))
        console.note(f"{csv}: {len(rows)} rows")
    elif json:
        console.print_json([row.as_json() for row in rows])
    elif publish is not None:
        for kind, count in store.publish(rows, publish).items():
            console.note(f"{publish / kind}.jsonl: {count} rows")
    elif any(filters.values()) or files or all:
        console.show([result_tables.listed(rows)])
    else:
        console.show(result_tables.summary(rows))


def _sorted_out(given: list[Path], op: str | None, rung: str | None) -> tuple[list[Path], str | None, str | None]:
    """Files and folders; a word that is none of them but names a ladder or a rung is a filter."""
    from rung.rungs import catalogue

    files = []
    for path in given:
        ladder, _, which = str(path).partition("/")
        if path.exists() or ladder not in catalogue.operations():
            files.append(path)
        elif which:
            rung = str(path)
        else:
            op = ladder
    return files, op, rung


def _full_name(rung: str | None) -> str | None:
    """A rung's name in the rows; unknown names, which rows of a removed rung may have, are left unchanged."""
    if rung is None or "/" not in rung:
        return rung
    from rung.rungs import catalogue

    with contextlib.suppress(RungError):
        return catalogue.find(rung).full_name
    return rung


def _compare(names: tuple[str, str], a: list[Row], b: list[Row], json: bool) -> None:
    from rung.results import query
    from rung.show import result_tables

    pairs = query.compare(a, b)
    if not pairs:
        raise RungError(f"{names[0]} and {names[1]} have no timed rung, number format and shape in common.")
    if json:
        console.print_json([pair.as_json() for pair in pairs])
        return
    console.show(result_tables.differences(names, pairs))
