"""Where warps wait, predicted and sampled.

On a GPU, under Nsight Compute:   python3 benchmarks/stalls.py sample FOLDER [LADDER ...]
Anywhere, on what it left there:  python3 benchmarks/stalls.py compare FOLDER [-o FILE]

Every CUDA rung is launched once at the shape that most of its ladder were timed at; Nsight samples the warps of each
instruction. A prediction gives the same figures; both are added up by line of the source.
"""

from __future__ import annotations

import argparse
import json
import subprocess
import sys
from pathlib import Path

from rung.profile import ncu
from rung.results import current, store
from rung.rungs import catalogue
from rung.show import counter_tables, prediction_tables

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
    return 0


if __name__ == "__main__":
    sys.exit(main())
