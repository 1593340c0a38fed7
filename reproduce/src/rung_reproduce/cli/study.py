"""`rung study`: questions that need more than one figure."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from rung.cli import console, options
from rung.errors import RungError


def study(
    name: Annotated[
        str | None, typer.Argument(metavar="[STUDY]", help="Which one; `all` runs all of them. Left out: list them.")
    ] = None,
    quick: Annotated[bool, typer.Option("--quick", help="Fewer points, shorter timings.")] = False,
    chart: Annotated[Path | None, typer.Option(help="The SVG file to write (default: study-NAME.svg here).")] = None,
    no_chart: Annotated[bool, typer.Option("--no-chart", help="Write no file.")] = False,
    json: options.Json = False,
    n: Annotated[list[int] | None, typer.Option("--n", help="attention: rows of the sequence (repeatable).")] = None,
    d: Annotated[int | None, typer.Option("--d", help="attention: width of a head (64).")] = None,
    heads: Annotated[int | None, typer.Option(help="attention: how many heads (1).")] = None,
    causal: Annotated[bool, typer.Option("--causal", help="attention: causal mask.")] = False,
    data: Annotated[
        Path | None, typer.Option(help="attention: a folder in which q, k, v are saved and reloaded.")
    ] = None,
    seed: Annotated[int | None, typer.Option(help="attention: seed of the random numbers (0).")] = None,
    mpi: Annotated[
        bool, typer.Option("--mpi", help="attention: over MPI ranks too; starts them, or runs as one.")
    ] = False,
    ranks: Annotated[list[int] | None, typer.Option(help="attention: how many ranks (1 and 2; repeatable).")] = None,
    threads: Annotated[int | None, typer.Option(help="attention: threads per rank (1).")] = None,
    patience: Annotated[
        float | None, typer.Option(help="attention: seconds that a rank waits for another (60).")
    ] = None,
) -> None:
    """Questions about GPUs that need more than one figure: a table, a chart and a sentence each.

    Examples: rung study · rung study softmax · rung study waves --quick --chart waves.svg · rung study attention --n
    256 --n 1024 --mpi --ranks 1 --ranks 4 --data qkv
    """
    from rung_reproduce import studies

    if name is None:
        questions = [(n, text) for n, (_, text) in studies.STUDIES.items()]
        if json:
            console.print_json([{"study": n, "question": text} for n, text in questions])
        else:
            console.table(("study", "question"), questions)
        return
    if name == "all" and chart is not None:
        raise RungError("--chart names one file; leave it out with `all`, and each study writes its own.")
    requested = {
        "n": n and tuple(n),
        "d": d,
        "heads": heads,
        "causal": causal or None,
        "data": data,
        "seed": seed,
        "mpi": mpi or None,
        "ranks": ranks and tuple(ranks),
        "threads": threads,
        "patience": patience,
    }
    given = {key: value for key, value in requested.items() if value is not None and value != ()}
    if given and name != "attention":
        raise RungError(f"--{next(iter(given))} is an option of `rung study attention` only.")
    from rung.results import store
    from rung_reproduce import findings
    from rung_reproduce.show.charts import write_svg
    from rung_reproduce.studies.common import Gpu

    answers = []
    for one in studies.STUDIES if name == "all" else [name]:
        found = studies.run(one, Gpu(quick=quick, report=lambda text: console.note(f"  {text}")), **given)
        saved = {key: str(value) if isinstance(value, Path) else value for key, value in given.items() if key != "data"}
        rows = studies.as_results(one, found, quick=quick, options=saved)
        answers.append([store.append(row).as_json() for row in rows])
        for part, each in {"": found, **found.more}.items():
            path = _chart_path(chart or Path(f"study-{one}.svg"), part)
            with_chart = each.drawable and not no_chart
            if with_chart:
                write_svg(each.svg(), path)
            if not json:
                print(f"{each.title}{' (quick: fewer points, shorter looks)' if quick else ''}\n")
                console.table(each.columns, each.rows, right=[c for c in each.columns if _number(c)])
                print(f"\n{each.finding}")
                print(f"Chart: {path}\n" if with_chart else "")
        if not json:
            for f in findings.of_study(one):
                says, verdict, why, theirs, ours = f.line(rows)
                print(f"{f.document.title}: {says} (theirs {theirs}, here {ours or '-'}): {verdict}. {why}".rstrip())
    if json:
        console.print_json(answers if name == "all" else answers[0])


def _chart_path(path: Path, part: str) -> Path:
    return path.with_stem(f"{path.stem}-{part}") if part else path


def _number(column: str) -> bool:
    whole = ("N", "M", "tiles", "waves", "ranks", "speed-up", "error")
    return column in whole or column.endswith(("us", "ns", "ms", "TFLOP/s"))
