"""Predicted times of launches, and what their warps wait for, by line."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Sequence

from rung.cuda import gpus
from rung.emulator import timing
from rung.emulator.counters import Place, places
from rung.profile.prediction import Error, Prediction
from rung.show.verb_tables import Table

WORDS = {
    "wait": "stalls of fixed length between dependent instructions",
    "long_scoreboard": "waits for global memory",
    "short_scoreboard": "waits for shared memory or special functions",
    "math_pipe_throttle": "waits for an arithmetic unit",
    "lg_throttle": "waits until global memory takes requests",
    "mio_throttle": "waits until shared memory takes requests",
    "barrier": "waits for other warps at a barrier",
    "membar": "waits at a memory fence",
    "gmma": "waits for a warp group's products",
    "not_selected": "is ready while another warp goes",
    "branch_resolving": "waits for a branch",
}
_MOST_LINES = 8


def _us(value: float) -> str:
    return f"{value:,.0f}" if value >= 1000 else f"{value:.3g}"


def said(found: Prediction, error: Error | None, share: float | None) -> str:
    """The prediction in a sentence, which says that it is one."""
    text = f"predicted for {found.gpu}, not measured: {_us(found.us)} us with cold caches"
    if share is not None:
        text += f", {share:.0%} of the limit"
    if found.code and found.code != (arch := gpus.find(found.gpu).arch):
        text += f", from code for {found.code} in place of {arch}"
    if found.basis.kind == "published":
        return (
            f"{text}; not checked against hardware: its constants are from data sheets and publications "
            "(`rung calibrate` measures them on such a GPU)."
        )
    if found.basis.kind == "calibrated":
        return f"{text}; its constants were measured on such a GPU ({found.basis.when}), no prediction was compared."
    if error is None:
        return f"{text}; no predictions of this class ({found.kind}) have been compared with measurements."
    return (
        f"{text}; of {error.rungs} rungs of this class ({found.kind}), on which nothing was fitted, predictions are "
        f"{error.mean:.0%} off on average, 9 of 10 within {error.ninetieth:.0%}."
    )


def launches(found: Prediction) -> Table:
    rows = []
    for played, us in zip(found.launches, found.parts, strict=True):
        figures = (_us(us), f"{played.clocks:,.0f}", f"{played.config.blocks:,}", str(played.resident))
        rows.append((played.program.kernel, str(played.launches), *figures))
    heads = ("kernel", "launches", "us each", "clocks", "blocks", "at once on a multiprocessor")
    return Table(heads, rows, heads[1:])


def waits(found: Prediction) -> Table:
    """The lines at which warps spend most time, and why."""
    spent: dict[tuple[str, Place], dict[str, float]] = defaultdict(lambda: dict.fromkeys(timing.STALLS, 0.0))
    for played in found.launches:
        own = sum(map(sum, played.stalls)) or 1.0
        for place, stalls in zip(places(played.program), played.stalls, strict=True):
            for name, clocks in zip(timing.STALLS, stalls, strict=True):
                spent[played.program.kernel, place][name] += clocks / own
    most = sorted(spent, key=lambda at: -sum(spent[at].values()))[:_MOST_LINES]
    rows = []
    for kernel, (_, line) in most:
        of = spent[kernel, (_, line)]
        why = [
            (name, part)
            for name, part in sorted(of.items(), key=lambda one: -one[1])
            if name != "selected" and part >= 0.01
        ]
        if not why:
            continue
        rows.append(
            (kernel, str(line or ""), f"{sum(of.values()):.0%}", f"{why[0][0]} {why[0][1]:.0%}: {WORDS[why[0][0]]}")
        )
    return Table(("kernel", "line", "of its warps' time", "most of it"), rows, ("line", "of its warps' time"))


def as_json(found: Prediction, error: Error | None) -> dict[str, object]:
    return {
        "gpu": found.gpu, "us": found.us, "class": found.kind, "source": "predicted",
        "code": found.code, "constants": found.basis.kind, "checked_against_hardware": found.basis.kind == "compared",
        "error": error._asdict() if error and found.basis.kind == "compared" else None,
        "launches": [
            {
                "kernel": played.program.kernel, "us": us, "clocks": played.clocks, "launches": played.launches,
                "blocks": played.config.blocks, "resident": played.resident,
                "lines": _lines(played),
            }
            for played, us in zip(found.launches, found.parts, strict=True)
        ],
    }  # fmt: skip


def _lines(played: timing.Played) -> Sequence[dict[str, object]]:
    spent: dict[Place, dict[str, float]] = defaultdict(dict)
    for place, stalls in zip(places(played.program), played.stalls, strict=True):
        for name, clocks in zip(timing.STALLS, stalls, strict=True):
            if clocks:
                spent[place][name] = spent[place].get(name, 0.0) + clocks
    return [{"file": f, "line": n, "stalls": of} for (f, n), of in sorted(spent.items()) if of]
