"""`rung mutate`: which small changes to a right kernel does the checker miss?"""

from __future__ import annotations

import json
import os
import sys
from pathlib import Path
from typing import Annotated

import typer

from rung.cli import console
from rung.errors import RungError


def mutate(
    rung: Annotated[
        str | None, typer.Argument(metavar="[OP[/RUNG]]", help="A ladder or one rung; --all for every ladder.")
    ] = None,
    every: Annotated[bool, typer.Option("--all", help="The rungs of all ladders.")] = False,
    limit: Annotated[int | None, typer.Option(min=1, help="Mutants of each rung at most, of every kind alike.")] = None,
    seed: Annotated[int, typer.Option(min=0, help="Which of them, where there are more.")] = 0,
    jobs: Annotated[int | None, typer.Option("--jobs", "-j", min=1, help="Processes (default: one a core).")] = None,
    nice: Annotated[int, typer.Option(min=0, max=19, help="Priority of these processes; 19 is the lowest.")] = 0,
    output: Annotated[
        Path | None, typer.Option("--output", "-o", help="Add a row for each mutant (JSON lines).")
    ] = None,
) -> None:
    """Make mutants of a right kernel, check each on the emulator, and list those that the checker calls right.

    A mutant differs in one constant, index, bound, comparison, barrier, fence, mask, term, clamp, scale, eps or cast.
    Who survives is the same function after all, or shows what no case looks at: find out which.

    Examples: rung mutate softmax/4 · rung mutate reduce --limit 10 · rung mutate --all --limit 5 -o mutants.jsonl
    """
    from rung.check import mutate as room
    from rung.rungs import catalogue

    if (rung is None) != every:
        raise RungError("name a ladder or a rung, such as softmax/4, or give --all.")
    known = _rows(output)
    done = {(r["rung"], r["file"], r["line"], r["kind"], r["change"]) for r in known}
    work = room.trials(catalogue.select(rung), limit=limit, seed=seed)
    work = [t for t in work if (t.rung, t.file, t.line, t.kind, t.change) not in done]
    verdicts = []
    for verdict in room.mutate(work, jobs=jobs or os.cpu_count() or 1, niceness=nice):
        verdicts.append(verdict)
        if output is not None:
            with output.open("a", encoding="utf-8") as file:
                print(json.dumps(verdict.as_json()), file=file)
        print(f"{len(verdicts)} of {len(work)}: {verdict.rung} {verdict.kind}", file=sys.stderr, flush=True)
    rows = [*known, *(v.as_json() for v in verdicts)]
    survivors = [r for r in rows if not r["refused"]]
    console.table(
        ("rung", "file", "line", "kind", "change that survives"),
        [(r["rung"], r["file"], r["line"], r["kind"], r["change"]) for r in survivors],
        right=("line",),
    )
    judged = [r for r in rows if r["compiles"]]
    share = 1 - len(survivors) / len(judged) if judged else 1.0
    print(f"\n{len(judged) - len(survivors)} of {len(judged)} mutants that compile are refused ({share:.1%}).")


def _rows(path: Path | None) -> list[dict[str, object]]:
    if path is None or not path.exists():
        return []
    return [json.loads(line) for line in path.read_text(encoding="utf-8").splitlines()]
