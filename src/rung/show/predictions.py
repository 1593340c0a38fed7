"""Predicted times of launches, and what their warps wait for, by line."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable, Sequence

from gpuless import timing
from gpuless.counts.counters import Place, places
from gpuless.facts import gpus
from rung.profile.counters import STALLS
from rung.profile.prediction import Error, Prediction, error
from rung.results import codes
from rung.results.row import Row
from rung.show.verb_tables import Table

_MOST_LINES = 8
ATOMIC_RANGE = 2e6  # clocks of the longest queue of atomics that was compared with a measurement


def _us(value: float) -> str:
    return f"{value:,.0f}" if value >= 1000 else f"{value:.3g}"


def _caches(found: Prediction) -> str:
    if all(one.profiled for one in found.launches):
        return "as Nsight Compute measures, each launch from empty caches"
    return "with cold caches, launches back to back"


def not_modelled(one: timing.SimulatedLaunch) -> str:
    """What takes time that the prediction lacks."""
    if one.together:
        return "blocks wait for each other"
    if one.contended and one.swaps:
        return "contended compare-and-swaps, which are tried again"
    return "an atomic queue beyond what was measured" if one.atomic_clocks > ATOMIC_RANGE else ""


def said(found: Prediction, known: Error | None, share: float | None) -> str:
    """The prediction in a sentence, which says that it is one."""
    text = f"predicted for {found.gpu}, not measured: {_us(found.us)} us {_caches(found)}"
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
    if known is None:
        return f"{text}; no predictions of this class ({found.kind}) have been compared with measurements."
    return (
        f"{text}; of {known.rungs} rungs of this class ({found.kind}), on which nothing was fitted, predictions are "
        f"{known.mean:.0%} off on average, 9 of 10 within {known.ninetieth:.0%}."
    )


def stored(rows: Iterable[Row]) -> dict[str, list[Row]]:
    """The newest prediction of each rung of the present code, for each GPU, number format and shape."""
    newest: dict[tuple[str, ...], Row] = {}
    for row in sorted((r for r in rows if r.kind == "prediction" and r.verdict == "ok"), key=lambda r: r.time):
        if codes.current(row):
            newest[row.what, str(row.options["predicted"]), row.dtype, row.shape] = row
    found: dict[str, list[Row]] = defaultdict(list)
    for row in newest.values():
        found[row.what].append(row)
    return found


def of_row(row: Row) -> str:
    """A stored prediction in a sentence, which says that it is one."""
    kind, gpu = str(row.detail["class"]), gpus.find(str(row.options["predicted"]))
    off = known.mean if gpu.name in timing.COMPARED and (known := error(kind)) else None
    text = f"Predicted for {gpu.name}, not measured: {_us(row.metrics['predicted_us'])} µs in {row.dtype}, {row.shape}"
    return f"{text}; such predictions ({kind}) are {off:.0%} off on average" if off is not None else text


def compared(names: Sequence[str], every: Sequence[Prediction]) -> str:
    """The second in terms of the first."""
    one, two = every
    faster = two.us <= one.us
    ratio = one.us / two.us if faster else two.us / one.us
    return f"{names[1]} is predicted to be {ratio:.2f} times as {'fast' if faster else 'slow'} as {names[0]}."


def launches(found: Prediction) -> Table:
    rows = []
    for one, us in zip(found.launches, found.parts, strict=True):
        figures = (_us(us), f"{one.clocks:,.0f}", f"{one.config.blocks:,}", str(one.resident))
        rows.append((one.program.kernel, str(one.launches), *figures, not_modelled(one)))
    heads = ("kernel", "launches", "us each", "clocks", "blocks", "at once on an SM", "not modelled")
    columns = len(heads) if any(row[-1] for row in rows) else len(heads) - 1
    return Table(heads[:columns], [row[:columns] for row in rows], heads[1:6])


def waits(found: Prediction) -> Table:
    """The lines at which warps spend most time, and why."""
    spent: dict[tuple[str, Place], dict[str, float]] = defaultdict(lambda: dict.fromkeys(timing.STALLS, 0.0))
    for one in found.launches:
        own = sum(map(sum, one.stalls)) or 1.0
        for place, stalls in zip(places(one.program), one.stalls, strict=True):
            for name, clocks in zip(timing.STALLS, stalls, strict=True):
                spent[one.program.kernel, place][name] += clocks / own
    most = sorted(spent, key=lambda at: -sum(spent[at].values()))[:_MOST_LINES]
    rows = []
    for kernel, (_, line) in most:
        of = spent[kernel, (_, line)]
        name, part = max((pair for pair in of.items() if pair[0] != "selected"), key=lambda pair: pair[1])
        if part >= 0.01:
            said = f"{name} {part:.0%}: {STALLS[name].partition(':')[0]}"
            rows.append((kernel, str(line or ""), f"{sum(of.values()):.0%}", said))
    return Table(("kernel", "line", "of its warps' time", "most of it"), rows, ("line", "of its warps' time"))


def as_json(found: Prediction, known: Error | None) -> dict[str, object]:
    return {
        "gpu": found.gpu, "us": found.us, "class": found.kind, "source": "predicted",
        "code": found.code, "constants": found.basis.kind, "checked_against_hardware": found.basis.kind == "compared",
        "error": known._asdict() if known and found.basis.kind == "compared" else None,
        "launches": [
            {
                "kernel": one.program.kernel, "us": us, "clocks": one.clocks, "launches": one.launches,
                "blocks": one.config.blocks, "resident": one.resident,
                "atomic_clocks": one.atomic_clocks, "not_modelled": not_modelled(one),
                "lines": _lines(one),
            }
            for one, us in zip(found.launches, found.parts, strict=True)
        ],
    }  # fmt: skip


def _lines(one: timing.SimulatedLaunch) -> Sequence[dict[str, object]]:
    spent: dict[Place, dict[str, float]] = defaultdict(dict)
    for place, stalls in zip(places(one.program), one.stalls, strict=True):
        for name, clocks in zip(timing.STALLS, stalls, strict=True):
            if clocks:
                spent[place][name] = spent[place].get(name, 0.0) + clocks
    return [{"file": f, "line": n, "stalls": of} for (f, n), of in sorted(spent.items()) if of]
