"""What the report's plots draw: plain data that report.js gives to Chart.js."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from rung.profile import roofline
from rung.results.current import Figures, Ladder, bound_of, label, percent, time_text, unit_of
from rung.results.row import Row
from rung.show import model_chart
from rung.show.report.markup import unit
from rung.sweep.summary import Finding


def ladder(measured: Ladder, found: Figures) -> dict[str, Any]:
    """Every rung and library at every shape and number format, and the limits above them."""
    columns = [measured.column(d, s) for d in measured.dtypes() for s in measured.shapes(d)]
    bound = bound_of(measured)
    placed = roofline.place([f for column in columns for f in column], found.of_kind("profile"))
    places = {id(p.figure): p for p in placed}
    return {
        "kind": "ladder",
        "of": measured.operation.name,
        "unit": unit_of(bound),
        "bytes": found.limits.bytes,
        "flops": {d: found.limits.flops[d] for d in measured.dtypes() if found.limits.flops.get(d)},
        "compute": bound == "compute",
        "points": [
            {
                "name": label(figure.name),
                "dtype": figure.row.dtype,
                "shape": figure.row.shape,
                "speed": _short(figure.row.metrics["tflops" if bound == "compute" else "gbps"]),
                "told": f"{time_text(figure.us)} µs, {percent(figure.share)}",
                **({"library": True} if figure.library else {}),
                **({"at": [_short(p.intensity), _short(p.rate)]} if (p := places.get(id(figure))) else {}),
            }
            for column in columns
            for figure in column
        ],
    }


def _short(value: float) -> float:
    """Four digits, which a plot shows at most."""
    return float(f"{value:.4g}")


def model(steps: Sequence[Row]) -> dict[str, Any]:
    """Tokens per second of a model, step by step."""
    return {
        "kind": "model",
        "steps": [
            {
                "name": row.part.replace("_", " "),
                "dtype": row.dtype,
                "colour": model_chart.COLOURS[row.dtype],
                "rate": model_chart.rate(row),
                "told": row.detail["idea"],
            }
            for row in steps
        ],
    }


def study(found: Mapping[str, Any]) -> dict[str, Any]:
    """The curves of a study."""
    axes = found["axes"]
    series = [s for s in found["series"] if any(y is not None for _, y in s["points"])]
    return _curves(series, axes["x"], axes["y"], axes["log_x"], axes["log_y"]) if series else {}


def sweep(findings: Sequence[Finding], label: str) -> dict[str, Any]:
    """The best time of each value of each tunable."""
    series = [{"label": f.tunable, "points": [(float(v), y) for v, y in f.points], "dashed": False} for f in findings]
    positive = all(v > 0 for f in findings for v, _ in f.points)
    return _curves(series, "value of the tunable", label, positive, False)


def _curves(series: Sequence[Mapping[str, Any]], x: str, y: str, log_x: bool, log_y: bool) -> dict[str, Any]:
    points = [p for s in series for p in s["points"]]
    log_x &= min(p[0] for p in points) > 0
    return {"kind": "curves", "x": unit(x), "y": unit(y), "log_x": log_x, "log_y": log_y, "series": list(series)}
