"""`rung check`: is a rung right?"""

from __future__ import annotations

from pathlib import Path
from typing import Annotated, Any

import typer

from rung.cli import console
from rung.errors import RungError


def check(
    rung: Annotated[
        str | None, typer.Argument(metavar="[OP[/RUNG]]", help="A ladder or one rung; all when left out.")
    ] = None,
    file: Annotated[Path | None, typer.Argument(help="Your own kernel (.cu or .py), checked as a rung of OP.")] = None,
    device: Annotated[str | None, typer.Option(help="cuda or emulator; a GPU is used where there is one.")] = None,
    dtype: Annotated[list[str] | None, typer.Option(help="Only this number format (may be repeated).")] = None,
    case: Annotated[str | None, typer.Option(help="Only this case of the operation.")] = None,
    seed: Annotated[int, typer.Option(min=0, help="Where the random inputs start.")] = 0,
    tune: Annotated[list[str] | None, typer.Option(help="A tunable's value, as in --tune BLOCK=128.")] = None,
    quick: Annotated[bool, typer.Option("--quick", help="Only the first case of each rung.")] = False,
    races: Annotated[
        bool, typer.Option("--races", help="Emulated: look at every access to shared memory (slower).")
    ] = False,
    libraries: Annotated[bool, typer.Option(help="Check the library calls as well.")] = True,
    sanitize: Annotated[
        bool,
        typer.Option("--sanitize", help="Launch each rung under compute-sanitizer instead (needs a GPU)."),
    ] = False,
    jobs: Annotated[int | None, typer.Option("--jobs", "-j", min=1, help="Processes (default: one a core).")] = None,
    json: Annotated[bool, typer.Option("--json", help="Print the reports as JSON.")] = False,
) -> None:
    """Is a rung right? Every case and dtype against a float64 reference, on a GPU or emulated.

    Exit code 0: all right; 1: a rung failed; 2: the question could not be understood.

    Examples: rung check · rung check softmax/3 --dtype bf16 · rung check layernorm mine.cu
    """
    from rung.check import many
    from rung.dtypes import dtype as dtype_named
    from rung.rungs import catalogue

    for name in dtype or []:
        dtype_named(name)
    chosen = [r for r in catalogue.select(rung, file) if libraries or r.kind != "library"]
    where = many.device_named(device)
    if sanitize:
        _sanitize(sorted({r.operation.name for r in chosen}), where, jobs, json)
        return
    work = many.tasks(
        chosen,
        device=where,
        seed=seed,
        case=case,
        dtypes=dtype or (),
        tuning=parse_tuning(tune),
        quick=quick,
        races=races,
    )
    reports = list(_with_progress(many.check_all(work, jobs), len(work)))
    order = {(t.rung, t.dtype): i for i, t in enumerate(work)}
    reports.sort(key=lambda r: order[(r.rung, r.dtype)])
    if json:
        console.print_json({"device": _device_name(where), "reports": [r.as_json() for r in reports]})
    else:
        _print(reports, _device_name(where))
    if any(r.verdict == "failed" for r in reports):
        raise typer.Exit(1)


def _sanitize(operations: list[str], device: str, jobs: int | None, json: bool) -> None:
    from rung.check import sanitize as lab

    if device != "cuda":
        raise RungError("compute-sanitizer watches a GPU, and there is none here; the emulator checks bounds too.")
    findings = list(lab.sanitize(operations, jobs=jobs or 6))
    if json:
        console.print_json([{**f.__dict__, "clean": f.clean} for f in findings])
    else:
        columns = ("operation", "tool", "launches", "errors", "verdict")
        rows = [(f.operation, f.tool, f.launched, f.errors, "ok" if f.clean else "failed") for f in findings]
        console.table(columns, rows, right=("launches", "errors"))
        for finding in findings:
            if finding.text:
                print(f"\n{finding.operation}, {finding.tool}:\n{finding.text}")
    if not all(f.clean for f in findings):
        raise typer.Exit(1)


def parse_tuning(words: list[str] | None) -> dict[str, int] | None:
    """`["BLOCK=128"]` as a dictionary."""
    tuning = {}
    for word in words or []:
        name, equals, value = word.partition("=")
        if not equals or not value.lstrip("-").isdigit():
            raise RungError(f"--tune {word} is not NAME=NUMBER, as in --tune BLOCK=128.")
        tuning[name] = int(value)
    return tuning or None


def _device_name(device: str) -> str:
    if device != "cuda":
        return "CPU emulator"
    import torch

    return torch.cuda.get_device_name()


def _with_progress(reports: Any, total: int) -> Any:
    from rich.console import Console
    from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeRemainingColumn

    columns = (TextColumn("{task.description}"), BarColumn(), MofNCompleteColumn(), TimeRemainingColumn())
    screen = Console(stderr=True)
    with Progress(*columns, console=screen, transient=True, disable=not screen.is_terminal) as progress:
        task = progress.add_task("checking", total=total)
        for report in reports:
            progress.update(task, advance=1, description=f"{report.rung} {report.dtype}"[:40].ljust(40))
            yield report


def _print(reports: list[Any], device: str) -> None:
    rows = [
        (
            r.rung,
            r.dtype,
            r.cases or "",
            f"{r.element:.3f}" if r.runs else "",
            f"{r.norm:.1e}" if r.runs else "",
            f"{r.norm_cap:.0e}" if r.runs else "",
            r.verdict,
            _remark(r),
        )
        for r in reports
    ]
    columns = ("rung", "dtype", "cases", "error/bound", "rel. error", "cap", "verdict", "remark")
    console.table(columns, rows, right=("cases", "error/bound", "rel. error", "cap"))
    counts = {v: sum(r.verdict == v for r in reports) for v in ("ok", "compiled", "skipped", "failed")}
    text = ", ".join(f"{n} {v}" for v, n in counts.items() if n)
    print(f"\n{text} on {device}; bounds: element by element, and on the whole (cap).")


def _remark(report: Any) -> str:
    parts = []
    if report.case:
        parts.append(f"case {report.case!r}:")
    if report.reason:
        parts.append(report.reason)
    if report.nondeterministic:
        parts.append("nondeterministic")
    if report.left_out and not report.reason:
        rules = {r.removeprefix(f"{report.rung} ") for r in report.left_out.values()}
        parts.append(f"{len(report.left_out)} cases left out ({'; '.join(sorted(rules))})")
    return " ".join(parts)
