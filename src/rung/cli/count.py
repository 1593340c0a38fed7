"""`rung count`: what a rung asks of memory, line by line, counted without a GPU."""

from __future__ import annotations

from typing import TYPE_CHECKING, Annotated

import typer

from rung.cli import console, options
from rung.errors import RungError

if TYPE_CHECKING:
    from rung.profile.emulated import Counted
    from rung.rungs.base import Subject


def count(
    rung: Annotated[str, typer.Argument(metavar="OP/RUNG", help="A rung of a ladder; with a file, its operation.")],
    file: options.File = None,
    vs: Annotated[str | None, typer.Option(help="Another rung to compare with, or `parent`.")] = None,
    shape: options.Shape = None,
    dtype: options.Dtype = None,
    tune: options.Tune = None,
    lines: Annotated[bool, typer.Option("--lines", help="The source, with what each line asks of memory.")] = False,
    goal: Annotated[
        list[str] | None, typer.Option(help="Fail unless this holds: 'sectors_per_request(ld) <= 1.1' (repeatable).")
    ] = None,
    bound: Annotated[
        str | None, typer.Option(metavar="GPU", help="A lower bound of the time on this GPU: 'NVIDIA H200'.")
    ] = None,
    json: options.Json = False,
) -> None:
    """Requests, sectors, bank conflicts, copies and barriers, counted without a GPU: the machine code runs on the CPU.

    The names are Nsight Compute's where they mean the same. Large shapes are counted at small ones and
    extrapolated, where that is exact.

    Examples: rung count transpose/2 --vs transpose/3 · rung count gelu my_kernel.cu --lines
    """
    from rung.cli.sweep import subject_of
    from rung.emulator.counters_explained import met
    from rung.profile import bound as bounds
    from rung.profile import emulated
    from rung.rungs import catalogue

    subject = subject_of(rung, file, shape, dtype)
    with console.counting(subject.rung.full_name):
        every = [emulated.count(subject, options.parse_tuning(tune))]
    if vs is not None:
        parent = catalogue.parent(subject.rung) if vs == "parent" else None
        if vs == "parent" and parent is None:
            raise RungError(f"{subject.rung.full_name} has no parent; name a rung with --vs.")
        other = subject_of(
            parent.full_name if parent else vs, None, shape or subject.shape, dtype or subject.dtype.name
        )
        with console.counting(other.rung.full_name):
            every.append(emulated.count(other))
    goals = [(text, *met(text, every[0].kernels)) for text in goal or ()]
    least = bounds.bound(subject, every[0].as_json()["kernels"], bound) if bound else None
    missed = not all(ok for _, ok, _ in goals)
    if json:
        from rung.show import document

        results = [c.as_json() for c in every]
        results[0] |= {} if least is None else {"bound": vars(least)}
        found = [
            document.finding("goal", f"missed: {text} ({figures})", about=every[0].rung)
            for text, ok, figures in goals
            if not ok
        ]
        notes = [f"met: {text} ({figures})" for text, ok, figures in goals if ok]
        console.print_json(document.document("count", int(missed), results, found, notes))
    else:
        _print(every, subject, lines)
        if least is not None:
            parts = ", ".join(f"{name} {seconds * 1e6:.3g} us" for name, seconds in least.units.items())
            print(f"\nno kernel with this work is faster than {least.seconds * 1e6:.3g} us on {bound}: {parts}")
    for text, ok, figures in goals if not json else ():
        print(f"{'met' if ok else 'missed'}: {text} ({figures})")
    if missed:
        raise typer.Exit(1)


def _print(every: list[Counted], subject: Subject, lines: bool) -> None:
    from rung.show import counts as tables

    for counted in every:
        how = "counted" if counted.exact else f"from counts at {'; '.join(counted.sizes)}"
        console.note(f"{counted.rung} {counted.dtype} {counted.shape}: {how}; caches are not modelled.")
    if lines:
        own = subject.rung.path.name if subject.rung.path else ""
        print(tables.annotated(every[0], subject.rung.source, own, console.margin(tables.MARGIN)))
        return
    shown = tables.kernels(every)
    console.tables(shown.columns, shown.rows)
    if len(every) > 1:
        print()
        print("\n".join(tables.against(*every)))
    sizes = {n: int(v) for n, v in subject.values.items() if isinstance(v, int)}
    costly = tables.expensive(every[0], sizes)
    if costly.rows:
        print()
        console.table(costly.columns, costly.rows, right=costly.right, drop=(tables.WASTED,))
