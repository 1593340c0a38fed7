"""`rung doctor`: what works on this machine."""

from __future__ import annotations

from typing import Annotated

import typer

from rung.cli import console


def doctor(json: Annotated[bool, typer.Option("--json", help="Print the findings as JSON.")] = False) -> None:
    """What works on this machine, what is missing, and what to do about it.

    Exit code 0 unless something that rung cannot do without is broken (1).
    """
    from rung.doctor import examine

    findings = list(examine())
    if json:
        console.print_json([finding.as_json() for finding in findings])
    else:
        rows = [(f.name, f.state, "; ".join(t for t in (f.detail, f.mend) if t)) for f in findings]
        console.table(("what", "state", "found"), rows)
        broken = [f.name for f in findings if f.state == "broken"]
        print(f"\nbroken: {', '.join(broken)}." if broken else "\nNothing that rung needs is broken.")
    if any(f.state == "broken" for f in findings):
        raise typer.Exit(1)
