"""`rung sweep`: which launch parameters are best for a rung here?"""

from __future__ import annotations

import os
import sys
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, TypeVar

import typer

from gpuless.base.files import shown, whole
from rung.cli import console, options
from rung.errors import RungError

if TYPE_CHECKING:
    from rung.rungs.base import Subject
    from rung.sweep.slurm import Cluster
    from rung.sweep.sweep import Measure, Sweep, Tuning

T = TypeVar("T")


def sweep(
    rung: Annotated[str | None, typer.Argument(metavar="OP/RUNG", help="The rung to sweep.")] = None,
    file: options.File = None,
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
    course: Annotated[bool, typer.Option("--course", help="The course project's table of block sizes, here.")] = False,
    tuples: Annotated[
        list[str] | None,
        typer.Option(help="The course's config_sweep: six block sizes, as 32,128,5,128,128,32 (repeatable)."),
    ] = None,
    output: options.Output = None,
    plot: options.Svg = None,
    json: options.Json = False,
    slurm: Annotated[bool, typer.Option("--slurm", help="Distribute it over a Slurm cluster.")] = False,
    dry_run: Annotated[bool, typer.Option("--dry-run", help="With --slurm: print the script, submit nothing.")] = False,
    tasks: Annotated[int, typer.Option(min=1, help="With --slurm: tasks of the array.")] = 4,
    gpus: Annotated[int, typer.Option(min=0, help="With --slurm: GPUs for each task.")] = 1,
    exclusive: Annotated[bool, typer.Option("--exclusive", help="With --slurm: whole nodes.")] = False,
    partition: Annotated[str | None, typer.Option(help="With --slurm.")] = None,
    account: Annotated[str | None, typer.Option(help="With --slurm.")] = None,
    time: Annotated[str | None, typer.Option(help="With --slurm: time limit of a task, as 00:30:00.")] = None,
    sbatch: Annotated[
        list[str] | None, typer.Option(help="With --slurm: one more option for sbatch (repeatable).")
    ] = None,
    folder: Annotated[Path | None, typer.Option(help="With --slurm: folder for scripts, logs and rows.")] = None,
    no_wait: Annotated[
        bool,
        typer.Option("--no-wait", help="With --slurm: submit and return; the same command collects the rows later."),
    ] = False,
    retries: Annotated[int, typer.Option(min=0, help="With --slurm: how often failed tasks are submitted again.")] = 2,
    shard: Annotated[str | None, typer.Option(hidden=True)] = None,
    one_by_one: Annotated[bool, typer.Option("--one-by-one", hidden=True)] = False,
) -> None:
    """Which launch parameters are best for a rung here? The winner is what bench and the model then use.

    Every combination of the header's tunables that is legal at the shape, checked and timed. A sweep that was stopped
    resumes. Without a GPU it reports registers and occupancy, and no times.

    Examples: rung sweep layernorm/9 · rung sweep matmul/5 --shape b8t1024 --halving · rung sweep --course
    """
    from rung.rungs.subjects import subject_of
    from rung.sweep.backends import measure_named

    if course and (rung or file):
        raise RungError("--course sweeps its own rungs; leave out OP/RUNG and FILE.")
    if rung is None and not course and not tuples:
        raise RungError("name a rung, as in `rung sweep layernorm/9`, or give --course.")
    if slurm and halving:
        raise RungError("--halving compares all configurations in one process; leave it out with --slurm.")
    cluster = None
    if slurm or dry_run:
        from rung.sweep.slurm import Cluster, Request

        request = Request(tasks, gpus, exclusive, partition, account, time, tuple(sbatch or ()))
        cluster = Cluster(request, folder, dry_run, not no_wait, retries, output)
    if tuples:
        if rung or file or course:
            raise RungError("--tuples sweeps the whole model; leave out OP/RUNG, FILE and --course.")
        _tuples(tuples, folder or Path("test_sweep"), cluster, json)
        return
    asked = _Asked(measure, arch, seconds, again, profile, output, json)
    if course:
        _course(cluster, asked, shape, dtype, shard)
        return
    assert rung is not None
    subject = subject_of(rung, file, shape, dtype)
    if cluster is not None:
        tunings = _tunings(subject, tune, random, seed, None)
        words = _words(rung, file, tune, random, seed) + asked.words(_shape_option(subject), subject.dtype.name)
        _spread(subject, words, cluster, tunings, plot, json)
        return
    how = measure_named(measure, arch)
    if one_by_one:
        how.batch = 1
    tunings = _tunings(subject, tune, random, seed, how)
    if shard is not None:
        tunings = _shard(tunings, shard)
    swept = _sweep(subject, tunings, how, asked, halving=halving, finals=shard is None)
    if profile:
        _profile([swept], output)
    _conclude(swept, plot, json, store=shard is None)


@dataclass(frozen=True)
class _Asked:
    """What holds for every configuration of a sweep."""

    measure: str | None
    arch: str | None
    seconds: float
    again: bool
    profile: bool
    output: Path | None
    json: bool

    def words(self, shape: str | None, dtype: str | None) -> list[str]:
        """The options of a task of an array."""
        given = (("--shape", shape), ("--dtype", dtype), ("--measure", self.measure), ("--arch", self.arch))
        words = [part for name, value in given if value for part in (name, value)]
        return [*words, "--seconds", str(self.seconds), *(["--profile"] if self.profile else [])]


def _tunings(
    subject: Subject, tune: list[str] | None, sample: int | None, seed: int, how: Measure | None
) -> list[Tuning]:
    from rung.sweep import sweep as sweeps

    def legal(tuning: Tuning) -> bool:
        # If the sweep runs on another machine, only the rung's own rules are known here.
        if how is None:
            return subject.rung.refusal(subject.values, subject.dtype, tuning) is None
        return sweeps.illegal(subject, tuning, how.device, how.arch) is None

    return sweeps.configurations(subject.rung, only=options.parse_tunings(tune), sample=sample, seed=seed, legal=legal)


def _shard(items: list[T], word: str) -> list[T]:
    from rung.sweep import slurm

    index, of = (whole(text) for text in word.partition("/")[::2])
    if index is None or of is None or not 0 <= index < of:
        raise RungError(f"--shard {shown(word)} is not INDEX/COUNT, as in 0/4.")
    return slurm.shard_of(items, index, of)


def _sweep(
    subject: Subject, tunings: list[Tuning], how: Measure, asked: _Asked, *, halving: bool = False, finals: bool = False
) -> Sweep:
    from rung.sweep import sweep as sweeps

    if not how.timed:
        what = "the compiler's report" if how.name == "compiler" else "right or wrong on the emulator"
        console.note(f"rung: no time is taken; each configuration is judged by {what}.")
    with console.progress(subject.rung.full_name) as report:
        try:
            return sweeps.sweep(
                subject, tunings, how, store=asked.output, effort=asked.seconds, halving=halving, finals=finals,
                again=asked.again, progress=lambda done, total, text: report(text, done, total),
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


def _words(spec: str, file: Path | None, tune: list[str] | None, sample: int | None, seed: int) -> list[str]:
    """The part of a task's command line that concerns one rung."""
    words = ["sweep", spec, *([str(file.resolve())] if file else [])]
    words += [part for word in tune or [] for part in ("--tune", word)]
    return words + (["--random", str(sample), "--seed", str(seed)] if sample else [])


def _shape_option(subject: Subject) -> str | None:
    return subject.shape if "=" in subject.shape or subject.shape in subject.rung.operation.shapes else None


def _spread(
    subject: Subject, words: list[str], cluster: Cluster, tunings: list[Tuning], plot: Path | None, json: bool
) -> None:
    from rung.rungs import identity
    from rung.sweep.sweep import Sweep, place

    name = f"{subject.rung.full_name.replace('/', '-')}-{subject.dtype.name}-{identity.text(subject.rung)}"
    rows = cluster.rows(words, [place(subject, tuning) for tuning in tunings], name, console.progress, console.note)
    if rows is not None:
        timed = any(r.cold_us is not None for r in rows)
        swept = Sweep(subject, rows[0].options["measure"], timed, rows)
        _conclude(swept, plot, json, store=len({r.gpu for r in rows}) == 1)


def _profile(swept: Sequence[Sweep], store: Path | None) -> None:
    """Nsight Compute's counters of each configuration that worked, as rows of their own."""
    from rung.profile import atlas

    chosen = [(s.subject, row.tuning) for s in swept for row in s.rows if row.verdict == "ok"]
    left = atlas.missing(chosen, store)
    for row in atlas.collect(left, float("inf"), lambda text: console.note(f"  {text}"), store):
        if row.verdict != "ok":
            console.note(f"rung: {row.what} {row.tuning}: {row.reason}")


def _conclude(swept: Sweep, plot: Path | None, json: bool, *, store: bool) -> None:
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
    if plot is not None:
        from rung.show.report import sweeps

        sweeps.write(swept, findings, plot)
    if json:
        console.print_json(sweep_tables.as_json(swept, findings, won))
    else:
        console.show(sweep_tables.of_rung(swept, findings, won))
    if not any(r.verdict == "ok" for r in swept.rows):
        raise typer.Exit(1)


def _tuples(tuples: list[str], folder: Path, cluster: Cluster | None, json: bool) -> None:
    """A job for each tuple, here or over Slurm."""
    import torch

    from rung.models import family
    from rung.models import weights as model_weights
    from rung.reproduce import tuples as config_sweep

    jobs = [config_sweep.parsed(text) for text in tuples]
    if cluster is not None:
        exports = {n: os.environ[n] for n in ("PYTHONPATH", "RUNG_CACHE") if n in os.environ}
        if cluster.dry_run:
            for job in jobs:
                print(config_sweep.script(job, folder.resolve() / job.name, cluster.request, exports))
            return
        numbers = config_sweep.submitted(jobs, folder.resolve(), cluster.request, exports)
        console.print_json(numbers) if json else console.table(("tuple", "job"), list(numbers.items()))
        return
    on_gpu = torch.cuda.is_available()
    config = family.config_of("gpt2")
    weights = model_weights.weights_of(config, "cuda" if on_gpu else "cpu")
    found = config_sweep.run(config, weights, jobs, folder, "cuda" if on_gpu else "emulator")
    if json:
        console.print_json(found)
    else:
        lines = [(one["tuple"], f"{one['forward_us']:.0f}" if "forward_us" in one else "",
                  one.get("reason", one["verdict"])) for one in found]  # fmt: skip
        console.table(("tuple", "kernels of a forward pass, us", ""), lines)
    if any(one["verdict"] != "ok" for one in found):
        raise typer.Exit(1)


def _course(
    cluster: Cluster | None, asked: _Asked, shape: str | None, dtype: str | None, shard: str | None
) -> None:
    """The course's table: here, as one task of an array, or as the array."""
    from rung.results import store
    from rung.rungs.subjects import subject_of
    from rung.show import sweep_tables
    from rung.sweep import course
    from rung.sweep.sweep import Sweep, place

    subjects = [subject_of(c.rung, None, shape or c.shape, dtype or c.dtype) for c in course.TABLE]
    every = course.configurations(subjects)
    if cluster is not None:
        words = ["sweep", "--course", *asked.words(shape, dtype)]
        places = [place(subject, tuning) for _, subject, tuning in every]
        found = cluster.rows(words, places, "course", console.progress, console.note)
        if found is None:
            return
        swept, at = [], iter(found)
        for column, subject in zip(course.TABLE, subjects, strict=True):
            rows = [next(at) for _ in column.sizes]
            swept.append(Sweep(subject, rows[0].options["measure"], any(r.cold_us for r in rows), rows))
    else:
        from rung.sweep.backends import measure_named

        how = measure_named(asked.measure, asked.arch)
        chosen = _shard(every, shard) if shard is not None else every
        swept = []
        for column, subject in zip(course.TABLE, subjects, strict=True):
            tunings = [tuning for c, _, tuning in chosen if c is column]
            if tunings:
                swept.append(_sweep(subject, tunings, how, asked))
        if asked.profile:
            _profile(swept, asked.output)
    if shard is None:
        profiles = [r for r in store.read(asked.output) if r.kind == "profile"]
        if asked.json:
            console.print_json(sweep_tables.course_as_json(swept, profiles))
        else:
            console.show(sweep_tables.of_course(swept, profiles))
