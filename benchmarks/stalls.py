"""Where warps wait, predicted and sampled.

On a GPU, under Nsight Compute:   python3 benchmarks/stalls.py sample FOLDER [LADDER ...]
Anywhere, on what it left there:  python3 benchmarks/stalls.py compare FOLDER [-o FILE]

Every CUDA rung is launched once at the shape that most of its ladder were timed at; Nsight samples the warps of each
instruction. A prediction gives the same figures; both are added up by line of the source.
"""

from __future__ import annotations

import argparse
import csv
import gzip
import io
import json
import subprocess
import sys
from pathlib import Path

import counter_tables
import prediction_tables
from gpuless import timing
from gpuless.counts.counters import places
from rung.dtypes import DTYPES
from rung.errors import RungError
from rung.profile import ncu, prediction
from rung.results import current, machine, store
from rung.results.row import Row
from rung.rungs import catalogue, identity
from rung.rungs.base import Subject

AT_ONCE = 25  # rungs of one process


def tasks(gpu: str, ladders: list[str]) -> list[dict[str, object]]:
    figures = current.by_gpu(store.published())[gpu]
    found: list[dict[str, object]] = []
    for name in ladders or sorted(catalogue.operations()):
        for figure in counter_tables.headline(figures, name):
            row, rung = figure.row, catalogue.find(figure.row.what)
            if rung.kind == "cuda":
                values = {k: v for k, v in row.values.items() if k not in rung.operation.derived}
                found.append(
                    dict(rung=row.what, file=None, dtype=row.dtype, shape=row.shape, values=values, tuning=row.tuning)
                )
    return found


def sample(folder: Path, gpu: str, ladders: list[str]) -> None:
    folder.mkdir(parents=True, exist_ok=True)
    wanted = tasks(gpu, ladders)
    wanted.sort(key=lambda task: prediction_tables.half(str(task["rung"]).partition("/")[0]) == "fitted")
    for first in range(0, len(wanted), AT_ONCE):
        some, name = wanted[first : first + AT_ONCE], folder / f"part{first // AT_ONCE}"
        own = ["--section", "SourceCounters", "--metrics", "gpc__cycles_elapsed.max,smsp__inst_executed.sum"]
        program = [sys.executable, "-m", "rung.profile.target", json.dumps(some)]
        command = [
            ncu.find(), "--clock-control", "none", "--profile-from-start", "off", "--target-processes", "all", *own,
            "--export", str(name), "--force-overwrite", *program,
        ]  # fmt: skip
        done = subprocess.run(command, capture_output=True, text=True)
        print(name.name, done.returncode, done.stderr.strip()[-300:], flush=True)
        name.with_suffix(".json").write_text(json.dumps(some))
        for page in ("source", "raw"):
            text = subprocess.run(
                [ncu.find(), "--import", f"{name}.ncu-rep", "--page", page, "--csv", "--print-units", "base"],
                capture_output=True, text=True,
            ).stdout  # fmt: skip
            name.with_suffix(f".{page}.csv").write_text(text)
        name.with_suffix(".ncu-rep").unlink(missing_ok=True)


MARKER = "spin_kernel"
OTHER = "other"  # reasons that the model does not know
NSIGHT = {
    "stall_barrier": "barrier", "stall_branch_resolving": "branch_resolving", "stall_gmma": "gmma",
    "stall_lg": "lg_throttle", "stall_long_sb": "long_scoreboard", "stall_math": "math_pipe_throttle",
    "stall_membar": "membar", "stall_mio": "mio_throttle", "stall_not_selected": "not_selected",
    "stall_selected": "selected", "stall_short_sb": "short_scoreboard", "stall_wait": "wait",
}  # fmt: skip
Samples = list[dict[str, float]]  # of each instruction, by reason


def sampled(text: str) -> list[list[tuple[str, Samples]]]:
    """The launches of each task, between the markers, with their kernels' names."""
    found: list[list[tuple[str, Samples]]] = []
    heads: list[str] = []
    for row in csv.reader(io.StringIO(text)):
        if row and row[0] == "Kernel Name":
            if MARKER in row[1]:
                found.append([])
            else:
                found[-1].append((row[1], []))
        elif row and row[0] == "Address":
            heads = row
        elif row and found and found[-1]:
            of = dict.fromkeys((*timing.STALLS, OTHER), 0.0)
            for head, cell in zip(heads, row, strict=False):
                if head.startswith("stall_") and "(" not in head and cell:
                    of[NSIGHT.get(head, OTHER)] += float(cell)
            found[-1][-1][1].append(of)
    return found


def by_line(places_of: list[str], samples: Samples) -> dict[str, float]:
    """Shares of a kernel's stalls, by line and reason."""
    found: dict[str, float] = {}
    whole = sum(n for of in samples for reason, n in of.items() if reason != "selected") or 1.0
    for place, of in zip(places_of, samples, strict=True):
        for reason, n in of.items():
            if n and reason != "selected":
                found[f"{place} {reason}"] = found.get(f"{place} {reason}", 0.0) + n / whole
    return dict(sorted(found.items(), key=lambda one: -one[1])[:12])


def compare(folder: Path, gpu: str) -> list[Row]:
    rows = []
    for path in sorted(folder.glob("*.json")):
        text = gzip.decompress(path.with_suffix(".source.csv.gz").read_bytes()).decode()
        for task, launches in zip(json.loads(path.read_text()), sampled(text), strict=False):
            rung = catalogue.find(task["rung"])
            values = rung.operation.complete(task["values"])
            row = Row(
                kind="stalls", what=task["rung"], dtype=task["dtype"], shape=task["shape"], values=task["values"],
                tuning=task["tuning"], options={"predicted": gpu}, texts={task["rung"]: identity.text(rung)},
                machine=machine.facts(),
            )  # fmt: skip
            try:
                subject = Subject(rung, task["shape"], values, DTYPES[task["dtype"]])
                made = prediction.predict(subject, task["tuning"], gpu)
            except RungError as error:
                print(task["rung"], error, flush=True)
                continue
            kernels: list[dict[str, object]] = []
            for (_, seen), one in zip(launches, made.launches, strict=False):
                if len(seen) != len(one.stalls):
                    print(task["rung"], one.program.kernel, "is other code", len(seen), len(one.stalls))
                    continue
                at = [f"{line or 0}" for _, line in places(one.program)]
                ours = [dict(zip(timing.STALLS, of, strict=True)) for of in one.stalls]
                count = sum(sum(of.values()) for of in seen)
                name, both = one.program.kernel, (by_line(at, ours), by_line(at, seen))
                kernels.append({"kernel": name, "samples": count, "ours": both[0], "theirs": both[1]})
                told = (" | ".join(f"{k} {v:.0%}" for k, v in list(side.items())[:3]) for side in both)
                print(f"{task['rung']:36} {name[:18]:18} {count:7.0f}", *told, sep="  #  ", flush=True)
            row.detail.update({"class": made.kind, "kernels": kernels})
            rows.append(row)
    return rows


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("what", choices=("sample", "compare"))
    parser.add_argument("folder", type=Path)
    parser.add_argument("ladders", nargs="*")
    parser.add_argument("--gpu", default="NVIDIA H200", help="whose rows say which shapes")
    parser.add_argument("-o", "--output", type=Path)
    chosen = parser.parse_args()
    if chosen.what == "sample":
        sample(chosen.folder, chosen.gpu, chosen.ladders)
    else:
        for row in compare(chosen.folder, chosen.gpu):
            store.append(row, chosen.output or store.default_path())
    return 0


if __name__ == "__main__":
    sys.exit(main())
