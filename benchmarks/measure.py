"""Renews every figure that is shown, on one GPU: calls the verbs for figures without a row of the present code.

    PYTHONPATH=src python3 benchmarks/measure.py --budget 540 [SECTION ...]

Rows go to one store, measured.jsonl under $OUT (or ./measured), and the verbs' output to measure.log next to it.
Figures with a current row there or in results/ are not measured again, so that a second call continues where the first
one stopped; the documents' own figures (section reproduce) are those of this card alone. `rung results FILE --publish
results/h200` adds the rows to the published ones. A section that fails or runs out of time is a row with its reason;
the rest continues.
"""

from __future__ import annotations

import argparse
import os
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

import torch

from rung.models.gpt2.rungs import few_rows_rung
from rung.results import codes, machine, store
from rung.results.row import Row
from rung_reproduce.climbs import model

ROOT = Path(__file__).resolve().parent.parent
OUT = Path(os.environ.get("OUT") or "measured").resolve()
RUNG = [sys.executable, "-m", "rung"]
LEAST = 15.0  # seconds left below which nothing new is started
SHORTEST = 20.0  # seconds that a call takes as its own limit


@dataclass(frozen=True)
class Task:
    """A call, and its time limit; `own_limit` is the option with which it ends by itself."""

    words: list[str]
    limit: float
    own_limit: str = ""


class Measured:
    """The rows of the present code on this GPU."""

    def __init__(self) -> None:
        gpu = machine.facts().get("gpu", "")
        self.rows = [r for r in store.gather() if r.gpu == gpu and r.verdict == "ok" and codes.current(r)]

    def parts(self, kind: str, what: str | None = None) -> set[str]:
        """The parts of a kind: steps of a climb, runs on several GPUs."""
        some = (r for r in self.rows if r.kind == kind and what in (None, r.what) and "study" not in r.options)
        return {f"{r.part} {r.dtype}".strip() for r in some}

    def whats(self, kind: str, part: str | None = None) -> set[str]:
        return {r.what for r in self.rows if r.kind == kind and part in (None, r.part) and not r.quick}


def bench(measured: Measured) -> list[Task]:
    words = ["bench", "all", "--missing", "--seconds", "0.06", "--patience", "0.2"]
    return [Task([*RUNG, *words], 420, "--limit")]


def count(measured: Measured) -> list[Task]:
    return [Task([sys.executable, "benchmarks/counters.py"], 540, "--limit")]


def climb(measured: Measured) -> list[Task]:
    tasks = []
    for dtype in ("bfloat16", "float32", "int8"):
        needed = {f"{step.name} {dtype}" for step in model.steps([dtype])}
        if needed - measured.parts("climb", "gpt2"):
            tasks.append(Task([*RUNG, "climb", "--dtype", dtype, "--seconds", "1"], 150))
    return tasks


def texts(sections: str, limit: float) -> Callable[[Measured], list[Task]]:
    command = [sys.executable, "benchmarks/generate.py", "--missing", "--sections", sections]
    return lambda measured: [Task(command, limit, "--limit")]


def check(measured: Measured) -> list[Task]:
    return [Task([*RUNG, "check", "--device", "cuda", "--missing", "-o", os.environ["RUNG_RESULTS"]], 300)]


def reproduce(measured: Measured) -> list[Task]:
    """Studies, climbs and profiles that the documents name and that were not measured here."""
    return [Task([*RUNG, "reproduce", "--run"], 540, "--budget")]


def profile(measured: Measured) -> list[Task]:
    needed = [n for n in ("gpt2", "gpt2-xl") if n not in measured.whats("profile", "generate")]
    tasks = [Task([*RUNG, "profile", "generate", "-m", f"random:{n}", "-n", "256"], 60) for n in needed]
    if "inner" not in measured.whats("profile", "whole run"):
        tasks.append(Task([*RUNG, "profile", "generate", "--whole", "--plan", "best"], 60))
    return tasks


def atlas(measured: Measured) -> list[Task]:
    """Nsight Compute's counters; only those without a row, the sources' rungs first."""
    return [Task([sys.executable, "-m", "rung_reproduce.atlas"], 260, "--limit")]


def sweep(measured: Measured) -> list[Task]:
    layernorm = ["sweep", "layernorm/09_split", "--dtype", "f32", "--shape", "b8t1024", "--seconds", "0.05"]
    few = [
        [*RUNG, "sweep", f"decode/{few_rows_rung(dtype)}", "--dtype", real, "--halving", "--seconds", "0.03",
         "--shape", f"B={rows},L=12,C=768,NH=12,F=3072,V=50257,MAXT=256"]
        for dtype, real in (("bfloat16", "bf16"), ("int8", "bf16"), ("float32", "f32")) for rows in (2, 4, 8)
        if dtype != "float32" or rows < 8
    ]  # fmt: skip
    return [Task([*RUNG, *layernorm], 60), *(Task(words, 60) for words in few)]


def parallel(measured: Measured) -> list[Task]:
    known = {p.partition(" ")[0] for p in measured.parts("parallel")}
    names = [n for n in ("pipeline", "texts")[: torch.cuda.device_count()] if n not in known]
    return [Task([sys.executable, "reproduce/benchmarks/parallel.py", n], 120) for n in names]


def mutants(measured: Measured) -> list[Task]:
    words = ["tools/mutation.py", "--all", "--sample", "150", "--seed", "0", "--device", "cuda", "-j", "8"]
    return [Task([sys.executable, *words, "-o", os.environ["RUNG_RESULTS"]], 400)]


# In order of importance.
SECTIONS: dict[str, Callable[[Measured], list[Task]]] = {
    "climb": climb, "generate": texts("text,context,prompt,sampling,llama", 240), "bench": bench,
    "peers": texts("peers", 200), "reproduce": reproduce, "check": check, "score": texts("score", 150),
    "profile": profile, "atlas": atlas, "parallel": parallel, "sweep": sweep, "mutants": mutants, "count": count,
}  # fmt: skip


def run(task: Task, log: Path, left: float) -> str:
    """Carry out a call; returns the reason if it failed, else an empty text."""
    limit = min(task.limit, left)
    words = [*task.words, *([task.own_limit, f"{max(limit - LEAST, SHORTEST):.0f}"] if task.own_limit else [])]
    with log.open("a", encoding="utf-8") as out:
        out.write(f"\n$ {' '.join(words)}\n")
        out.flush()
        try:
            done = subprocess.run(words, stdout=out, stderr=subprocess.STDOUT, timeout=limit, cwd=ROOT, check=False)
        except subprocess.TimeoutExpired:
            return f"stopped after {limit:.0f} s"
        except OSError as error:
            return str(error)
    if done.returncode in (0, 1, 3):  # 1 and 3: some of it failed or was not judged, and is a row with its reason
        return ""
    output = [line for line in log.read_text(encoding="utf-8", errors="replace").splitlines() if line.strip()]
    return f"exit {done.returncode}: {output[-1][:200]}"


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("sections", nargs="*", help=f"of {', '.join(SECTIONS)} (default: all)")
    parser.add_argument("--budget", type=float, default=540, help="seconds in all")
    parser.add_argument("--dry-run", action="store_true", help="only print what would be called")
    chosen = parser.parse_args()
    unknown = [name for name in chosen.sections if name not in SECTIONS]
    if unknown:
        parser.error(f"there is no section {unknown[0]!r}; there are {', '.join(SECTIONS)}")
    OUT.mkdir(parents=True, exist_ok=True)
    scratch = tempfile.mkdtemp(prefix="rung-measure-")
    packages = [str(ROOT / folder) for folder in ("src", "gpuless/src", "reproduce/src")]
    os.environ["PYTHONPATH"] = os.pathsep.join(filter(None, [*packages, os.environ.get("PYTHONPATH")]))
    os.environ["RUNG_RESULTS"] = str(OUT / "measured.jsonl")
    os.environ["RUNG_TUNINGS"] = str(Path(scratch) / "tunings.jsonl")  # no sweep may affect later figures
    began, summary = time.monotonic(), []
    for name in chosen.sections or SECTIONS:
        tasks = SECTIONS[name](Measured())
        if chosen.dry_run:
            print(*(f"{name}: {' '.join(task.words)}" for task in tasks), sep="\n")
            continue
        start, before = time.monotonic(), len(_rows())
        reasons = []
        for task in tasks:
            left = chosen.budget - (time.monotonic() - began)
            if left < LEAST:
                reasons.append("out of time; call again to continue")
                break
            reasons.append(run(task, OUT / "measure.log", left))
        reason = "; ".join(filter(None, reasons))
        rows = len(_rows()) - before
        spent = time.monotonic() - start
        store.append(Row(kind="measure", what=name, verdict="failed" if reason else "ok", reason=reason,
                         metrics={"seconds": spent, "rows": float(rows)}, machine=machine.facts()))  # fmt: skip
        summary.append((name, f"{len(tasks)}", f"{rows}", f"{spent:.0f}", reason))
        print(f"{name}: {rows} rows in {spent:.0f} s {reason}", flush=True)
    if summary:
        print(f"\n{'section':<10} {'calls':>5} {'rows':>5} {'s':>5}  problem")
        print(*(f"{n:<10} {calls:>5} {rows:>5} {s:>5}  {reason}" for n, calls, rows, s, reason in summary), sep="\n")
        print(f"\n{len(_rows())} rows in {OUT / 'measured.jsonl'}, {time.monotonic() - began:.0f} s.")
    return 0


def _rows() -> list[Row]:
    return list(store.read()) if (OUT / "measured.jsonl").exists() else []


if __name__ == "__main__":
    sys.exit(main())
