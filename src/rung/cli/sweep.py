"""`rung sweep`: which launch parameters are best for a rung here?"""

from __future__ import annotations

import os
import sys
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from rung.cli import console, options
from rung.errors import RungError

if TYPE_CHECKING:
    from rung.rungs.base import Subject
    from rung.sweep.sweep import Measure, Sweep, Tuning


def sweep(
    rung: Annotated[str | None, typer.Argument(metavar="OP/RUNG", help="The rung to sweep.")] = None,
    file: options.File = None,
    found: Annotated[bool, typer.Option("--found", help="List what sweeps found.")] = False,
    shape: options.Shape = None,
    dtype: options.Dtype = None,
    tune: Annotated[
        list[str] | None, typer.Option(help="Only these values, as in --tune BLOCK=64,128 (repeatable).")
    ] = None,
    random: Annotated[
        int | None, typer.Option(min=1, help="Sample this many legal configurations instead of all.")
    ] = None,
    seed: options.Seed = 0,
    halving: Annotated[
        bool, typer.Option("--halving", help="Short timings of all, longer ones of the better half, and so on.")
    ] = False,
    measure: Annotated[
        str | None, typer.Option(help="time, compiler or emulator (default: time on a GPU, else compiler).")
    ] = None,
    arch: Annotated[str | None, typer.Option(help="For --measure compiler: sm_75 ... sm_120.")] = None,
    seconds: Annotated[float, typer.Option(min=0.01, help="Time cap for each configuration.")] = 0.2,
    again: Annotated[bool, typer.Option("--again", help="Measure again what was measured before.")] = False,
    profile: Annotated[
        bool, typer.Option("--profile", help="Profile each with Nsight Compute too: achieved occupancy, stalls.")
    ] = False,
    output: options.Output = None,
    json: options.Json = False,
    one_by_one: Annotated[bool, typer.Option("--one-by-one", hidden=True)] = False,
) -> None:
    """Which launch parameters are best for a rung here? The winner is what bench and the model then use.

    Every combination of the header's tunables that is legal at the shape, checked and timed. A sweep that was stopped
    resumes. Without a GPU it reports registers and occupancy, and no times.

    Examples: rung sweep layernorm/9 · rung sweep matmul/5 --shape b8t1024 --halving · rung sweep layernorm --found
    """
    if found:
        return _list_found(rung, json)
    if rung is None:
        raise RungError("`rung sweep` takes OP/RUNG, as in `rung sweep layernorm/9`; --found alone lists the best.")
    from rung import adopt
    from rung.rungs.subjects import subject_of
    from rung.sweep.backends import measure_named

    subject = subject_of(adopt.named(rung, file), None, shape, dtype)
    how = measure_named(measure, arch)
    if one_by_one:
        how.batch = 1
    tunings = tunings_of(subject, tune, random, seed, how)
    swept = run_sweep(
        subject,
        tunings,
        how,
        Settings(measure, arch, seconds, again, profile, output, json),
        halving=halving,
        finals=True,
    )
    if profile:
        profile_each([swept], output)
    conclude(swept, json, store=True)


def _list_found(rung: str | None, json: bool) -> None:
    from rung.rungs import catalogue
    from rung.rungs import tunings as stored

    path = stored.default_path()
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


@dataclass(frozen=True)
class Settings:
    """What holds for every configuration of a sweep."""

    measure: str | None
    arch: str | None
    seconds: float
    again: bool
    profile: bool
    output: Path | None
    json: bool


def tunings_of(
    subject: Subject, tune: list[str] | None, sample: int | None, seed: int, how: Measure | None
) -> list[Tuning]:
    from rung.sweep import sweep as sweeps

    def legal(tuning: Tuning) -> bool:
        # If the sweep runs on another machine, only the rung's own rules are known here.
        if how is None:
            return subject.rung.refusal(subject.values, subject.dtype, tuning) is None
        return sweeps.illegal(subject, tuning, how.device, how.arch) is None

    return sweeps.configurations(subject.rung, only=options.parse_tunings(tune), sample=sample, seed=seed, legal=legal)


def run_sweep(
    subject: Subject,
    tunings: list[Tuning],
    how: Measure,
    settings: Settings,
    *,
    halving: bool = False,
    finals: bool = False,
) -> Sweep:
    from rung.sweep import sweep as sweeps

    if not how.timed:
        what = "the compiler's report" if how.name == "compiler" else "right or wrong on the emulator"
        console.note(f"rung: no time is taken; each configuration is judged by {what}.")
    with console.progress(subject.rung.full_name) as report:
        try:
            return sweeps.sweep(
                subject, tunings, how, store=settings.output, effort=settings.seconds, halving=halving, finals=finals,
                again=settings.again, progress=lambda done, total, text: report(text, done, total),
            )  # fmt: skip
        except sweeps.ContextLost as lost:
            previous = lost
    _begin_again(previous)
    raise AssertionError


def _begin_again(lost: Any) -> None:
    """A fault on the GPU destroys its context: a new process continues after the faulty configuration."""
    words = [*sys.argv[1:]]
    if lost.tuning:
        named = " ".join(f"{n}={v}" for n, v in lost.tuning.items())
        console.note(f"rung: {named} corrupted the CUDA context ({lost.reason}); going on without it.")
    elif "--one-by-one" not in words:
        console.note(f"rung: a configuration corrupted the CUDA context ({lost.reason}); now one by one.")
        words.append("--one-by-one")
    else:
        raise RungError(f"the CUDA context is lost: {lost.reason}.")
    if "--again" in words:
        words.remove("--again")
    sys.stdout.flush()
    sys.stderr.flush()
    os.execv(sys.executable, [sys.executable, "-m", "rung", *words])


def profile_each(swept: Sequence[Sweep], store: Path | None) -> None:
    """Nsight Compute's counters of each configuration that worked, as rows of their own."""
    from rung.profile import batches

    chosen = [(s.subject, row.tuning) for s in swept for row in s.rows if row.verdict == "ok"]
    left = batches.missing(chosen, batches.rows_here(store))
    for row in batches.collect(left, float("inf"), lambda text: console.note(f"  {text}"), store):
        if row.verdict != "ok":
            console.note(f"rung: {row.what} {row.tuning}: {row.reason}")


def conclude(swept: Sweep, json: bool, *, store: bool) -> None:
    from rung.rungs import tunings
    from rung.show import sweep_tables
    from rung.sweep import summary

    findings = summary.findings(swept)
    won = summary.best_of(swept)
    if won is not None and store:
        best, default = won
        subject = swept.subject
        tunings.record(
            subject.rung, dtype=subject.dtype.name, shape=subject.shape, values=subject.values, tuning=best.tuning,
            cold_us=best.metrics["cold_us"], default_us=default.cold_us if default else None, machine=best.machine,
        )  # fmt: skip
    if json:
        console.print_json(sweep_tables.as_json(swept, findings, won))
    else:
        console.show(sweep_tables.of_rung(swept, findings, won))
    if not any(r.verdict == "ok" for r in swept.rows):
        raise typer.Exit(1)
