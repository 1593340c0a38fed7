"""How long a default check takes.

    python benchmarks/judging.py [FILES OR FOLDERS] [--output results/cpu/study.jsonl]

Right kernels are those of tests/foreign, as people write them; corpus.py has the wrong ones.
Each file is a copy that no cache knows; the emulator itself is compiled before. CPU seconds are of all processes of the
command; the row has the load of the machine, too, since seconds on the clock depend on it.
"""

from __future__ import annotations

import argparse
import os
import re
import shutil
import signal
import statistics
import subprocess
import sys
import tempfile
import threading
import time
import uuid
from collections.abc import Callable, Iterable
from dataclasses import dataclass, field
from pathlib import Path
from typing import IO, Any

from rung.results import machine, store
from rung.results.row import Row

TESTS = Path(__file__).parents[1] / "tests"
# Where neither the file's name nor a kernel's says which operation it is.
OPERATIONS = {"flash_minimal": "attention", "triton_descriptors": "residual", "triton_block_pointers": "transpose"}
NAMES = ["attention", "copy", "embedding", "gelu", "layernorm", "matmul", "reduce", "relu", "residual", "softmax"]
FOREIGN = TESTS / "foreign" / "softmax_forward.cu"
LADDER = TESTS.parent / "src" / "rung" / "ladders" / "softmax" / "01_naive.cu"
LINES = {  # of the output: the moment that each marks
    "first cases": re.compile(r".*: the first 3 cases are right"),
    "verdict": re.compile(r"\d+ .* on CPU emulator"),
    "waiting": re.compile(r"rung: waiting for"),
}
MOMENTS = {  # file, what of its text becomes what
    "a wrong parameter name": (LADDER, "const Real* x,", "const Real* q7,"),
    "a compile error": (FOREIGN, "float maxval", "floot maxval"),
    "a compile error of NVRTC's": (FOREIGN, "    int tid", '    asm volatile("nonsense.u32;");\n    int tid'),
    "an endless loop": (FOREIGN, "    int laneId", "    while (C) {}\n    int laneId"),
}


REFUSED = (1, 2, 3)


@dataclass
class Told:
    """What a command has printed, and when."""

    code: int = -1
    cpu: float = 0.0
    wall: float = 0.0
    text: str = ""
    moments: dict[str, float] = field(default_factory=dict)

    @property
    def verdict(self) -> float:
        return self.moments.get("verdict", self.wall)


def run(words: Iterable[object], seconds: float, watched: Callable[[str], bool] | None = None) -> Told:
    """The command's output until it ends, or until `watched` is true of a line."""
    command = [sys.executable, "-m", "rung", "check", *map(str, words), "--device", "emulator"]
    told, began = Told(), time.monotonic()
    process = subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True, process_group=0)
    limit = threading.Timer(seconds, os.killpg, (process.pid, signal.SIGKILL))
    limit.start()
    assert process.stdout is not None
    for line in _lines(process.stdout):
        told.text += line
        for name, pattern in LINES.items():
            if pattern.match(line.strip()):
                told.moments.setdefault(name, time.monotonic() - began)
        if watched and watched(line):
            os.killpg(process.pid, signal.SIGINT)
    _, status, used = os.wait4(process.pid, 0)
    limit.cancel()
    told.wall, told.cpu = time.monotonic() - began, used.ru_utime + used.ru_stime
    told.code = os.waitstatus_to_exitcode(status)
    return told


def _lines(output: IO[str]) -> Iterable[str]:
    while line := output.readline():
        yield line


def operation(path: Path) -> list[str]:
    words = path.stem.split("_")
    named = OPERATIONS.get(path.stem) or next((w for w in words if w in [*NAMES, "transpose"]), "")
    return [named] if named else []


def copy_headers(path: Path, folder: Path) -> None:
    """Those that lie beside the file."""
    for header in path.parent.glob("*.cuh"):
        shutil.copy(header, folder)


def unseen(path: Path, folder: Path, before: str = "", after: str = "") -> Path:
    """A copy with a comment that no other has, and perhaps a mistake."""
    copy_headers(path, folder)
    text = path.read_text(encoding="utf-8")
    assert before in text, f"{path.name} has no {before!r}"
    comment = f"{'#' if path.suffix == '.py' else '//'} {uuid.uuid4()}\n"
    copy = folder / path.name
    copy.write_text(f"{text.replace(before, after, 1) if before else text}\n{comment}", encoding="utf-8")
    return copy


def right(files: list[Path], folder: Path, seconds: float) -> list[list[object]]:
    """Rows of the table: first cases, whole verdict and CPU of each file, with their medians and the slowest."""
    every, table = list[Told](), list[list[object]]()
    for file in files:
        told = run([*operation(file), unseen(file, folder)], seconds)
        said = {0: "ok", 3: "not judged"}.get(told.code, "refused")
        first = told.moments.get("first cases")
        table.append([file.name, said, f"{first:.1f}" if first else "", f"{told.verdict:.1f}", f"{told.cpu:.1f}"])
        print("  ".join(map(str, table[-1])), flush=True)
        if told.code == 0:
            every.append(told)
    if len(every) > 1:
        firsts = [t.moments["first cases"] for t in every if "first cases" in t.moments]
        for name, of in (("median", statistics.median), ("largest", max)):
            figures = (of(firsts), of([t.verdict for t in every]), of([t.cpu for t in every]))
            table.append([f"{name} of {len(every)}", "", *(f"{n:.1f}" for n in figures)])
    return table


def mistakes(folder: Path, seconds: float) -> list[list[object]]:
    table = list[list[object]]()
    for name, (file, before, after) in MOMENTS.items():
        told = run(["softmax", unseen(file, folder, before, after)], seconds)
        said = "refused" if told.code in REFUSED else "accepted"
        table.append([name, said, "", f"{told.verdict:.1f}", f"{told.cpu:.1f}"])
        print("  ".join(map(str, table[-1])), flush=True)
    table.append(_watched(folder, seconds))
    print("  ".join(map(str, table[-1])), flush=True)
    return table


def _watched(folder: Path, seconds: float) -> list[object]:
    """A file that is changed by one line while `--watch` waits."""
    file = unseen(FOREIGN, folder)
    times = list[float]()  # of the save, of the first cases, of the next wait

    def after(line: str) -> bool:
        if LINES["waiting"].match(line) and not times:
            time.sleep(3.0)
            file.write_text(file.read_text().replace("float maxval", "float  maxval"))
            times.append(time.monotonic())
        elif times and (LINES["first cases"].match(line) or LINES["verdict"].match(line.strip())):
            times.append(time.monotonic())
        return len(times) == 3

    told = run(["softmax", file, "--watch"], seconds, after)
    saved, first, whole = [*times, *[float("nan")] * 3][:3]
    return ["a change under --watch", "ok", f"{first - saved:.1f}", f"{whole - saved:.1f}", f"{told.cpu:.1f}"]


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("files", nargs="*", type=Path, default=[TESTS / "foreign"])
    parser.add_argument("--seconds", type=float, default=300.0, help="of a check, at most")
    parser.add_argument("--output", type=Path, help="append the table as a row")
    asked = parser.parse_args()
    with tempfile.TemporaryDirectory() as work:
        folder = Path(work)
        load = os.getloadavg()[0]
        run(["softmax", FOREIGN], asked.seconds)  # compiles the emulator
        files = [f for g in asked.files for f in (sorted(g.glob("*.[cp][uy]")) if g.is_dir() else [g])]
        table = [*mistakes(folder, asked.seconds), *right(files, folder, asked.seconds)]
    for line in table:
        print("| " + " | ".join(map(str, line)) + " |")
    if asked.output:
        columns = ["file", "verdict", "first cases, s", "verdict, s", "CPU s"]
        detail: dict[str, Any] = {"title": "Seconds of a default check", "columns": columns, "rows": table}
        metrics = {"load_before": load, "load_after": os.getloadavg()[0]}
        row = Row(kind="study", what="judging", part="seconds", machine=machine.facts(), metrics=metrics, detail=detail)
        store.append(row, asked.output)


if __name__ == "__main__":
    main()
