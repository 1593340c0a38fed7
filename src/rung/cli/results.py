"""`rung results`: what was measured, to list, to filter, to compare and to export."""

from __future__ import annotations

import sys
import warnings
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from rung.cli import console, options
from rung.errors import RungError

if TYPE_CHECKING:
    from rung.results.store import Result


def results(
    files: options.Measured = None,
    op: Annotated[str | None, typer.Option(help="Only this operation.")] = None,
    rung: Annotated[str | None, typer.Option(help="Only this rung, as in layernorm/05_tree or torch.")] = None,
    dtype: Annotated[str | None, typer.Option(help="Only this number format.")] = None,
    shape: Annotated[str | None, typer.Option(help="Only this shape, by its name.")] = None,
    gpu: options.Gpu = None,
    kind: Annotated[str | None, typer.Option(help="Only bench, sweep, profile or study rows.")] = None,
    compare: Annotated[
        tuple[str, str] | None,
        typer.Option(metavar="A B", help="Hold B against A: two files, commits or GPUs."),
    ] = None,
    all: Annotated[bool, typer.Option("--all", help="Also what was measured again later.")] = False,
    csv: Annotated[str | None, typer.Option(metavar="FILE", help="Write the rows as CSV (- prints).")] = None,
    json: options.Json = False,
) -> None:
    """What was measured so far: list, filter, compare two machines or commits, export.

    Examples: rung results --op gelu · rung results --compare A100 H200 · rung results --csv all.csv
    """
    from rung.results import query, store

    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        every = store.gather(files or ())
        sides = [query.side(name, every) for name in compare or ()]
    for warning in caught:
        console.note(f"warning: {warning.message}")
    wanted = {"op": op, "rung": rung, "dtype": dtype, "shape": shape, "gpu": gpu, "kind": kind}
    if compare is not None:
        a, b = (query.chosen(rows, **wanted) for rows in sides)
        _compare(compare, a, b, json)
        return
    rows = query.chosen(every, **wanted)
    rows = rows if all else query.newest(rows)
    if not rows:
        given = " ".join(f"--{n} {v}" for n, v in wanted.items() if v)
        raise RungError(f"there are no results{' with ' + given if given else ''}; `rung bench` makes some.")
    if csv == "-":
        sys.stdout.write(query.as_csv(rows))
    elif csv is not None:
        store.write_whole(Path(csv), query.as_csv(rows))
        console.note(f"{csv}: {len(rows)} rows")
    elif json:
        console.print_json(rows)
    else:
        _list(rows)


def _list(rows: list[Result]) -> None:
    from rung.results import query
    from rung.results.current import time_text

    shown = []
    for row in rows:
        us, warm = row.get("cold_us"), row.get("warm_us")
        tuning = " ".join(f"{n}={v}" for n, v in (row.get("tuning") or {}).items())
        shown.append(
            (
                row.get("rung") or row.get("study") or row.get("operation") or "",
                row.get("kind", ""),
                row.get("dtype", ""),
                row.get("shape", ""),
                time_text(us) if us else "",
                time_text(warm) if warm else "",
                row.get("verdict", ""),
                tuning if row.get("kind") in ("sweep", "tuning") else "",
                query.gpu_of(row),
                str(row.get("time", ""))[:10],
                str(row.get("commit", ""))[:8],
                str(row.get("reason") or row.get("finding") or "").partition("\n")[0],
            )
        )
    columns = ("what", "kind", "dtype", "shape", "cold us", "warm us", "verdict", "tuning", "gpu", "day", "commit",
               "remark")  # fmt: skip
    used = [i for i in range(len(columns)) if any(line[i] for line in shown)]
    console.table([columns[i] for i in used], [[line[i] for i in used] for line in shown], right=columns[4:6])


def _compare(names: tuple[str, str], a: list[Result], b: list[Result], json: bool) -> None:
    from rung.results import query
    from rung.results.current import time_text
    from rung.results.store import same_source

    pairs = query.compare(a, b)
    if not pairs:
        raise RungError(f"{names[0]} and {names[1]} have no timed rung, number format and shape in common.")
    if json:
        told = [
            {
                "rung": p.a["rung"],
                "dtype": p.a["dtype"],
                "shape": p.a["shape"],
                "a_us": p.a["cold_us"],
                "b_us": p.b["cold_us"],
                "ratio": p.ratio,
                "verdict": p.verdict,
                "same_source": same_source(p.a, p.b),
            }
            for p in pairs
        ]
        console.print_json(told)
        return
    shown = [
        (
            p.a["rung"],
            p.a["dtype"],
            p.a["shape"],
            time_text(p.a["cold_us"]),
            time_text(p.b["cold_us"]),
            f"{p.ratio:.2f}x",
            p.verdict,
            "" if same_source(p.a, p.b) else "the source differs",
        )
        for p in pairs
    ]
    columns = ("rung", "dtype", "shape", "A, us", "B, us", "B/A speed", "B is", "remark")
    print(f"A: {names[0]}\nB: {names[1]}\n")
    console.table(columns, shown, right=columns[3:6])
    counts = {v: sum(p.verdict == v for p in pairs) for v in ("faster", "slower", "tie")}
    print(f"\nB is faster {counts['faster']} times, slower {counts['slower']}, a tie {counts['tie']}.")
