"""Predicted time beside Nsight Compute's, of programs that nothing was fitted to.

On a GPU, with nvcc and ncu:   python3 benchmarks/strangers.py measure FOLDER... -o ROWS.jsonl
Anywhere:                      python3 benchmarks/strangers.py compare ROWS.jsonl FOLDER...

A folder holds programs, each one file with its main; a first line `// args: ...` gives its arguments, and a line
`// launches: N` says how many launches are measured. The first launch of each kernel and grid is compared, from empty
caches, at the clocks that the GPU has by itself. `measure` needs nothing of rung.
"""

from __future__ import annotations

import argparse
import csv
import io
import json
import os
import re
import shutil
import statistics
import subprocess
import sys
import tempfile
import time
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

METRICS = {
    "clocks": "gpc__cycles_elapsed.max",
    "ns": "gpu__time_duration.sum",
    "instructions": "smsp__inst_executed.sum",
    "dram_bytes": "dram__bytes.sum",
    "l2_sectors": "lts__t_sectors.sum",
}
MOST_LAUNCHES, MOST_SECONDS = 40, 40


def find_programs(folders: list[Path]) -> list[Path]:
    return sorted(path for folder in folders for path in ([folder] if folder.is_file() else folder.glob("*.cu")))


def count_launches(path: Path) -> int:
    found = re.search(r"^// launches: (\d+)$", path.read_text(errors="replace"), re.M)
    return int(found[1]) if found else MOST_LAUNCHES


def read_arguments(path: Path) -> list[str]:
    first = path.read_text(errors="replace").partition("\n")[0]
    return first.removeprefix("// args:").split() if first.startswith("// args:") else []


def shorten(kernel: str) -> str:
    """A kernel's name without its result, its parameters and the spelling of its template arguments."""
    kernel = kernel.replace("(anonymous namespace)::", "").removeprefix("void ")
    depth, kept = 0, ""
    for letter in kernel:
        depth += letter == "<"
        if not depth:
            kept += letter
        depth -= letter == ">"
    return kept.partition("(")[0].rpartition("::")[2].strip()


def read_table(text: str) -> list[dict[str, object]]:
    """The first launch of each kernel and grid, of ncu's table."""
    lines = [line for line in text.splitlines() if line.startswith('"')]
    found: dict[tuple[str, str, str], dict[str, object]] = {}
    for row in csv.DictReader(io.StringIO("\n".join(lines))):
        if not (row.get("ID") or "").strip():
            continue
        grid, block = (",".join(re.findall(r"\d+", row[key])) for key in ("Grid Size", "Block Size"))
        key = (row["Kernel Name"], grid, block)
        values = {name: float(row[metric].replace(",", "")) for name, metric in METRICS.items() if row.get(metric)}
        found.setdefault(key, {"kernel": row["Kernel Name"], "grid": grid, "block": block, **values})
    return list(found.values())


def measure(folders: list[Path], output: Path, seconds: float) -> None:
    gpu = subprocess.run(
        ["nvidia-smi", "--query-gpu=name,clocks.max.sm", "--format=csv,noheader"], capture_output=True, text=True
    ).stdout.strip()
    ncu = shutil.which("ncu") or next(str(p) for p in sorted(Path("/").glob("usr/local/cuda*/bin/ncu")))
    nvcc = shutil.which("nvcc") or "/usr/local/cuda/bin/nvcc"
    began = time.monotonic()
    with tempfile.TemporaryDirectory() as work, output.open("a") as out:

        def compile_one(path: Path) -> str:
            command = [nvcc, "-w", "-arch=sm_90a", "-O3", "-std=c++17", "-Xcompiler", "-fopenmp", str(path)]
            done = subprocess.run([*command, "-o", f"{work}/{path.stem}"], capture_output=True, text=True)
            return done.stderr[-300:] if done.returncode else ""

        programs = find_programs(folders)
        with ThreadPoolExecutor(os.cpu_count()) as pool:
            problems = dict(zip(programs, pool.map(compile_one, programs), strict=True))
        print(f"{gpu}; {len(programs)} programs compiled in {time.monotonic() - began:.0f} s", flush=True)
        for path in programs:
            if problems[path] or time.monotonic() - began > seconds:
                print(path.stem, problems[path] or "no time left", flush=True)
                continue
            log = Path(work) / "log.csv"
            command = [
                ncu, "--clock-control", "none", "--cache-control", "all", "--launch-count", str(count_launches(path)),
                "--kill", "yes", "--csv", "--page", "raw", "--print-units", "base", "--log-file", str(log),
                "--metrics", ",".join(METRICS.values()), f"{work}/{path.stem}", *read_arguments(path),
            ]  # fmt: skip
            log.write_text("")
            try:
                subprocess.run(command, capture_output=True, cwd=work, timeout=MOST_SECONDS)
            except subprocess.TimeoutExpired:
                print(path.stem, f"ended after {MOST_SECONDS} s", flush=True)
            rows = read_table(log.read_text(errors="replace"))
            for row in rows:
                out.write(json.dumps({"program": path.stem, "gpu": gpu, "ncu": "cold", **row}) + "\n")
                out.flush()
            shown = ", ".join(f"{shorten(str(row['kernel']))} {row.get('clocks', 0):.0f}" for row in rows[:6])
            print(f"{path.stem:28} {len(rows):3} {time.monotonic() - began:5.0f} s  {shown}", flush=True)


def predict(path: Path, gpu: str) -> list[dict[str, object]]:
    command = [sys.executable, "-m", "rung", "count", str(path), "--time", gpu, "--cold", "--json"]
    done = subprocess.run([*command, "--", *read_arguments(path)], capture_output=True, text=True)
    try:
        return list(json.loads(done.stdout)["results"][0]["launches"])
    except (ValueError, KeyError, IndexError):
        print(path.stem, "is not predicted:", (done.stderr or done.stdout)[-200:].replace("\n", " "), flush=True)
        return []


def print_errors(title: str, errors: list[float]) -> None:
    ordered = sorted(errors)
    if ordered:
        ninetieth = ordered[min(len(ordered) - 1, int(0.9 * len(ordered)))]
        figures = f"mean {statistics.mean(ordered):5.0%}  median {statistics.median(ordered):5.0%}"
        print(f"{title:30} {len(ordered):4}  {figures}  90th {ninetieth:5.0%}  worst {ordered[-1]:5.0%}")


def compare(rows: Path, folders: list[Path], gpu: str, output: Path | None, only: str) -> None:
    measured: dict[str, list[dict[str, object]]] = {}
    for line in rows.read_text().splitlines():
        row = json.loads(line)
        measured.setdefault(row["program"], []).append(row)
    errors: list[tuple[str, float]] = []
    kept: list[dict[str, object]] = []
    for path in find_programs(folders):
        if path.stem not in measured or not re.search(only, path.stem):
            continue
        for launch in predict(path, gpu):
            for row in measured[path.stem]:
                same = shorten(str(row["kernel"])) == shorten(str(launch["kernel"]))
                if not same or row.get("seen") or eval_blocks(str(row["grid"])) != launch["blocks"]:
                    continue
                row["seen"] = True
                ours, theirs = float(str(launch["clocks"])), float(str(row["clocks"]))
                why = str(launch.get("not_modelled", "") or launch.get("class", ""))
                size = "small" if theirs < 20_000 else "large"
                errors.append((f"{path.stem.partition('_')[0]} {size}", ours / theirs - 1))
                kept.append({"program": path.stem, "predicted": ours, "measured": theirs, **row})
                name = f"{path.stem}:{shorten(str(row['kernel']))}"
                print(f"{name[:66]:66} {row['grid']!s:>14} {theirs:10.0f} {ours:10.0f} {ours / theirs - 1:+6.0%} {why}")
                sys.stdout.flush()
                break
    for kind in sorted({name for name, _ in errors}):
        print_errors(kind, [abs(error) for name, error in errors if name == kind])
    print_errors("all", [abs(error) for _, error in errors])
    if output:
        output.write_text("".join(json.dumps(row) + "\n" for row in kept))


def eval_blocks(grid: str) -> int:
    count = 1
    for axis in grid.split(","):
        count *= int(axis)
    return count


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    commands = parser.add_subparsers(dest="command", required=True)
    one = commands.add_parser("measure")
    one.add_argument("folders", nargs="+", type=Path)
    one.add_argument("-o", "--output", type=Path, required=True)
    one.add_argument("--seconds", type=float, default=440)
    two = commands.add_parser("compare")
    two.add_argument("rows", type=Path)
    two.add_argument("folders", nargs="+", type=Path)
    two.add_argument("--gpu", default="h200")
    two.add_argument("--only", default="", help="a pattern of programs' names")
    two.add_argument("-o", "--output", type=Path)
    chosen = parser.parse_args()
    if chosen.command == "measure":
        measure(chosen.folders, chosen.output, chosen.seconds)
    else:
        compare(chosen.rows, chosen.folders, chosen.gpu, chosen.output, chosen.only)


if __name__ == "__main__":
    main()
