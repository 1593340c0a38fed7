"""`rung reproduce`: the documents' tables in their form, ours beside theirs; measured here if asked."""

from __future__ import annotations

from typing import TYPE_CHECKING, Annotated

import typer

from rung.cli import console, options
from rung.errors import RungError

if TYPE_CHECKING:
    from rung_reproduce.show.page import Shown


def reproduce(
    document: Annotated[
        str | None, typer.Argument(metavar="[DOCUMENT]", help="Which one, as milestone3 or flash (default: list them).")
    ] = None,
    gpu: options.Gpu = None,
    run: Annotated[
        bool, typer.Option("--run", help="Measure on this GPU what is missing, then show it with its own verdicts.")
    ] = False,
    budget: Annotated[float, typer.Option(min=20, help="With --run: seconds; the same command goes on later.")] = 540.0,
    again: Annotated[bool, typer.Option("--again", help="With --run: also what was measured here before.")] = False,
    dry_run: Annotated[
        bool, typer.Option("--dry-run", help="With --run: only what would be measured, and for how long.")
    ] = False,
    missing: Annotated[
        bool, typer.Option("--missing", help="Only the commands that fill empty places, one on each line.")
    ] = False,
    findings: Annotated[
        bool, typer.Option("--findings", help="Only what they found, with theirs, ours, a verdict, the reason.")
    ] = False,
    json: options.Json = False,
) -> None:
    """A document's ten headlines and its tables, in its order and form: theirs and ours, judged by this GPU's rows.

    Without --run nothing is measured: ours are stored rows of the present code, of the GPU at hand or of --gpu, beside
    what the emulator counts. With it, rows that others measured on a card of the same kind are neither used nor shown.

    Examples: rung reproduce flash · rung reproduce lecture --gpu H100 · rung reproduce milestone3 --run --budget 540
    """
    from rung_reproduce import sources

    if document is not None and document not in sources.documents():
        raise RungError(f"there is no document {document!r}; there are {', '.join(sources.documents())}.")
    if run or dry_run:
        gpu = _run(document, budget, again=again, dry_run=dry_run)
        if dry_run:
            return
    on = _shown(gpu, own=run)
    names = [name for name in sources.documents() if document in (None, name)]
    if missing:
        chosen = [e for e in sources.experiments() if e.document.name in names]
        empty = [r for e in chosen for f in e.figures for r in f.ours if r.value(on.judged) is None]
        print(*dict.fromkeys(r.command for r in empty), sep="\n")
    elif json:
        console.print_json([_as_json(name, on, tables=not findings) for name in names])
    elif findings:
        for name in names:
            _findings(name, on)
    elif document is None:
        for name, of in sources.documents().items():
            print(f"{name:12}{of.cited}")
        print("\nrung reproduce DOCUMENT shows one; --run measures it on this GPU.")
    else:
        _document(document, on)


def _shown(gpu: str | None, *, own: bool) -> Shown:
    """Stored rows of a GPU; own: of its kind only those that were measured here."""
    from rung.results import current, store
    from rung.results.current import Figures
    from rung_reproduce.show import page

    stored = [row for row in store.published() if row.gpu != gpu] + store.own() if own else store.gather()
    found = current.of_gpu(stored, gpu) if stored or gpu else Figures("", [])
    return page.shown(found, stored)


def _run(document: str | None, budget: float, *, again: bool, dry_run: bool) -> str | None:
    """Measures what is missing here; the GPU's name."""
    import torch

    from rung.results import machine
    from rung_reproduce import measure

    if not (dry_run or torch.cuda.is_available()):
        raise RungError("--run measures on a GPU, and there is none here; without it stored rows are shown.")
    gpu = str(machine.facts().get("gpu", ""))
    asked = measure.wanted(document, [] if again else measure.rows(gpu))
    steps = [step for step in asked if not step.lacks]
    for left_out in (step for step in asked if step.lacks):
        console.note(f"rung: {left_out.name} is left out: {left_out.lacks}")
    told = f"{len(steps)} steps, about {measure.minutes(steps):.0f} minutes on an H200"
    limit = f"the budget is {budget / 60:.0f} minutes"
    console.note(f"rung: {told}; {limit}." if asked else "rung: every place has a row.")
    if dry_run:
        console.table(("step", "seconds"), [(s.name, f"{s.seconds:.0f}") for s in steps], right=("seconds",))
        return None
    outcomes = list(measure.run(steps, budget, console.note))
    problems = [(o.step.name, o.problem) for o in outcomes if o.problem]
    spent = sum(o.seconds for o in outcomes) / 60
    console.note(f"rung: {len(outcomes) - len(problems)} of {len(steps)} steps in {spent:.1f} minutes.")
    for name, problem in problems:
        console.note(f"  {name}: {problem}")
    return gpu or None


def _document(name: str, on: Shown) -> None:
    from rung_reproduce import findings, sources
    from rung_reproduce.show import forms

    of = sources.documents()[name]
    print(f"{of.cited}\n\n{findings.told(name, 'did')}")
    lines = [(f.says, *f.cells(on.judged), f.verdict(on.judged))
             for f in findings.headlines(name, on.judged)]  # fmt: skip
    print()
    console.table(("they found", "theirs", f"ours, {on.gpu or 'no GPU'}", ""), lines, right=("theirs", "ours"))
    print(f"\nAll {len(findings.of_document(name))}, with reasons: rung reproduce {name} --findings")
    for form in forms.forms(name, on.columns):
        print(f"\n{form.experiment.section}: {form.title}\n{form.differs}\n")
        console.table(form.heads, form.lines, right=form.heads[1:])
        if form.rest:
            print()
            console.table(forms.REST, form.rest, right=forms.REST[1:3])


def _findings(name: str, on: Shown) -> None:
    from rung_reproduce import findings, sources

    print(f"\n{sources.documents()[name].cited}\n")
    console.table(findings.COLUMNS, findings.table(name, on.judged), right=("theirs", "ours"))
    waiting = sum(not f.judged(on.judged) for f in findings.of_document(name))
    if waiting:
        where = on.gpu or "a GPU"
        console.note(f"{waiting} have no row of {where} yet: `rung reproduce {name} --run` measures them there.")


def _as_json(name: str, on: Shown, *, tables: bool) -> dict[str, object]:
    from rung_reproduce import findings, sources

    told = [dict(zip(findings.COLUMNS, line, strict=True)) for line in findings.table(name, on.judged)]
    experiments = [
        {"section": e.section, "title": e.title, "gpu": e.gpu, "differs": e.differs,
         "figures": [dict(zip(sources.COLUMNS, line, strict=True)) for line in e.table(on.rows, on.counts)]}
        for e in sources.experiments() if e.document.name == name
    ]  # fmt: skip
    more = {"experiments": experiments} if tables else {}
    return {"document": name, "cited": sources.documents()[name].cited, "gpu": on.gpu, "findings": told, **more}
