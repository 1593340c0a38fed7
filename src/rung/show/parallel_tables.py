"""The tables and charts of docs/beyond.md, each made of the published measurements that it shows."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterable, Sequence
from functools import partial
from pathlib import Path
from typing import Any

from rung.results.source_times import SOURCE_MS
from rung.show import charts

HOST = ("sequential C++", "vectorised C++, 1 thread", "vectorised C++, 16 threads")
GPU = ("CUDA, linear softmax", "CUDA, tree softmax", "CUDA, flash", "torch SDPA on the GPU")
RANKS = ("MPI ring, 1 rank", "MPI ring, 2 ranks", "MPI ring, 4 ranks")
SOURCE_GAINS = dict(zip(SOURCE_MS, ("5.07x", "3.56x", "3.40x", "3.02x", "2.27x", "1.80x"), strict=True))
LAYERS = {"random:gpt2": 12, "random:gpt2-xl": 48}
# What `nccl.attend` and `nccl.merge` read and write of each element of out, every step: bf16 to float32 (2 + 4), times
# its weight (4 + 4), the sum so far times its own (4 + 4), and their sum (8 + 4).
MERGE_BYTES = 34


def makers(root: Path) -> dict[str, Callable[[], str]]:
    """By the name of the part; without the measurements a part stays empty."""
    gpu = root / "results" / "h200"
    parts: dict[str, tuple[Callable[[Path], str], Path]] = {
        "beyond:study": (study, gpu / "study-attention.json"),
        "beyond:softmax": (softmax, gpu / "study-attention.json"),
        "beyond:pipeline": (pipeline, gpu / "pipeline.json"),
        "beyond:ring": (ring, gpu / "ring-2-full.json"),
        "beyond:limits": (limits, gpu / "ring-2-full.json"),
        "beyond:split": (split, gpu / "split-2-gpt2-float32-1.json"),
        "beyond:mpi": (mpi, root / "results" / "cpu_attention_study.json"),
        "beyond:strong": (strong, root / "results" / "cpu_attention_study.json"),
        "beyond:weak": (weak, root / "results" / "cpu_attention_study.json"),
    }
    made: dict[str, Callable[[], str]] = {name: partial(_if_there, make, path) for name, (make, path) in parts.items()}
    for name, (file, _) in CHARTS.items():
        path = root / "results" / file
        made[f"picture:{name.removeprefix('beyond-')}"] = partial(_if_there, partial(embedded, name), path)
    return made


def _if_there(make: Callable[[Path], str], path: Path) -> str:
    return make(path) if path.is_file() else ""


def read(path: Path) -> Any:
    return json.loads(path.read_text(encoding="utf-8"))


def table(heads: Sequence[str], rows: Iterable[Sequence[object]], words: int = 1) -> str:
    """In Markdown; the first `words` columns are not numbers."""
    marks = ["---"] * words + ["---:"] * (len(heads) - words)
    lines = [heads, marks, *([str(c) for c in row] for row in rows)]
    return "\n" + "\n".join("| " + " | ".join(line) + " |" for line in lines) + "\n\n"


def ms(seconds: float) -> str:
    """Three figures, and three decimals below a millisecond."""
    value = seconds * 1e3
    return f"{value:.{3 if value < 1 else 2 if value < 10 else 1 if value < 100 else 0}f}"


def times(factor: float) -> str:
    return f"{factor:.2f}x"


def study(path: Path) -> str:
    """Computing, and behind the stroke with transfers."""
    found = {(r[0], r[1]): (float(r[2]) / 1e3, float(r[3]) / 1e3) for r in read(path)["rows"]}
    rows = []
    for n in dict.fromkeys(n for n, _ in found):
        host = [ms(found[n, name][0]) for name in HOST]
        rows.append([n, *host, *(" / ".join(map(ms, found[n, name])) for name in GPU)])
    heads = ("N", "sequential C++", "vectorised, 1 thread", "16 threads")
    return table((*heads, "linear softmax", "tree softmax", "flash", "torch SDPA"), rows)


def softmax(path: Path) -> str:
    part = read(path)["more"]["softmax"]
    rows = [
        [n, linear, tree, gain, *(f"{x:.3f}" for x in SOURCE_MS[n]), SOURCE_GAINS[n]]
        for n, linear, tree, gain, _ in part["rows"]
    ]
    return table(("N", "linear, ms", "tree, ms", "gain", "source: linear, ms", "tree, ms", "gain"), rows)


def pipeline(path: Path) -> str:
    rows = []
    for name, runs in read(path)["cases"].items():
        serial, best = runs[0], min(runs[1:], key=lambda r: r["seconds"])
        parts = [serial["overlap"][p] for p in ("copying_in", "computing", "copying_out")]
        rows.append(
            [
                name.replace("-", ", T = "),
                ms(serial["seconds"]),
                " + ".join(map(ms, parts)),
                f"{ms(best['seconds'])} ({best['chunk']}, {best['streams']})",
                times(serial["seconds"] / best["seconds"]),
                ms(serial["bound"]),
                times(serial["seconds"] / serial["bound"]),
                f"{best['reached']:.0%}",
            ]
        )
    heads = ("causal, 192 heads", "all at once, ms", "in + computing + out", "pipelined, ms (chunk, streams)")
    return table((*heads, "gain", "bound, ms", "its gain", "overlap"), rows)


def rings(folder: Path) -> dict[tuple[int, bool, int], dict[str, Any]]:
    """By the number of GPUs, the mask and N."""
    files = (folder / f"ring-{g}-{mask}.json" for mask in ("full", "causal") for g in (2, 4))
    return {(r["processes"], r["causal"], r["n"]): r for file in files for r in read(file)["rows"]}


def ring(path: Path) -> str:
    found = rings(path.parent)
    rows = []
    for causal in (False, True):
        for n in sorted({n for _, _, n in found}):
            two, four = found[2, causal, n], found[4, causal, n]
            cells = ["causal" if causal else "full", str(n), f"{ms(two['one_seconds'])} / {ms(four['one_seconds'])}"]
            for one in (two, four):
                cells += [ms(one["seconds"]), times(one["speed_up"]), ms(one["passing_seconds"])]
            rows.append([*cells, f"{max(two['error'], four['error']):.1e}"])
    heads = ("mask", "N", "one GPU, ms", "two, ms", "gain", "passing", "four, ms", "gain", "passing", "error")
    return table(heads, rows)


def blocks(found: dict[tuple[int, bool, int], dict[str, Any]], gpus: int, causal: bool, n: int) -> float | None:
    """Seconds of a rank's blocks, from one GPU's times for squares of the same side; a half block is half a square."""
    full, masked = (found.get((gpus, c, n // gpus)) for c in (False, True))
    if full is None or masked is None:
        return None
    square = float(full["one_seconds"])
    return float(masked["one_seconds"]) + (gpus - 1) * square / 2 if causal else gpus * square


def limits(path: Path) -> str:
    """What a ring takes beyond its blocks, and what merging would take at the speed of a copy."""
    found = rings(path.parent)
    speed = float(read(path.parent / "bench-softmax.json")["ceilings"]["bytes"])
    rows = []
    for (gpus, causal, n), r in sorted(found.items(), key=lambda item: (item[0][1], item[0][0], item[0][2])):
        ideal = blocks(found, gpus, causal, n)
        if ideal is None:
            continue
        merging = r["heads"] * n * r["d"] * MERGE_BYTES / speed  # a rank has n / gpus rows, and as many steps as GPUs
        beyond = r["seconds"] - ideal
        mask = "causal" if causal else "full"
        rows.append(
            [mask, gpus, n, ms(r["seconds"]), ms(ideal), ms(beyond), f"{beyond / ideal:.0%}", ms(merging),
             ms(r["passing_seconds"])]
        )  # fmt: skip
    heads = ("mask", "GPUs", "N", "ring, ms", "its blocks, ms", "beyond", "of blocks", "merging, estimated")
    return table((*heads, "passing alone"), rows)


def split(path: Path) -> str:
    rows = []
    for gpus in (2, 4):
        for file in sorted(path.parent.glob(f"split-{gpus}-*.json")):
            r = read(file)
            per_sum = (r["split_token_seconds"] - r["alone_token_seconds"]) / (2 * LAYERS[r["model"]])
            rows.append(
                [
                    f"{r['model'].removeprefix('random:')}, {r['dtype']}, {r['rows']} x {r['tokens']}",
                    gpus,
                    f"{ms(r['alone_prompt_seconds'])} → {ms(r['split_prompt_seconds'])}",
                    times(r["prompt_speed_up"]),
                    f"{ms(r['alone_token_seconds'])} → {ms(r['split_token_seconds'])}",
                    times(r["token_speed_up"]),
                    f"{per_sum * 1e6:.0f}",
                    f"{r['error']:.1e}",
                    "the same" if r["same_greedy_tokens"] else "others",
                ]
            )
    heads = ("model, prompt", "GPUs", "prompt, ms", "gain", "token, ms", "gain", "more for a sum, µs")
    return table((*heads, "logits' error", "greedy tokens"), rows)


def mpi(path: Path) -> str:
    found = {(r[0], r[1]): float(r[3]) / 1e3 for r in read(path)["rows"]}
    names = ("sequential C++", "vectorised C++, 1 thread", "vectorised C++, 2 threads", *RANKS)
    rows = [[n, *(ms(found[n, name]) for name in names)] for n in dict.fromkeys(n for n, _ in found)]
    return table(("N", "sequential C++", "vectorised, 1 thread", "2 threads", "1 rank", "2 ranks", "4 ranks"), rows)


def strong(path: Path) -> str:
    return _scaling(read(path)["more"]["strong"]["rows"])


def weak(path: Path) -> str:
    return _scaling(read(path)["more"]["weak"]["rows"])


def _scaling(rows: list[list[Any]]) -> str:
    heads = ("ranks or nodes", "N", "measured, ms", "of it working", "messages hidden")
    return table((*heads, "forecast, ms", "busy", "64 cores a node, ms", "busy"), rows)


# --- Charts

CHARTS = {  # name: which study, and which of its charts; "" is the first
    "beyond-study": ("h200/study-attention.json", ""),
    "beyond-softmax": ("h200/study-attention.json", "softmax"),
    "beyond-pipeline": ("h200/study-attention.json", "pipeline"),
    "beyond-strong": ("cpu_attention_study.json", "strong"),
    "beyond-weak": ("cpu_attention_study.json", "weak"),
}
COLOURS = ("ink", *charts.SERIES)


def pictures(root: Path) -> dict[str, str]:
    """Of the measurements that are there."""
    found = {}
    for name, (file, part) in CHARTS.items():
        path = root / "results" / file
        if path.is_file():
            study = read(path)
            found[name] = chart(study["more"][part] if part else study)
    return found


def chart(study: dict[str, Any]) -> str:
    """A study's chart, from what its JSON holds."""
    axes = study["axes"]
    series = [
        charts.Series(
            s["label"],
            [(x, y) for x, y in s["points"]],
            COLOURS[i % len(COLOURS)],
            dashed=s["dashed"] or i >= len(COLOURS),
        )
        for i, s in enumerate(study["series"])
    ]
    return charts.curves(
        series,
        title=study["title"],
        description=study["finding"],
        x_label=axes["x"],
        y_label=axes["y"],
        width=720,
        height=400,
        log_x=axes["log_x"],
        log_y=axes["log_y"],
    )


def embedded(name: str, path: Path) -> str:
    """The picture in both colour schemes, as Markdown that lies in docs/ wants it."""
    part = CHARTS[name][1]
    study = read(path)
    told = (study["more"][part] if part else study)["title"]
    return (
        "<picture>\n"
        f'  <source media="(prefers-color-scheme: dark)" srcset="pictures/{name}-dark.svg">\n'
        f'  <img alt="{charts.escape(told)}" src="pictures/{name}-light.svg">\n'
        "</picture>\n"
    )
