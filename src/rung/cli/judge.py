"""`rung judge`: verdicts on a file of kernels."""

from __future__ import annotations

import sys
import time
from collections import Counter
from pathlib import Path
from typing import Annotated

import typer

from gpuless.base.processors import processors


def judge(
    jsonl: Annotated[Path, typer.Option(help="Lines of JSON: id, source, and operation or reference.")],
    out: Annotated[Path, typer.Option(help="Gets a verdict a line; lines that have one are not judged again.")],
    workers: Annotated[int, typer.Option(help="Processes, each of a core (default: all cores).")] = 0,
    quick: Annotated[bool, typer.Option("--quick", help="Only the first case of each kernel.")] = False,
) -> None:
    """Judge many kernels without a GPU, such as those that a program has written. What is tried follows from executed
    instructions, so that it does not depend on the machine's speed.

    Exit code 0: all were judged; 3: some were not.

    Example: rung judge --jsonl kernels.jsonl --out verdicts.jsonl --workers 16
    """
    from rung.exchange import batch

    began, counts = time.monotonic(), Counter[str]()
    workers = workers or processors()
    for row in batch.judge(jsonl, out, workers, quick=quick):
        counts[row["verdict"]] += 1
    hours = workers * (time.monotonic() - began) / 3600
    told = ", ".join(f"{count} {verdict}" for verdict, count in sorted(counts.items())) or "nothing is left to judge"
    pace = f"; {sum(counts.values()) / hours:,.0f} verdicts per core and hour" if counts else ""
    print(told + pace, file=sys.stderr)
    raise typer.Exit(3 if counts["not judged"] else 0)
