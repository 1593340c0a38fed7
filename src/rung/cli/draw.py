"""`rung draw`: pictures of what a warp asks of memory."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from rung.cli import console, options


def draw(
    rung: Annotated[str, typer.Argument(metavar="OP/RUNG", help="A rung of a ladder; with a file, its operation.")],
    file: options.File = None,
    vs: Annotated[str | None, typer.Option(help="A rung to draw beside it (default: its parent; none: alone).")] = None,
    shape: options.Shape = None,
    dtype: options.Dtype = None,
    tune: options.Tune = None,
    output: options.Output = None,
) -> None:
    """Who computes what, tiles in shared memory, and lanes over sectors and banks, as one HTML file; needs no GPU.

    Without --shape a small case of the operation is drawn, which shows several blocks.

    Example: rung draw transpose/3 · rung draw reduce mine.cu -o mine.html
    """
    from rung import adopt
    from rung.lines import write_whole
    from rung.profile import emulated
    from rung.rungs import catalogue
    from rung.rungs.subjects import subject_of
    from rung.show import drawings

    subject = subject_of(adopt.named(rung, file), None, shape, dtype)
    output = output or Path(f"{subject.rung.full_name.replace('/', '-')}.html")
    if shape is None:
        subject = emulated.to_draw(subject)
    subjects = [subject]
    with console.counting(subject.rung.full_name):
        every = [emulated.run(subject, options.parse_tuning(tune), trace=True)]
    parent = catalogue.parent(subject.rung) if vs is None and file is None else None
    if parent is not None and parent.kind == "cuda" and (why := parent.refusal(subject.values, subject.dtype)):
        console.note(f"Not drawn beside it: {why}")
        parent = None
    beside = parent.full_name if parent is not None and parent.kind == "cuda" else vs
    if beside not in (None, "none"):
        other = subject_of(str(beside), None, subject.shape, dtype or subject.dtype.name)
        subjects.insert(0, other)
        with console.counting(other.rung.full_name):
            every.insert(0, emulated.run(other, trace=True))
    sources = {s.rung.full_name: drawings.sources_of(s.rung) for s in subjects}
    sizes = {n: v for n, v in subject.values.items() if isinstance(v, int)}
    write_whole(output, drawings.page(every, sources, sizes))
    print(f"written: {output}")
