"""Fills the empty places of the five documents' figures on one GPU, the most telling first.

    python3 reproduce/benchmarks/reproduce.py --budget 540 [--parts bench,profile,course,...]

Rows go to one store, measured.jsonl under $OUT (or ./measured). What has a row of the present code there or in results/
is not measured again, so that a second call continues where the first one stopped. Then, where the repository is:

    rung results FILE --publish results/h200
"""

from __future__ import annotations

import argparse
import collections
import os
import sys
import time
import traceback
from collections.abc import Callable, Iterator
from pathlib import Path

OUT = Path(os.environ.get("OUT") or "measured").resolve()
os.environ["RUNG_RESULTS"] = str(OUT / "measured.jsonl")

from rung.cli import main  # noqa: E402  the store is named first
from rung.profile import batches  # noqa: E402
from rung.results import codes, current, machine, store  # noqa: E402
from rung.results.row import Row  # noqa: E402
from rung_reproduce import atlas, items, sources  # noqa: E402

VERSIONS = (*(str(n) for n in range(13, 24)), "37")  # the study's twelve
TEXTS = {  # options of the attention study's texts -> rungs, seconds for each text
    "": (VERSIONS, 12),
    "--batch 4": (("37_sixty_four_square",), 60),
    "--dtype bfloat16": (("27_tensor_cores",), 30),
    "--batch 16": (("37_sixty_four_square",), 100),
}
Call = tuple[str, Callable[[float], None]]


def rows() -> list[Row]:
    """Those of this GPU, of the present code."""
    if (gpu := machine.facts().get("gpu", "")) and all(row.gpu != gpu for row in store.gather()):
        return []
    found = current.of_gpu(store.gather(), machine.facts().get("gpu") or None)
    return [row for row in found.results if codes.current(row)]


def empty(kind: str) -> list[sources.Reference]:
    have = rows()
    return [r for r in sources.references(kind) if r.value(have) is None]


def call(words: list[str]) -> Callable[[float], None]:
    """A verb in this process, which has torch and the driver ready."""

    def run(left: float) -> None:
        try:
            main(words)
        except SystemExit as ended:
            if ended.code:
                raise RuntimeError(f"exit code {ended.code}") from None

    return run


def bench() -> Iterator[Call]:
    groups: dict[tuple[str, str, str], list[str]] = {}
    for r in empty("bench"):
        groups.setdefault((r.what.partition("/")[0], r.dtype, r.shape), []).append(r.what)
    for (_, dtype, shape), names in groups.items():
        first, *others = dict.fromkeys(names)
        words = ["bench", first, "--dtype", dtype, "--shape", shape, "--seconds", "0.15"]
        yield f"bench {first} and {len(others)}", call(words + [w for other in others for w in ("--vs", other)])


def profile() -> Iterator[Call]:
    chosen = atlas.of_the_sources(atlas.missing(atlas.planned()))
    if chosen:
        yield f"profile {len(chosen)}", lambda left: collections.deque(batches.collect(chosen, left, print), 0).clear()


def course() -> Iterator[Call]:
    if empty("course"):
        yield "climb --study course", call(["climb", "--study", "course", "--seconds", "4"])


def study() -> Iterator[Call]:
    have = {"/".join(filter(None, (row.what, row.part))) for row in rows() if row.kind == "study"}
    shown = [study for document in sources.documents().values() for study in document.studies if study not in have]
    for name in dict.fromkeys(study.partition("/")[0] for study in [*(r.what for r in empty("study")), *shown]):
        yield f"study {name}", call(["study", name, "--no-chart"])


def text() -> Iterator[Call]:
    wanted = {r.command for kind in ("text", "kernels") for r in empty(kind)}
    for option, (rungs, seconds) in TEXTS.items():
        if (f"{sources.COMMANDS['text']} {option}").strip() in wanted:
            chosen = [word for rung in rungs for word in ("--rung", rung)]
            words = ["climb", "--study", "attention", *option.split(), "--seconds", str(seconds), *chosen]
            yield " ".join(words), call(words)


def item() -> Iterator[Call]:
    """What the documents' items name beyond the figures: rungs without a row, profiles, traces."""
    have = rows()
    named = {name for i in items.items() for name in i.missing(have)}
    for name in sorted(named):
        kind, _, rest = name.partition(" ")
        what = rest.partition(" ")[0]
        if kind == "profile":
            words = ["profile", what, "--dtype", "f32"]
            yield name, call(["profile", "generate", "--whole", "--plan", "best"] if "whole_run" in what else words)
        elif not rest and name.count("/") == 1:
            yield f"bench {name}", call(["bench", name, "--seconds", "0.15"])


PARTS = {"course": course, "bench": bench, "profile": profile, "study": study, "item": item, "text": text}


def run(parts: list[str], budget: float) -> list[tuple[str, str, float]]:
    end, done = time.monotonic() + budget, []
    for part in parts:
        for name, work in PARTS[part]():
            left = end - time.monotonic()
            if left < 20:
                done.append((name, "no time left", 0.0))
                continue
            began, outcome = time.monotonic(), "ok"
            try:
                work(left)
            except Exception as error:
                traceback.print_exc()
                outcome = f"{type(error).__name__}: {error}"
            done.append((name, outcome, time.monotonic() - began))
            print(f"[{done[-1][2]:.0f} s] {name}: {outcome}", file=sys.stderr, flush=True)
    return done


if __name__ == "__main__":
    parser = argparse.ArgumentParser()
    parser.add_argument("--budget", type=float, default=540.0)
    parser.add_argument("--parts", default=",".join(PARTS))
    chosen = parser.parse_args()
    OUT.mkdir(parents=True, exist_ok=True)
    log = sys.stdout
    with (OUT / "reproduce.log").open("a", encoding="utf-8") as sys.stdout:
        outcomes = run(chosen.parts.split(","), chosen.budget)
    sys.stdout = log
    for name, outcome, seconds in outcomes:
        print(f"{seconds:5.0f} s  {outcome[:60]:12}  {name}")
    left = sum(len(empty(kind)) for kind in ("bench", "profile", "course", "study", "text", "kernels"))
    print(f"{left} places are empty; the same command goes on.")
