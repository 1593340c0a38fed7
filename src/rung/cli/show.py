"""`rung show`: a rung's idea and source, its page, and how it differs from its parent."""

from __future__ import annotations

from typing import TYPE_CHECKING, Annotated

import typer

from rung.cli import console, options
from rung.errors import RungError

if TYPE_CHECKING:
    from rung.operation import Operation
    from rung.rungs.base import Rung

_FIELDS = (
    "full_name", "kind", "idea", "expect", "found", "provenance", "rewrite", "side_experiment", "dtypes", "needs",
    "tune", "source",
)  # fmt: skip


def show(
    rung: Annotated[str, typer.Argument(metavar="OP[/RUNG]", help="Such as layernorm/3, or layernorm.")],
    file: options.File = None,
    diff: Annotated[bool, typer.Option("--diff", help="Only the difference from its parent's code.")] = False,
    count: Annotated[
        bool, typer.Option("--count", help="With --diff: what each changed line asks of memory, by the emulator.")
    ] = False,
    header: Annotated[
        bool, typer.Option("--header", help="Only its header, including what it inherits from its parent.")
    ] = False,
    json: options.Json = False,
) -> None:
    """A rung's idea and source, its page, and how it differs from its parent; of an operation, its operands, sizes and
    scalars.
    """
    from rung import adopt
    from rung.rungs import catalogue, difference

    if "/" not in rung and file is None:
        return show_operation(catalogue.operation(rung), json=json)
    chosen = adopt.select(rung, file)[0]
    parent = catalogue.parent(chosen)
    changes = difference.lines(parent, chosen) if parent is not None else []
    if diff and parent is None and chosen.number is None:
        example = f'from = "{chosen.operation.name}/1"'
        raise RungError(f"{chosen.full_name} has no number and names no parent; a header's {example} would.")
    if diff and parent is None:
        raise RungError(f"{chosen.full_name} is the first of its ladder: there is no rung before it.")
    if json:
        shown = {f: getattr(chosen, f) for f in _FIELDS} | {"story": chosen.story}
        console.print_json({**shown, "parent": parent.full_name if parent else None, "diff": "\n".join(changes)})
        return
    if count and (not diff or parent is None):
        raise RungError("--count stands beside a difference; add --diff.")
    if count and parent is not None:
        changes = _counted(changes, parent, chosen)
    if diff and chosen.rewrite:
        changes.insert(0, f"# {chosen.rewrite}")
    text = "\n".join(changes) if diff else _header(chosen) if header else chosen.source.rstrip()
    if not console.is_terminal():
        print(text)
        if chosen.story and not (diff or header):
            print("\n" + chosen.story.rstrip())
        return
    from rich.console import Console
    from rich.markdown import Markdown
    from rich.syntax import Syntax

    out = Console()
    origin = f"  (from {parent.full_name})" if parent else ""
    out.print(f"[bold]{chosen.full_name}[/bold]{origin}  {chosen.idea}", highlight=False)
    language = "diff" if diff else {"cuda": "c++"}.get(chosen.kind, "python")
    out.print(Syntax(text, language, line_numbers=not (diff or header), word_wrap=True, background_color="default"))
    if chosen.story and not (diff or header):
        out.print(Markdown(chosen.story))


def show_operation(of: Operation, *, json: bool) -> None:
    """The names that a kernel's parameters are bound to, and what they mean."""
    rows = [(o.name, [str(size) for size in o.shape], o.role, o.dtype, o.optional or o.nullable) for o in of.operands]
    scalars = {name: str(usual) for name, usual in of.scalars.items()}
    derived = {name: str(formula) for name, formula in of.derived.items()}
    if json:
        named = [dict(zip(("name", "shape", "role", "dtype", "optional"), row, strict=True)) for row in rows]
        sizes = {"dims": of.dims, "derived": derived, "scalars": scalars}
        console.print_json({"operation": of.name, "operands": named, **sizes})
        return
    print(f"{of.name}: {of.summary}\n")
    shown = [(name, " x ".join(shape), *rest, "optional" * optional) for name, shape, *rest, optional in rows]
    console.table(("operand", "shape", "role", "dtype", ""), shown)
    print(f"\nsizes: {', '.join([*of.dims, *(f'{name} = {formula}' for name, formula in derived.items())])}")
    if scalars:
        print(f"scalars: {', '.join(f'{name} ({usual} by default)' for name, usual in scalars.items())}")


def _counted(changes: list[str], parent: Rung, child: Rung) -> list[str]:
    """The difference with what its lines ask of memory at a small case, on both sides the same."""
    from dataclasses import replace

    from rung.dtypes import DTYPES
    from rung.profile import emulated
    from rung.rungs.base import Subject
    from rung.show import counts

    both = [name for name in child.dtypes if name in parent.dtypes]
    if not both:
        raise RungError(f"{child.full_name} and {parent.full_name} have no number format in common.")
    largest = child.operation.complete(next(iter(child.operation.shapes.values())))
    subject = emulated.small(Subject(child, "", largest, DTYPES[both[0]]))
    with console.counting(f"{parent.full_name} and {child.full_name}"):
        found = [emulated.run(replace(subject, rung=rung)) for rung in (parent, child)]
    console.note(f"{subject.dtype.name} {subject.shape}: requests x sectors or passes, counted on the emulator.")
    marks = []
    for rung, counted in zip((parent, child), found, strict=True):
        files = [rung.path, *rung.path.parent.glob("*.cuh")] if rung.path else []
        marks.append(counts.of_texts(counted, {f.name: f.read_text(encoding="utf-8") for f in files}))
    return counts.beside_changes(changes, marks[0], marks[1], console.margin(counts.MARGIN))


def _header(rung: Rung) -> str:
    from rung.rungs.cuda import CudaRung
    from rung.rungs.header import written

    if not isinstance(rung, CudaRung):
        raise RungError(f"{rung.full_name} is {rung.kind}: only a .cu rung has a header.")
    return written(rung.table)
