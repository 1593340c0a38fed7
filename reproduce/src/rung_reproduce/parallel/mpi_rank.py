"""The program of each rank of a launched job: `python -m rung_reproduce.parallel.mpi_rank job.json`."""

from __future__ import annotations

import json
import os
import sys
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

import numpy as np

from rung.errors import RungError
from rung_reproduce.parallel import data, mpi

METHODS = ("ring", "heads")


@dataclass(frozen=True)
class Case:
    """One attention to compute; `method` is a ring over the sequence, or a split of the heads."""

    n: int
    causal: bool = True
    method: str = "ring"
    placement: str = "zigzag"


@dataclass(frozen=True)
class Job:
    """The job's description for the ranks."""

    cases: list[Case]
    d: int = 64
    heads: int = 1
    seed: int = 0
    data: str | None = None
    threads: int = 1
    repeats: int = 1
    patience: float = 60.0
    output_folder: str | None = None  # a folder for the outputs
    results: str | None = None  # a file for the result of `run`
    check: bool = True

    def write(self, path: Path) -> None:
        path.write_text(json.dumps(asdict(self)), encoding="utf-8")


def read(path: Path) -> Job:
    fields = json.loads(path.read_text(encoding="utf-8"))
    return Job(**{**fields, "cases": [Case(**c) for c in fields["cases"]]})


def run(job: Job, ranks: mpi.Ranks) -> list[dict[str, Any]]:
    """Every case, the fastest of its repeats; one row per case at rank 0, None elsewhere."""
    found: list[tuple[Case, Any, Any, mpi.Timed]] = []
    for case in job.cases:
        qkv = _data(job, case) if ranks.rank == 0 else None
        best: tuple[Any, Any, mpi.Timed] | None = None
        for _ in range(job.repeats):
            out, lse, timed = _compute(job, case, qkv, ranks)
            if timed is not None and (best is None or timed.total < best[2].total):
                best = out, lse, timed
        if best is not None:
            found.append((case, *best))
    return [_row(job, case, out, lse, timed, ranks.size) for case, out, lse, timed in found]


def _data(job: Job, case: Case) -> Any:
    return data.load_or_make(Path(job.data) if job.data else None, case.n, job.d, job.heads, job.seed)


def _compute(job: Job, case: Case, qkv: Any, ranks: mpi.Ranks) -> tuple[Any, Any, mpi.Timed | None]:
    shape = (job.heads, case.n, job.d)
    if case.method == "ring":
        return mpi.sequence_split(ranks, qkv, shape, causal=case.causal, kind=case.placement, threads=job.threads)
    if case.method == "heads":
        return mpi.head_split(ranks, qkv, shape, causal=case.causal, threads=job.threads)
    raise RungError(f"there is no method {case.method!r} to split attention; there are {', '.join(METHODS)}.")


def _row(job: Job, case: Case, out: Any, lse: Any, timed: mpi.Timed, ranks: int) -> dict[str, Any]:
    if job.output_folder:
        name = f"{case.method}_n{case.n}_{'causal' if case.causal else 'full'}_{case.placement}_r{ranks}.npz"
        np.savez(Path(job.output_folder) / name, out=out, lse=lse)
    row = {**asdict(case), "ranks": ranks, "threads": job.threads, **asdict(timed)}
    if job.check:
        right = data.attention(_data(job, case), causal=case.causal)[0]
        row["error"] = data.error(out, right)
        if not row["error"] <= data.CAP:
            raise RungError(
                f"attention of {case.n} rows over {ranks} ranks ({case.method}) is off by {row['error']:.1e} "
                f"of its norm, but only {data.CAP:.0e} is allowed."
            )
    return row


def main() -> None:
    comm = mpi.engine().COMM_WORLD
    with mpi.report_once(comm):
        expected = int(os.environ.get("RUNG_RANKS", comm.size))
        if comm.size != expected:
            raise RungError(
                f"mpiexec started {expected} processes, but each sees {comm.size}: mpiexec and the MPI library of "
                "mpi4py belong to different installations."
            )
        job = read(Path(sys.argv[1]))
        rows = run(job, mpi.Ranks(comm, job.patience))
        if comm.rank == 0 and job.results:
            Path(job.results).write_text(json.dumps(rows), encoding="utf-8")


if __name__ == "__main__":
    main()
