"""`rung export`: a rung in another project's format."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer


def export(
    rung: Annotated[str, typer.Argument(metavar="OP/RUNG", help="The rung.")],
    to: Annotated[str, typer.Option(help="hf-kernel, torch, kernelbench, leetgpu, popcorn or flashinfer.")],
    output: Annotated[
        Path | None, typer.Option("--output", "-o", help="The folder (default: OP-RUNG-WORLD, here).")
    ] = None,
) -> None:
    """Write a rung for use without rung: a folder in another project's format.

    Examples: rung export layernorm/07_warp --to torch · rung export gelu/triton --to popcorn -o ./gelu
    """
    from rung.exchange.export import export as write
    from rung.rungs import catalogue

    found = catalogue.find(rung)
    folder = output or Path(f"{found.operation.name}-{found.name}-{to}")
    for path in write(found, to, folder):
        print(path)
