"""`rung doctor`: what works on this machine."""

from __future__ import annotations

import typer

from rung.cli import console, options


def doctor(json: options.Json = False) -> None:
    """What works on this machine, what is missing, and what to do about it.

    Exit code 0, or 1 if a required component is broken.
    """
    from rung.doctor import examine

    findings = list(examine())
    if json:
        console.print_json([finding.as_json() for finding in findings])
    else:
        rows = [(f.name, f.state, "; ".join(t.rstrip(".") for t in (f.detail, f.mend) if t)) for f in findings]
        console.table(("what", "state", "found"), rows)
        broken = [f.name for f in findings if f.state == "broken"]
        print(f"\nbroken: {', '.join(broken)}." if broken else "\nAll required components work.")
    if any(f.state == "broken" for f in findings):
        raise typer.Exit(1)
