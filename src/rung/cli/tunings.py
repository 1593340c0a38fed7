"""`rung tunings`: the launch parameters that sweeps found best."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated, Any

import typer

from rung.cli import console, options


def tunings(
    rung: Annotated[str | None, typer.Argument(metavar="[OP[/RUNG]]", help="Only these.")] = None,
    file: Annotated[Path | None, typer.Option(help="Another file of tunings.")] = None,
    json: options.Json = False,
) -> None:
    """The launch parameters that sweeps found best, which bench and the model use.

    Examples: rung tunings · rung tunings layernorm · rung tunings --json
    """
    from rung.rungs import catalogue
    from rung.rungs import tunings as stored

    path = file or stored.default_path()
    names = {r.full_name for r in catalogue.select(rung)} if rung else None
    rows = [r for r in stored.listed(path) if names is None or r["rung"] in names]
    if json:
        console.print_json(rows)
        return
    if not rows:
        console.note(f"rung: no tunings in {path}; `rung sweep OP/RUNG` on a GPU finds some.")
        return
    cells = [
        (
            r["rung"],
            r["dtype"],
            r["class"],
            r["machine"].get("gpu", ""),
            " ".join(f"{n}={v}" for n, v in r["tuning"].items()),
            f"{r['cold_us']:.2f}" if r["cold_us"] else "in a prompt",
            f"{r['default_us'] / r['cold_us']:.2f}x" if r["default_us"] else "",
            _remark(r),
        )
        for r in rows
    ]
    columns = ("rung", "dtype", "shapes up to", "GPU", "tuning", "cold us", "gain", "remark")
    console.table(columns, cells, right=("cold us", "gain"), drop=("remark", "GPU", "cold us"))


def _remark(row: dict[str, Any]) -> str:
    if row["stale"]:
        return "no longer used: the rung has changed"
    return "found before its headers changed" if row["headers_changed"] else ""
