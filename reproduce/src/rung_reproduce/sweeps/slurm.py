"""A sweep distributed over a Slurm cluster: one array, with a shard of the configurations for each task. A task appends
to its own file and, when restarted, resumes where that file ends; so a task that failed or was requeued loses at most
its current measurement. The folder holds all state: the same command, given again, submits only what is still missing.
"""

from __future__ import annotations

import os
import re
import shlex
import shutil
import subprocess
import sys
import time
from collections.abc import Callable, Sequence
from contextlib import AbstractContextManager
from dataclasses import dataclass
from pathlib import Path
from typing import TypeVar

from rung.errors import RungError
from rung.results import store
from rung.results.row import Row
from rung.sweep.sweep import Place, merge, place_of

T = TypeVar("T")

POLL = 2.0  # seconds
MOST_FAILED_POLLS = 30  # unanswered polls of the controller before giving up


@dataclass(frozen=True)
class Request:
    """The resources of each task."""

    tasks: int = 4
    gpus: int = 1
    exclusive: bool = False
    partition: str | None = None
    account: str | None = None
    time: str | None = None
    options: tuple[str, ...] = ()  # further options for sbatch


def script(words: Sequence[str], request: Request, folder: Path, shards: Sequence[int]) -> str:
    """The batch script: `words` is the sweep's command line without the Slurm options."""
    lines = [
        f"--array={_ranges(shards)}",
        "--job-name=rung-sweep",
        f"--output={folder}/task-%a.log",
        "--open-mode=append",
        "--requeue",
        "--ntasks=1",
        f"--gres=gpu:{request.gpus}" if request.gpus else "",
        "--exclusive" if request.exclusive else "",
        f"--partition={request.partition}" if request.partition else "",
        f"--account={request.account}" if request.account else "",
        f"--time={request.time}" if request.time else "",
        *request.options,
    ]
    header = "\n".join(f"#SBATCH {line}" for line in lines if line)
    exports = "".join(
        f"export {name}={shlex.quote(os.environ[name])}\n"
        for name in ("PYTHONPATH", "RUNG_CACHE", "RUNG_TUNINGS")
        if name in os.environ
    )
    command = " ".join(shlex.quote(w) for w in (sys.executable, "-m", "rung", *words))
    shard = f'--shard "$SLURM_ARRAY_TASK_ID/{request.tasks}"'
    output = f'--output {shlex.quote(str(folder))}/shard-"$SLURM_ARRAY_TASK_ID".jsonl'
    return (
        f"#!/bin/bash\n{header}\n\n"
        f"cd {shlex.quote(str(Path.cwd()))}\n{exports}"
        f"exec {command} \\\n  {shard} \\\n  {output}\n"
    )


def _ranges(numbers: Sequence[int]) -> str:
    """0-3,7 for 0 1 2 3 7."""
    parts: list[list[int]] = []
    for number in sorted(numbers):
        if parts and number == parts[-1][1] + 1:
            parts[-1][1] = number
        else:
            parts.append([number, number])
    return ",".join(str(a) if a == b else f"{a}-{b}" for a, b in parts)


def shard_of(items: Sequence[T], index: int, of: int) -> list[T]:
    """Every `of`-th configuration, so that adjacent slow ones are in different tasks."""
    return list(items[index::of])


def rows_of(folder: Path, kind: str) -> list[Row]:
    """The rows of one kind that the tasks wrote."""
    return [r for path in sorted(folder.glob("shard-*.jsonl")) for r in store.read(path) if r.kind == kind]


def gathered(folder: Path, places: Sequence[Place]) -> list[Row]:
    """The rows of all shards, each configuration once."""
    return merge(rows_of(folder, "sweep"), places)


def missing(folder: Path, places: Sequence[Place], tasks: int) -> list[int]:
    """The shards that have not measured all of their configurations."""
    measured = {place_of(row) for row in gathered(folder, places)}
    return [i for i in range(tasks) if any(at not in measured for at in shard_of(places, i, tasks))]


def submit(path: Path) -> str:
    """Submit the script with sbatch; returns the job's number."""
    if not shutil.which("sbatch"):
        raise RungError(
            "sbatch was not found on this machine: run this on a login node of a Slurm cluster, or see the "
            "script with --dry-run."
        )
    done = subprocess.run(["sbatch", "--parsable", str(path)], capture_output=True, text=True, check=False)
    job = done.stdout.strip().partition(";")[0]
    if done.returncode or not job.isdigit():
        output = (done.stderr.strip() or done.stdout.strip() or "no reason given").splitlines()
        reason = re.sub(r"^sbatch: (error: )?", "", output[-1]).rstrip(".")
        raise RungError(f"sbatch refused {path}: {reason}.")
    return job


def unfinished(job: str) -> set[str] | None:
    """The states of the job's waiting and running tasks; None if the controller does not respond."""
    command = ["squeue", "--noheader", "--array", f"--jobs={job}", "--format=%K %T"]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    if done.returncode:
        return set() if "Invalid job id" in done.stderr else None
    ended = ("COMPLETED", "FAILED", "CANCELLED", "TIMEOUT", "NODE_FAIL", "OUT_OF_MEMORY", "BOOT_FAIL")
    return {line.strip() for line in done.stdout.splitlines() if line.strip() and not line.endswith(ended)}


def wait(job: str, report: Callable[[set[str]], None], poll: float = POLL) -> None:
    """Waits until no task of the job is pending or running."""
    failures = 0
    while True:
        states = unfinished(job)
        if states is None:
            failures += 1
            if failures > MOST_FAILED_POLLS:
                raise RungError(
                    f"squeue has not responded for a minute; job {job} may still run, and the same command "
                    "collects it later."
                )
        else:
            failures = 0
            report(states)
            if not states:
                return
        time.sleep(poll)


def spread(
    words: Sequence[str],
    request: Request,
    folder: Path,
    places: Sequence[Place],
    *,
    retries: int = 2,
    waiting: bool = True,
    progress: Callable[[str, int, int], None] = lambda text, done, total: None,
) -> list[Row]:
    """Submit what is missing, wait, and submit again what failed; returns all rows."""
    try:
        folder.mkdir(parents=True, exist_ok=True)
    except OSError as error:
        raise RungError(f"{folder} cannot be created: {error.strerror}; --folder names another place.") from None
    for attempt in range(retries + 1):
        shards = missing(folder, places, request.tasks)
        if not shards:
            break
        path = folder / f"job-{attempt}.sh"
        path.write_text(script(words, request, folder, shards))
        job = submit(path)
        progress(f"job {job}, tasks {_ranges(shards)}", len(gathered(folder, places)), len(places))
        if not waiting:
            return gathered(folder, places)

        def report(states: set[str], job: str = job) -> None:
            running = sum("RUNNING" in s for s in states)
            done = len(gathered(folder, places))
            progress(f"job {job}: {running} running, {len(states) - running} waiting", done, len(places))

        wait(job, report)
    absent = missing(folder, places, request.tasks)
    if absent:
        log = folder / f"task-{absent[0]}.log"
        last = log.read_text(errors="replace").strip().splitlines()[-1:] if log.exists() else []
        tail = f"; {log} ends with {last[0]!r}" if last else ""
        raise RungError(
            f"tasks {_ranges(absent)} did not finish in {retries + 1} attempts{tail}; what was measured is in "
            f"{folder}, and the same command goes on from there."
        )
    return gathered(folder, places)


Report = Callable[[str, int, int | None], None]
Shown = Callable[[str], AbstractContextManager[Report]]
Note = Callable[[str], None]


@dataclass(frozen=True)
class Cluster:
    """How a sweep is distributed."""

    request: Request
    folder: Path | None
    dry_run: bool
    waiting: bool
    retries: int
    output: Path | None

    def rows(self, words: list[str], places: list[Place], name: str, show: Shown, note: Note) -> list[Row] | None:
        """The rows of all tasks, kept in the store; None if the array was only shown, or is not done."""
        folder = (self.folder or Path(f"rung-sweep-{name}")).resolve()
        if self.dry_run:
            print(script(words, self.request, folder, range(self.request.tasks)), end="")
            return None
        with show(name) as report:
            rows = spread(
                words, self.request, folder, places, retries=self.retries, waiting=self.waiting, progress=report
            )
        if len(rows) < len(places):
            note(f"rung: {len(rows)} of {len(places)} rows so far; the same command gathers the rest.")
            return None
        measured = {r.key for r in store.read(self.output) if r.kind in ("sweep", "profile")}
        for row in (*rows, *rows_of(folder, "profile")):
            if row.key not in measured:
                store.append(row, self.output)
        gpus = {r.gpu for r in rows}
        if any(r.cold_us is not None for r in rows) and len(gpus) > 1:
            note(f"rung: the tasks ran on different GPUs ({', '.join(map(str, gpus))}); see --partition.")
        return rows
