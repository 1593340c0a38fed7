"""`rung show`: a rung's idea and source, and what changed from the rung before."""

from __future__ import annotations

import difflib
from pathlib import Path
from typing import Annotated

import typer

from rung.cli import console
from rung.errors import RungError


def show(
    rung: Annotated[
        str, typer.Argument(metavar="OP/RUNG", help="Such as layernorm/03_restrict, or layernorm/3.")
    ],
    file: Annotated[Path | None, typer.Argument(help="Your own kernel, shown as a rung of OP.")] = None,
    diff: Annotated[bool, typer.Option("--diff", help="Only what changed from the rung before.")] = False,
    json: Annotated[bool, typer.Option("--json", help="Print as JSON.")] = False,
) -> None:
    """A rung's idea and source, and what changed from the rung before."""
    from rung.rungs import catalogue

    if "/" not in rung and file is None:
        raise RungError(
            f"{rung!r} names a ladder; `rung list {rung}` shows its rungs, and OP/RUNG shows one."
        )
    chosen = catalogue.select(rung, file)[0]
    before = catalogue.before(chosen)
    changes = ""
    if before is not None:
        changes = "\n".join(
            difflib.unified_diff(
                before.source.splitlines(),
                chosen.source.splitlines(),
                before.name,
                chosen.name,
                lineterm="",
                n=3,
            )
        )
    if diff and chosen.number is None:
        raise RungError(f"{chosen.full_name} has no place among the numbers: there is no rung before it.")
    if diff and before is None:
        raise RungError(f"{chosen.full_name} is the first of its ladder: there is no rung before it.")
    if json:
        fields = (
            "full_name",
            "kind",
            "idea",
            "expect",
            "found",
            "provenance",
            "dtypes",
            "needs",
            "tune",
            "source",
        )
        shown = {f: getattr(chosen, f) for f in fields}
        console.print_json({**shown, "before": before.full_name if before else None, "diff": changes})
        return
    language = "diff" if diff else ("cuda" if chosen.kind == "cuda" else "python")
    text = changes if diff else chosen.source.rstrip()
    if not console.is_terminal():
        print(text)
        return
    from rich.console import Console
    from rich.syntax import Syntax

    out = Console()
    out.print(f"[bold]{chosen.full_name}[/bold]  {chosen.idea}", highlight=False)
    lexer = {"cuda": "c++"}.get(language, language)
    out.print(Syntax(text, lexer, line_numbers=not diff, word_wrap=True, background_color="default"))
