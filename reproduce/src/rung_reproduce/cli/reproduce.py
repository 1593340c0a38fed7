"""`rung reproduce`: the figures of the five documents that rung follows, each beside ours and its command."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, Annotated

import typer

from rung.cli import console, options

if TYPE_CHECKING:
    from rung.results.row import Row
    from rung_reproduce.sources import Experiment


def reproduce(
    document: Annotated[
        str | None, typer.Argument(metavar="[DOCUMENT]", help="Only this one, as milestone3 or flash.")
    ] = None,
    gpu: options.Gpu = None,
    missing: Annotated[
        bool, typer.Option("--missing", help="Only the commands that fill empty places, one on each line.")
    ] = False,
    findings: Annotated[
        bool, typer.Option("--findings", help="What the documents found, with theirs, ours, a verdict and the reason.")
    ] = False,
    json: options.Json = False,
) -> None:
    """Each table and figure of the five documents: theirs, ours, and the command that measures ours.

    Nothing is measured here: ours are stored rows of the present code. Each table says what differs.

    Examples: rung reproduce · rung reproduce lecture · rung reproduce --findings · rung reproduce --missing
    """
    from rung.errors import RungError
    from rung.results import codes, current, store
    from rung_reproduce import sources

    if document is not None and document not in sources.documents():
        raise RungError(f"there is no document {document!r}; there are {', '.join(sources.documents())}.")
    stored = store.gather()
    found = current.of_gpu(stored, gpu) if stored or gpu else None
    rows = [row for row in found.results if codes.current(row)] if found else []
    counts = [row for row in stored if row.kind == "count" and codes.current(row)]
    chosen = [e for e in sources.experiments() if document in (None, e.document.name)]
    if missing:
        empty = [r for e in chosen for f in e.figures for r in f.ours if r.value(rows) is None]
        print(*dict.fromkeys(r.command for r in empty), sep="\n")
        return
    if findings:
        return _findings(chosen, rows, json)
    if json:
        console.print_json(
            [
                {"document": e.document.cited, "section": e.section, "title": e.title, "gpu": e.gpu,
                 "differs": e.differs,
                 "figures": [dict(zip(sources.COLUMNS, line, strict=True)) for line in e.table(rows, counts)]}
                for e in chosen
            ]
        )  # fmt: skip
        return
    ours = found.gpu if found else "no GPU"
    before = None
    for experiment in chosen:
        if experiment.document != before:
            before = experiment.document
            print(f"\n{before.cited}")
        print(f"\n{experiment.section}: {experiment.title}\ntheirs: {experiment.gpu}; ours: {ours}")
        print(f"{experiment.differs}\n")
        lines = experiment.table(rows, counts)
        kept = [i for i, name in enumerate(sources.COLUMNS) if name != "emulated" or any(line[i] for line in lines)]
        columns = [sources.COLUMNS[i] for i in kept]
        shown = [[line[i] for i in kept] for line in lines]
        console.table(columns, shown, right=("theirs", "ours", "emulated"), drop=("command",))


def _findings(chosen: Sequence[Experiment], rows: Sequence[Row], json: bool) -> None:
    from rung_reproduce import findings

    lines = {e.document.name: findings.table(e.document.name, rows) for e in chosen}
    if json:
        told = {name: [dict(zip(findings.COLUMNS, line, strict=True)) for line in of] for name, of in lines.items()}
        console.print_json([{"document": name, "findings": of} for name, of in told.items()])
        return
    for name, of in lines.items():
        document = next(e.document for e in chosen if e.document.name == name)
        print(f"\n{document.cited}\n{findings.takeaways()[name]}\n")
        console.table(findings.COLUMNS, of, right=("theirs", "ours"), drop=("why",))
