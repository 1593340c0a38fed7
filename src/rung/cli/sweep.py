"""`rung sweep`: which launch parameters are best for a rung here?"""

from __future__ import annotations

import os
import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from rung.cli import console, options
from rung.errors import RungError

if TYPE_CHECKING:
    from rung.bench.subject import Subject
    from rung.results.row import Row
    from rung.sweep.slurm import Request
    from rung.sweep.sweep import Measure, Sweep, Tuning

SHOWN = 24


def sweep(
    rung: Annotated[str | None, typer.Argument(metavar="OP/RUNG", help="The rung to sweep.")] = None,
    file: options.File = None,
    shape: options.Shape = None,
    dtype: options.Dtype = None,
    tune: Annotated[
        list[str] | None, typer.Option(help="Only these values, as in --tune BLOCK=64,128 (repeatable).")
    ] = None,
    random: Annotated[
        int | None, typer.Option(min=1, help="Draw this many legal configurations instead of all.")
    ] = None,
    seed: options.Seed = 0,
    halving: Annotated[
        bool, typer.Option("--halving", help="Short looks at all, longer ones at the better half, and so on.")
    ] = False,
    measure: Annotated[
        str | None,
        typer.Option(help="time, compiler or emulator (default: time on a GPU, else compiler)."),
    ] = None,
    arch: Annotated[str | None, typer.Option(help="For --measure compiler: sm_75 ... sm_120.")] = None,
    seconds: Annotated[float, typer.Option(min=0.01, help="Time cap for each configuration.")] = 0.2,
    again: Annotated[bool, typer.Option("--again", help="Measure also what was measured before.")] = False,
    course: Annotated[bool, typer.Option("--course", help="The course project's table of block sizes, here.")] = False,
    output: options.Output = None,
    plot: options.Svg = None,
    json: options.Json = False,
    slurm: Annotated[bool, typer.Option("--slurm", help="Spread it over a Slurm cluster.")] = False,
    dry_run: Annotated[bool, typer.Option("--dry-run", help="With --slurm: print the script, submit nothing.")] = False,
    tasks: Annotated[int, typer.Option(min=1, help="With --slurm: tasks of the array.")] = 4,
    gpus: Annotated[int, typer.Option(min=0, help="With --slurm: GPUs for each task.")] = 1,
    exclusive: Annotated[bool, typer.Option("--exclusive", help="With --slurm: whole nodes, nobody beside.")] = False,
    partition: Annotated[str | None, typer.Option(help="With --slurm.")] = None,
    account: Annotated[str | None, typer.Option(help="With --slurm.")] = None,
    time: Annotated[str | None, typer.Option(help="With --slurm: the limit of a task, as 00:30:00.")] = None,
    sbatch: Annotated[
        list[str] | None, typer.Option(help="With --slurm: one more option for sbatch (repeatable).")
    ] = None,
    folder: Annotated[Path | None, typer.Option(help="With --slurm: where scripts, logs, rows go.")] = None,
    no_wait: Annotated[
        bool, typer.Option("--no-wait", help="With --slurm: submit and return; the same command gathers.")
    ] = False,
    retries: Annotated[int, typer.Option(min=0, help="With --slurm: how often failed tasks return.")] = 2,
    shard: Annotated[str | None, typer.Option(hidden=True)] = None,
    one_by_one: Annotated[bool, typer.Option("--one-by-one", hidden=True)] = False,
) -> None:
    """Which launch parameters are best for a rung here? The winner is what bench and the model then use.

    Every combination of the header's tunables that is legal at the shape, checked and timed. A sweep that is
    stopped goes on where it was. Without a GPU it tells registers and occupancy, and no time.

    Examples: rung sweep layernorm/9 · rung sweep matmul/5 --shape b8t1024 --halving · rung sweep --course
    """
    from rung.sweep.backends import measure_named

    if course:
        if rung or file or slurm:
            raise RungError("--course sweeps its own rungs here; leave out OP/RUNG, FILE and --slurm.")
        _course(measure_named(measure, arch), shape, dtype, seconds, again, output, json)
        return
    if rung is None:
        raise RungError("name a rung, as in `rung sweep layernorm/9`, or give --course.")
    if slurm and halving:
        raise RungError("--halving compares all configurations in one process; leave it out with --slurm.")
    subject = subject_of(rung, file, shape, dtype)
    if slurm or dry_run:
        request = _request(tasks, gpus, exclusive, partition, account, time, sbatch)
        wanted = _wanted(subject, tune, random, seed, None)
        words = _words(subject, rung, file, tune, random, seed, measure, arch, seconds)
        _spread(subject, words, request, wanted, folder, dry_run, not no_wait, retries, output, plot, json)
        return
    how = measure_named(measure, arch)
    if one_by_one:
        how.batch = 1
    wanted = _wanted(subject, tune, random, seed, how)
    if shard is not None:
        wanted = _shard(wanted, shard)
    swept = _sweep(subject, wanted, how, output, seconds, halving, shard is None, again)
    _conclude(swept, plot, json, keep=shard is None)


def subject_of(spec: str, file: Path | None, shape: str | None, dtype: str | None) -> Subject:
    """One rung at one shape (its usual one when none is named) and dtype."""
    from rung.bench import race
    from rung.bench.subject import Subject
    from rung.dtypes import dtype as dtype_named
    from rung.profile.inspect import DEFAULT_SHAPE
    from rung.rungs import catalogue

    chosen = catalogue.select(spec, file)
    if len(chosen) != 1:
        raise RungError(f"{spec} is a ladder; name one rung of it, such as {chosen[0].full_name}.")
    one = chosen[0]
    real = dtype_named(dtype or one.dtypes[0])
    shapes = one.operation.shapes
    usual = [DEFAULT_SHAPE] if DEFAULT_SHAPE in shapes else []
    for name, dims in race.shapes_of(one.operation, [shape] if shape else [*usual, *shapes]):
        values = one.operation.complete(dims)
        if shape is not None or one.refusal(values, real) is None:
            return Subject(one, name, values, real)
    raise RungError(f"{one.full_name} takes none of the operation's shapes in {real.name}; give --shape.")


def _only(words: list[str] | None) -> dict[str, list[int]]:
    only: dict[str, list[int]] = {}
    for word in words or []:
        name, equals, values = word.partition("=")
        try:
            only[name] = [int(v) for v in values.split(",")]
        except ValueError:
            equals = ""
        if not equals:
            raise RungError(f"--tune {word} is not NAME=NUMBER,NUMBER, as in --tune BLOCK=64,128.")
    return only


def _wanted(
    subject: Subject, tune: list[str] | None, sample: int | None, seed: int, how: Measure | None
) -> list[Tuning]:
    from rung.sweep import sweep as lab

    def legal(tuning: Tuning) -> bool:
        # Where the sweep runs elsewhere, only the rung's own rules are known here.
        if how is None:
            return subject.rung.refusal(subject.values, subject.dtype, tuning) is None
        return lab.illegal(subject, tuning, how.device, how.arch) is None

    return lab.configurations(subject.rung, only=_only(tune), sample=sample, seed=seed, legal=legal)


def _shard(wanted: list[Tuning], word: str) -> list[Tuning]:
    from rung.sweep import slurm

    index, _, of = word.partition("/")
    if not (index.isdigit() and of.isdigit() and int(index) < int(of)):
        raise RungError(f"--shard {word} is not INDEX/COUNT, as in 0/4.")
    return slurm.shard_of(wanted, int(index), int(of))


def _sweep(
    subject: Subject,
    wanted: list[Tuning],
    how: Measure,
    store: Path | None,
    seconds: float,
    halving: bool,
    finals: bool,
    again: bool,
) -> Sweep:
    from rung.sweep import sweep as lab

    if not how.timed:
        what = "what the compiler tells" if how.name == "compiler" else "right or wrong on the emulator"
        console.note(f"rung: no time is taken; each configuration is judged by {what}.")
    with _progress(subject.rung.full_name) as tell:
        try:
            return lab.sweep(
                subject,
                wanted,
                how,
                store=store,
                effort=seconds,
                halving=halving,
                finals=finals,
                again=again,
                progress=lambda done, total, text: tell(text, done, total),
            )
        except lab.Culprit as culprit:
            lost = culprit
    _begin_again(lost)
    raise AssertionError


def _begin_again(lost: Any) -> None:
    """A fault on the GPU ends its context for good: a new process goes on behind the culprit."""
    words = [*sys.argv[1:]]
    if lost.tuning:
        named = " ".join(f"{n}={v}" for n, v in lost.tuning.items())
        console.note(f"rung: {named} took the GPU's context along ({lost.reason}); going on without it.")
    elif "--one-by-one" not in words:
        console.note(f"rung: a configuration took the GPU's context along ({lost.reason}); now one by one.")
        words.append("--one-by-one")
    else:
        raise RungError(f"the GPU does not answer any more: {lost.reason}.")
    if "--again" in words:
        words.remove("--again")
    sys.stdout.flush()
    sys.stderr.flush()
    os.execv(sys.executable, [sys.executable, "-m", "rung", *words])


@contextmanager
def _progress(title: str) -> Iterator[Callable[[str, int, int], None]]:
    from rich.console import Console
    from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeRemainingColumn

    columns = (TextColumn("{task.description}"), BarColumn(), MofNCompleteColumn(), TimeRemainingColumn())
    with Progress(*columns, console=Console(stderr=True), transient=True) as progress:
        task = progress.add_task(title, total=None)

        def tell(text: str, done: int, total: int) -> None:
            progress.update(task, completed=done, total=total, description=f"{title} {text}"[:60].ljust(60))

        yield tell


def _request(
    tasks: int,
    gpus: int,
    exclusive: bool,
    partition: str | None,
    account: str | None,
    time: str | None,
    sbatch: list[str] | None,
) -> Request:
    from rung.sweep.slurm import Request

    return Request(tasks, gpus, exclusive, partition, account, time, tuple(sbatch or ()))


def _words(
    subject: Subject,
    spec: str,
    file: Path | None,
    tune: list[str] | None,
    sample: int | None,
    seed: int,
    measure: str | None,
    arch: str | None,
    seconds: float,
) -> list[str]:
    """The command line of a task."""
    words = ["sweep", spec, *([str(file.resolve())] if file else [])]
    shape = subject.shape if "=" in subject.shape or subject.shape in subject.rung.operation.shapes else None
    words += ["--shape", shape] if shape else []
    words += ["--dtype", subject.dtype.name, "--seconds", str(seconds)]
    words += [part for word in tune or [] for part in ("--tune", word)]
    words += ["--random", str(sample), "--seed", str(seed)] if sample else []
    words += ["--measure", measure] if measure else []
    words += ["--arch", arch] if arch else []
    return words


def _spread(
    subject: Subject,
    words: list[str],
    request: Request,
    wanted: list[Tuning],
    folder: Path | None,
    dry_run: bool,
    waiting: bool,
    retries: int,
    output: Path | None,
    plot: Path | None,
    json: bool,
) -> None:
    from rung.results import store as results
    from rung.rungs import identity
    from rung.sweep import slurm
    from rung.sweep.sweep import Sweep

    name = f"rung-sweep-{subject.rung.full_name.replace('/', '-')}-{subject.dtype.name}-{identity.text(subject.rung)}"
    folder = (folder or Path(name)).resolve()
    if dry_run:
        print(slurm.script(words, request, folder, range(request.tasks)), end="")
        return
    with _progress(subject.rung.full_name) as tell:
        rows = slurm.spread(words, request, folder, wanted, retries=retries, waiting=waiting, tell=tell)
    if len(rows) < len(wanted):
        console.note(f"rung: {len(rows)} of {len(wanted)} rows so far; the same command gathers the rest.")
        return
    there = {r.key for r in results.read(output) if r.kind == "sweep"}
    for row in rows:
        if row.key not in there:
            results.append(row, output)
    timed = any(r.cold_us is not None for r in rows)
    gpus = {r.gpu for r in rows}
    if timed and len(gpus) > 1:
        console.note(f"rung: the tasks ran on different GPUs ({', '.join(map(str, gpus))}); see --partition.")
    _conclude(Sweep(subject, rows[0].options["measure"], timed, rows), plot, json, keep=len(gpus) == 1)


def _conclude(swept: Sweep, plot: Path | None, json: bool, *, keep: bool) -> None:
    from rung.rungs import tunings
    from rung.sweep import summary

    told = summary.findings(swept)
    won = summary.best_of(swept)
    if won is not None and keep:
        best, default = won
        subject = swept.subject
        tunings.record(
            subject.rung,
            dtype=subject.dtype.name,
            shape=subject.shape,
            values=subject.values,
            tuning=best.tuning,
            cold_us=best.metrics["cold_us"],
            default_us=default.cold_us if default else None,
            machine=best.machine,
        )
    if plot is not None:
        from rung.show import sweep_chart

        sweep_chart.write(swept, told, plot)
    if json:
        console.print_json(
            {
                "rung": swept.subject.rung.full_name,
                "shape": swept.subject.shape,
                "dtype": swept.subject.dtype.name,
                "measure": swept.measure,
                "resumed": swept.resumed,
                "rows": [r.as_json() for r in swept.rows],
                "findings": [f.as_json() for f in told],
                "best": won[0].tuning if won else None,
            }
        )
    else:
        _print(swept, told, won)
    if not any(r.verdict == "ok" for r in swept.rows):
        raise typer.Exit(1)


def _print(swept: Sweep, told: list[Any], won: tuple[Row, Row | None] | None) -> None:
    from rung.sweep.sweep import figure_of

    names = list(swept.subject.rung.tune)
    right = sorted((r for r in swept.rows if r.verdict == "ok"), key=figure_of)
    default = swept.subject.rung.tuned(None)
    print(f"{swept.subject.rung.full_name}  {swept.subject.dtype.name}  {swept.subject.shape}\n")
    cells = []
    for row in right[:SHOWN]:
        time, ratio = row.cold_us, row.metrics.get("ratio")
        cells.append(
            (
                *(row.tuning[n] for n in names),
                "" if time is None else f"{time:.2f}",
                "" if ratio is None else f"{ratio:.3f}",
                f"{row.metrics['registers']:.0f}" if "registers" in row.metrics else "",
                _occupancy(row),
                row.detail.get("limiter", ""),
                "default" if row.tuning == default else "",
            )
        )
    columns = (*names, "cold us", "x default", "registers", "occupancy", "limited by", "")
    console.table(columns, cells, right=columns[:-2])
    if len(right) > SHOWN:
        print(f"... and {len(right) - SHOWN} more (--json shows all).")
    for verdict, words in (("illegal", "illegal, not launched"), ("failed", "failed")):
        reasons: dict[str, int] = {}
        for row in swept.rows:
            if row.verdict == verdict:
                reasons[row.reason] = reasons.get(row.reason, 0) + 1
        for reason, count in reasons.items():
            print(f"{count} {words}: {reason}")
    if swept.resumed:
        print(f"{swept.resumed} measured before.")
    print()
    for finding in told:
        print(finding.sentence)
    if won is not None:
        best, own = won
        named = " ".join(f"{n}={v}" for n, v in best.tuning.items())
        ratio = best.metrics.get("ratio") if best is not own else None
        gain = f", {1 / ratio:.2f}x the default" if ratio else ""
        print(f"\nTuned: {named}{gain}; bench and the model use it from now on (`rung tunings`).")


def _course(
    how: Measure,
    shape: str | None,
    dtype: str | None,
    seconds: float,
    again: bool,
    output: Path | None,
    json: bool,
) -> None:
    from rung.sweep import course, summary
    from rung.sweep import sweep as lab

    swept = []
    for column in course.TABLE:
        subject = subject_of(column.rung, None, shape or course.SHAPE, dtype)
        wanted = lab.configurations(subject.rung, only={column.tunable: sorted(column.theirs_ns)})
        swept.append(_sweep(subject, wanted, how, output, seconds, False, False, again))
    told = [f for s in swept for f in summary.findings(s)]
    if json:
        console.print_json(
            {
                "rows": [row.as_json() for s in swept for row in s.rows],
                "findings": [f.as_json() for f in told],
                "theirs_ns": {c.title: c.theirs_ns for c in course.TABLE},
            }
        )
        return
    unit = "us, cold" if how.timed else "theoretical occupancy; no time was taken"
    edges = course.TABLE[-1]
    for columns, title in ((course.TABLE[:-1], "threads"), ((edges,), "edge of the cube")):
        here = [s for c, s in zip(course.TABLE, swept, strict=True) if c in columns]
        print(f"\n{unit}; in brackets the course's A40, us in all")
        rows = [
            (value, *(_course_cell(s, c, value) for s, c in zip(here, columns, strict=True)))
            for value in sorted(columns[0].theirs_ns)
        ]
        names = (title, *(c.title for c in columns))
        console.table(names, rows, right=names)
    print()
    for s in swept:
        for finding in summary.findings(s):
            print(f"{s.subject.rung.operation.name}: {finding.sentence}")


def _course_cell(swept: Sweep, column: Any, value: int) -> str:
    row = next(r for r in swept.rows if r.tuning[column.tunable] == value)
    theirs = f"({column.theirs_ns[value] / 1e3:.0f})"
    if row.verdict != "ok":
        return f"{row.verdict} {theirs}"
    if row.cold_us is not None:
        return f"{row.cold_us:.2f} {theirs}"
    return f"{_occupancy(row) or 'right'} {theirs}"


def _occupancy(row: Row) -> str:
    return f"{row.metrics['occupancy']:.0%}" if "occupancy" in row.metrics else ""
