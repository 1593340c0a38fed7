"""`rung course`: the course's sweeps of block sizes, and any sweep over a Slurm cluster."""

from __future__ import annotations

import os
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, TypeVar

import typer

from gpuless.base.files import shown, whole
from rung.cli import console, options
from rung.cli.sweep import Settings, conclude, profile_each, run_sweep, tunings_of
from rung.errors import RungError

if TYPE_CHECKING:
    from rung.rungs.base import Subject
    from rung.sweep.sweep import Tuning
    from rung_reproduce.sweeps.slurm import Cluster

T = TypeVar("T")


def course(
    rung: Annotated[
        str | None,
        typer.Argument(metavar="[OP/RUNG]", help="With --slurm: this rung (default: the course's table)."),
    ] = None,
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
    measure: Annotated[
        str | None, typer.Option(help="time, compiler or emulator (default: time on a GPU, else compiler).")
    ] = None,
    arch: Annotated[str | None, typer.Option(help="For --measure compiler: sm_75 ... sm_120.")] = None,
    seconds: Annotated[float, typer.Option(min=0.01, help="Time cap for each configuration.")] = 0.2,
    again: Annotated[bool, typer.Option("--again", help="Measure again what was measured before.")] = False,
    profile: Annotated[
        bool, typer.Option("--profile", help="Profile each with Nsight Compute too: achieved occupancy, stalls.")
    ] = False,
    tuples: Annotated[
        list[str] | None,
        typer.Option(help="The course's config_sweep: six block sizes, as 32,128,5,128,128,32 (repeatable)."),
    ] = None,
    output: options.Output = None,
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
    """The course's sweeps of block sizes; with --slurm any rung's sweep over a cluster.

    Without a rung: the kernels of the course's table, each as `rung sweep` does it; with --tuples the whole model at
    six block sizes. A sweep over Slurm resumes: the same command submits only what is missing.

    Examples: rung course · rung course --tuples 32,128,5,128,128,32 · rung course layernorm/9 --slurm --tasks 8
    """
    from rung.rungs.subjects import subject_of
    from rung.sweep.backends import measure_named

    cluster = None
    if slurm or dry_run:
        from rung_reproduce.sweeps.slurm import Cluster, Request

        request = Request(tasks, gpus, exclusive, partition, account, time, tuple(sbatch or ()))
        cluster = Cluster(request, folder, dry_run, not no_wait, retries, output)
    if tuples:
        if rung or file:
            raise RungError("--tuples sweeps the whole model; leave out OP/RUNG and FILE.")
        _tuples(tuples, folder or Path("test_sweep"), cluster, json)
        return
    settings = Settings(measure, arch, seconds, again, profile, output, json)
    if rung is None:
        _course(cluster, settings, shape, dtype, shard)
        return
    subject = subject_of(rung, file, shape, dtype)
    if cluster is not None:
        tunings = tunings_of(subject, tune, random, seed, None)
        words = _words(rung, file, tune, random, seed) + _options(settings, _shape_option(subject), subject.dtype.name)
        _spread(subject, words, cluster, tunings, json)
        return
    if shard is None:
        raise RungError(f"one rung is swept here by `rung sweep {rung}`; --slurm spreads it over a cluster.")
    how = measure_named(measure, arch)
    if one_by_one:
        how.batch = 1
    tunings = _shard(tunings_of(subject, tune, random, seed, how), shard)
    swept = run_sweep(subject, tunings, how, settings)
    if profile:
        profile_each([swept], output)
    conclude(swept, json, store=False)


def _options(settings: Settings, shape: str | None, dtype: str | None) -> list[str]:
    """The options of a task of an array."""
    given = (("--shape", shape), ("--dtype", dtype), ("--measure", settings.measure), ("--arch", settings.arch))
    words = [part for name, value in given if value for part in (name, value)]
    return [*words, "--seconds", str(settings.seconds), *(["--profile"] if settings.profile else [])]


def _shard(items: list[T], word: str) -> list[T]:
    from rung_reproduce.sweeps import slurm

    index, of = (whole(text) for text in word.partition("/")[::2])
    if index is None or of is None or not 0 <= index < of:
        raise RungError(f"--shard {shown(word)} is not INDEX/COUNT, as in 0/4.")
    return slurm.shard_of(items, index, of)


def _words(spec: str, file: Path | None, tune: list[str] | None, sample: int | None, seed: int) -> list[str]:
    """The part of a task's command line that concerns one rung."""
    words = ["course", spec, *([str(file.resolve())] if file else [])]
    words += [part for word in tune or [] for part in ("--tune", word)]
    return words + (["--random", str(sample), "--seed", str(seed)] if sample else [])


def _shape_option(subject: Subject) -> str | None:
    return subject.shape if "=" in subject.shape or subject.shape in subject.rung.operation.shapes else None


def _spread(
    subject: Subject, words: list[str], cluster: Cluster, tunings: list[Tuning], json: bool
) -> None:
    from rung.rungs import identity
    from rung.sweep.sweep import Sweep, place

    name = f"{subject.rung.full_name.replace('/', '-')}-{subject.dtype.name}-{identity.text(subject.rung)}"
    rows = cluster.rows(words, [place(subject, tuning) for tuning in tunings], name, console.progress, console.note)
    if rows is not None:
        timed = any(r.cold_us is not None for r in rows)
        swept = Sweep(subject, rows[0].options["measure"], timed, rows)
        conclude(swept, json, store=len({r.gpu for r in rows}) == 1)


def _tuples(tuples: list[str], folder: Path, cluster: Cluster | None, json: bool) -> None:
    """A job for each tuple, here or over Slurm."""
    import torch

    from rung.models import family
    from rung.models import weights as model_weights
    from rung_reproduce.sweeps import tuples as config_sweep

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
    cluster: Cluster | None, settings: Settings, shape: str | None, dtype: str | None, shard: str | None
) -> None:
    """The course's table: here, as one task of an array, or as the array."""
    from rung.results import store
    from rung.rungs.subjects import subject_of
    from rung.sweep.sweep import Sweep, place
    from rung_reproduce.sweeps import course
    from rung_reproduce.sweeps import tables as sweep_tables

    subjects = [subject_of(c.rung, None, shape or c.shape, dtype or c.dtype) for c in course.TABLE]
    every = course.configurations(subjects)
    if cluster is not None:
        words = ["course", *_options(settings, shape, dtype)]
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

        how = measure_named(settings.measure, settings.arch)
        chosen = _shard(every, shard) if shard is not None else every
        swept = []
        for column, subject in zip(course.TABLE, subjects, strict=True):
            tunings = [tuning for c, _, tuning in chosen if c is column]
            if tunings:
                swept.append(run_sweep(subject, tunings, how, settings))
        if settings.profile:
            profile_each(swept, settings.output)
    if shard is None:
        profiles = [r for r in store.read(settings.output) if r.kind == "profile"]
        if settings.json:
            console.print_json(sweep_tables.course_as_json(swept, profiles))
        else:
            console.show(sweep_tables.of_course(swept, profiles))
