"""The tables and charts of docs/beyond.md: attention over streams, processes and GPUs."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from rung.results.current import Figures
from rung.results.row import Row
from rung_reproduce import sources
from rung_reproduce.show import charts
from rung_reproduce.show.markdown import ms, picture, table, times

GPU = ("CUDA, linear softmax", "CUDA, tree softmax", "CUDA, flash", "torch SDPA on the GPU")
RANKS = ("MPI ring, 1 rank", "MPI ring, 2 ranks", "MPI ring, 4 ranks")
LAYERS = {"gpt2": 12, "gpt2-medium": 24, "gpt2-large": 36, "gpt2-xl": 48}
# Bytes that `nccl.attend` and `nccl.merge` read and write per element of out and step: bf16 to float32 (2 + 4), times
# its weight (4 + 4), the sum so far times its own (4 + 4), and their sum (8 + 4).
MERGE_BYTES = 34


def study_of(found: Figures, part: str = "", name: str = "attention") -> dict[str, Any]:
    """A study's result, or a further table of it; empty if it was not run."""
    rows = [r for r in found.of_kind("study") if r.what == name and r.part == part and r.verdict == "ok"]
    return max(rows, key=lambda r: r.time).detail if rows else {}


def study(found: Figures) -> str:
    """Computing, and after the slash with transfers."""
    known = {(r[0], r[1]): (float(r[2]) / 1e3, float(r[3]) / 1e3) for r in study_of(found).get("rows", []) if r[2]}
    hosts = list(dict.fromkeys(name for _, name in known if "C++" in name))
    rows = []
    for n in dict.fromkeys(n for n, _ in known):
        host = [ms(known[n, name][0]) if (n, name) in known else "" for name in hosts]
        rows.append([n, *host, *(" / ".join(map(ms, known[n, name])) if (n, name) in known else "" for name in GPU)])
    return table(("N", *hosts, "linear softmax", "tree softmax", "flash", "torch SDPA"), rows)


def softmax(found: Figures) -> str:
    rows = []
    for n, linear, tree, gain, _ in study_of(found, "softmax").get("rows", []):
        *ms_there, gain_there = sources.softmax()[n]
        rows.append([n, linear, tree, gain, *(f"{x:.3f}" for x in ms_there), f"{gain_there:.2f}x"])
    return table(("N", "linear, ms", "tree, ms", "gain", "source: linear, ms", "tree, ms", "gain"), rows)


def parallel(found: Figures, part: str) -> list[Row]:
    """The rows of pipeline, ring or split."""
    return [r for r in found.of_kind("parallel") if r.part == part and r.verdict == "ok"]


def pipeline(found: Figures) -> str:
    cases: dict[tuple[str, int], list[Row]] = {}
    for row in parallel(found, "pipeline"):
        cases.setdefault((row.dtype, row.options["T"]), []).append(row)
    rows = []
    for (dtype, T), runs in sorted(cases.items(), key=lambda case: (case[0][0] != "f32", case[0][1])):
        serial = max(runs, key=lambda r: (r.options["chunk"], -r.options["streams"]))
        best = min((r for r in runs if r is not serial), key=lambda r: r.metrics["seconds"])
        s, b = serial.metrics, best.metrics
        rows.append(
            [
                f"{dtype}, T = {T}",
                ms(s["seconds"]),
                " + ".join(ms(s[p]) for p in ("copying_in_s", "computing_s", "copying_out_s")),
                f"{ms(b['seconds'])} ({best.options['chunk']}, {best.options['streams']})",
                times(s["seconds"] / b["seconds"]),
                ms(s["bound_s"]),
                times(s["seconds"] / s["bound_s"]),
                f"{b['of_overlap']:.0%}",
            ]
        )
    heads = ("causal, 192 heads", "all at once, ms", "in + computing + out", "pipelined, ms (chunk, streams)")
    return table((*heads, "gain", "bound, ms", "its gain", "overlap"), rows)


Rings = dict[tuple[int, bool, int], Row]


def rings(found: Figures) -> Rings:
    """By the number of GPUs, the mask and N."""
    rows = parallel(found, "ring")
    return {(r.options["gpus"], r.options["causal"], r.options["n"]): r for r in rows}


def ring(found: Figures) -> str:
    known = rings(found)
    rows = []
    for causal, n in sorted({key[1:] for key in known}):
        both = [known.get((gpus, causal, n)) for gpus in (2, 4)]
        alone = " / ".join(ms(r.metrics["one_gpu_s"]) for r in both if r)
        cells = ["causal" if causal else "full", str(n), alone]
        for one in both:
            m = one.metrics if one else {}
            cells += [ms(m["seconds"]), times(m["vs_one_gpu"]), ms(m["passing_s"])] if m else ["", "", ""]
        rows.append([*cells, f"{max(r.metrics['error_norm'] for r in both if r):.1e}"])
    heads = ("mask", "N", "one GPU, ms", "two, ms", "gain", "passing", "four, ms", "gain", "passing", "error")
    return table(heads, rows)


def blocks(known: Rings, gpus: int, causal: bool, n: int) -> float | None:
    """Seconds of a rank's blocks, from one GPU's times for squares of the same side; a half block is half a square."""
    full, masked = (known.get((gpus, c, n // gpus)) for c in (False, True))
    if full is None or masked is None:
        return None
    square = full.metrics["one_gpu_s"]
    return masked.metrics["one_gpu_s"] + (gpus - 1) * square / 2 if causal else gpus * square


def limits(found: Figures) -> str:
    """A ring's time beyond its blocks, and the time of merging at the speed of a copy."""
    known, rows = rings(found), []
    for (gpus, causal, n), r in sorted(known.items(), key=lambda item: (item[0][1], item[0][0], item[0][2])):
        ideal = blocks(known, gpus, causal, n)
        if ideal is None:
            continue
        # A rank has n / gpus rows, and as many steps as GPUs.
        merging = r.options["heads"] * n * r.options["d"] * MERGE_BYTES / found.limits.bytes
        seconds = r.metrics["seconds"]
        mask = "causal" if causal else "full"
        cells = [ms(seconds), ms(ideal), ms(seconds - ideal), f"{(seconds - ideal) / ideal:.0%}"]
        rows.append([mask, gpus, n, *cells, ms(merging), ms(r.metrics["passing_s"])])
    heads = ("mask", "GPUs", "N", "ring, ms", "its blocks, ms", "beyond", "of blocks", "merging, estimated")
    return table((*heads, "passing alone"), rows)


def split(found: Figures) -> str:
    rows = []
    order = lambda r: (r.options["gpus"], r.what, r.dtype, r.options["texts"])  # noqa: E731
    for row in sorted(parallel(found, "split"), key=order):
        m, options = row.metrics, row.options
        more = (m["token_s"] - m["one_gpu_token_s"]) / (2 * LAYERS[row.what])
        rows.append(
            [
                f"{row.what}, {row.dtype}, {row.weights} weights, {options['texts']} x {options['prompt_tokens']}",
                row.options["gpus"],
                f"{ms(m['one_gpu_prompt_s'])} → {ms(m['prompt_s'])}",
                times(m["vs_one_gpu_prompt"]),
                f"{ms(m['one_gpu_token_s'])} → {ms(m['token_s'])}",
                times(m["vs_one_gpu_token"]),
                f"{more * 1e6:.0f}",
                f"{m['error_norm']:.1e}",
                "the same" if row.detail["same_greedy_tokens"] else "others",
            ]
        )
    heads = ("model, prompt", "GPUs", "prompt, ms", "gain", "token, ms", "gain", "more for a sum, µs")
    return table((*heads, "logits' error", "greedy tokens"), rows)


def mpi(found: Figures) -> str:
    known = {(r[0], r[1]): float(r[3]) / 1e3 for r in study_of(found).get("rows", []) if r[3]}
    names = ("sequential C++", "vectorised C++, 1 thread", "vectorised C++, 2 threads", *RANKS)
    sizes = dict.fromkeys(n for n, _ in known)
    rows = [[n, *(ms(known[n, x]) if (n, x) in known else "" for x in names)] for n in sizes]
    return table(("N", "sequential C++", "vectorised, 1 thread", "2 threads", "1 rank", "2 ranks", "4 ranks"), rows)


def scaling(found: Figures, part: str) -> str:
    heads = ("ranks or nodes", "N", "measured, ms", "of it working", "messages hidden")
    rows: Sequence[Sequence[object]] = study_of(found, part).get("rows", [])
    return table((*heads, "forecast, ms", "busy", "64 cores a node, ms", "busy"), rows)


# --- Charts

CHARTS = {  # name: on a GPU or a CPU, the study's chart ("" is the first), and the study
    "study": ("gpu", "", "attention"),
    "softmax": ("gpu", "softmax", "attention"),
    "pipeline": ("gpu", "pipeline", "attention"),
    "strong": ("cpu", "strong", "attention"),
    "weak": ("cpu", "weak", "attention"),
    "waves": ("gpu", "", "waves"),
    "squares": ("gpu", "squares", "waves"),
}


def pictures(gpu: Figures, cpu: Figures) -> dict[str, str]:
    """The charts of the available measurements."""
    studies = {name: study_of(gpu if where == "gpu" else cpu, *of) for name, (where, *of) in CHARTS.items()}
    return {f"beyond-{name}": chart(one, 720, 400) for name, one in studies.items() if one}


def chart(study: dict[str, Any], width: float, height: float = 300) -> str:
    """A study's chart, from the data in its row."""
    axes = study["axes"]
    colours = ("ink", *charts.SERIES)
    series = [
        charts.Series(s["label"], s["points"], colours[i % len(colours)], dashed=s["dashed"] or i >= len(colours))
        for i, s in enumerate(study["series"])
        if any(y is not None for _, y in s["points"])
    ]
    return charts.curves(
        series, title=study["title"], description=study["finding"], x_label=axes["x"], y_label=axes["y"],
        width=width, height=height, log_x=axes["log_x"], log_y=axes["log_y"],
    )  # fmt: skip


def embedded(gpu: Figures, cpu: Figures, name: str, folder: str = "pictures") -> str:
    """The picture in both colour schemes, for Markdown in docs/."""
    where, *of = CHARTS[name]
    study = study_of(gpu if where == "gpu" else cpu, *of)
    return picture(f"beyond-{name}", study["title"], folder) if study else ""
