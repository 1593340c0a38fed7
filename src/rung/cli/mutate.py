"""`rung mutate`: which small changes to a right kernel does the checker miss?"""

from __future__ import annotations

import math
import os
import sys
import time
from pathlib import Path
from typing import Annotated

import typer

from rung.cli import console, options
from rung.errors import RungError


def mutate(
    rung: Annotated[
        str | None, typer.Argument(metavar="[OP[/RUNG]]", help="A ladder or one rung; --all for every ladder.")
    ] = None,
    every: Annotated[bool, typer.Option("--all", help="The rungs of all ladders.")] = False,
    sample: Annotated[
        int | None,
        typer.Option(min=1, help="At most this many mutants, balanced over ladders and kinds (default: all)."),
    ] = None,
    seed: Annotated[int, typer.Option(min=0, help="Seed of the selection, if there are more.")] = 0,
    device: Annotated[str, typer.Option(help="emulator or cuda.")] = "emulator",
    thorough: Annotated[bool, typer.Option("--thorough", help="Check as `check --thorough` does.")] = False,
    jobs: options.Jobs = None,
    nice: Annotated[int, typer.Option(min=0, max=19, help="Priority of these processes; 19 is the lowest.")] = 0,
    minutes: Annotated[
        float | None, typer.Option(min=0, help="End after so long; with --output, the same command goes on there.")
    ] = None,
    output: Annotated[
        Path | None, typer.Option("--output", "-o", help="Append a row for each mutant (JSON lines).")
    ] = None,
) -> None:
    """Make mutants of a right kernel, check each on the emulator, and list those that the checker calls right.

    A mutant differs in one constant, index, bound, comparison, barrier, fence, mask, term, clamp, scale, eps or cast.
    A survivor is either equivalent, or something that no case distinguishes: find out which.

    Examples: rung mutate softmax/4 · rung mutate reduce --sample 50 · rung mutate --all --sample 600 -o mutants.jsonl
    """
    until = math.inf if minutes is None else time.monotonic() + 60 * minutes
    from rung.check import mutation
    from rung.check.judge import device_named
    from rung.results import codes, store
    from rung.rungs import catalogue

    if (rung is None) != every:
        raise RungError("name a ladder or a rung, such as softmax/4, or give --all.")
    rungs = catalogue.select(rung)
    work = mutation.trials(rungs, count=sample, seed=seed, device=device_named(device), thorough=thorough)
    questions = {trial.question for trial in work}
    earlier = [] if output is None else [*store.published(), *(store.load(output) if output.exists() else [])]
    rows = {r.question: r for r in earlier if r.question in questions and codes.current(r)}
    work = [trial for trial in work if trial.question not in rows]
    judging = mutation.mutate(work, jobs=jobs or os.cpu_count() or 1, niceness=nice, until=until)
    for number, row in enumerate(judging, 1):
        rows[row.question] = row if output is None else store.append(row, output)
        print(f"{number} of {len(work)}: {row.what} {row.part}", file=sys.stderr, flush=True)
    judged = [r for r in rows.values() if r.verdict != "illegal" and mutation.SAME_CODE not in r.notes]
    survivors = [r for r in judged if r.verdict == "ok"]
    console.table(
        ("rung", "file", "line", "kind", "change that survives"),
        [(r.what, r.options["file"], r.options["line"], r.part, r.options["change"]) for r in survivors],
        right=("line",),
    )
    refused = len(judged) - len(survivors)
    share = refused / len(judged) if judged else 1.0
    print(f"\n{refused} of {len(judged)} mutants that change the machine code are refused ({share:.1%}).")
