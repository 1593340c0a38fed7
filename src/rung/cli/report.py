"""`rung report`: everything known about every ladder, in one HTML file."""

from __future__ import annotations

import itertools
from collections.abc import Callable
from pathlib import Path
from typing import Annotated

import typer

from rung.cli import console, options


def report(
    results: options.Measured = None,
    output: Annotated[Path, typer.Option("--output", "-o", help="The file to write.")] = Path("report.html"),
    gpu: options.Gpu = None,
    compile: Annotated[
        bool, typer.Option("--compile/--no-compile", help="Add registers and occupancy; it takes minutes at first.")
    ] = False,
    arch: Annotated[str, typer.Option(help="The architecture to compile for.")] = "sm_90",
) -> None:
    """Write one self-contained HTML file: ideas, findings, sources, times, rooflines, sweeps and studies.

    Examples: rung report · rung report results/h200 -o h200.html · rung report --compile
    """
    from gpuless.facts import limits
    from rung.results import current, store
    from rung.rungs import catalogue
    from rung.show.report import page

    limits.limits(arch)
    rows = store.gather(results or ())
    found = current.of_gpu(rows, gpu) if rows or gpu else None
    other_gpus = tuple(g for g in current.by_gpu(rows) if g and found is not None and g != found.gpu)
    made = {}
    if compile:
        rungs = [r for name in catalogue.operations() for r in catalogue.rungs(name, libraries=False)]
        made = page.resources_of(rungs, arch, _progress("compiling", len(rungs)))
    progress = _progress("ladder", len(catalogue.operations()))
    text = page.build(found, made, drawn=rows, other_gpus=other_gpus, progress=progress)
    store.write_whole(output, text)
    console.note(f"{output}: {len(text) / 2**20:.1f} MiB, {len(catalogue.operations())} ladders")


def _progress(what: str, total: int) -> Callable[[str], None]:
    count = itertools.count(1)
    return lambda name: console.status("" if (done := next(count)) == total else f"{what} {done} of {total}: {name}")
