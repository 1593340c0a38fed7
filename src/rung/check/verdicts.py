"""Verdicts as rows of results: what was checked, on which device, with errors and bounds."""

from __future__ import annotations

from collections.abc import Iterable

from rung.check.report import Report
from rung.results import codes, machine
from rung.results.row import Row
from rung.rungs import identity
from rung.rungs.base import Rung


def as_result(report: Report, rung: Rung) -> Row:
    """A report as the results store keeps it."""
    figures = {
        "cases": report.cases,
        "runs": report.runs,
        "error_element": report.element,
        "error_norm": report.norm,
        "norm_cap": report.norm_cap,
        **{f"seconds_{phase}": round(seconds, 3) for phase, seconds in report.seconds.items()},
    }
    detail = {"case": report.case, "nondeterministic": report.nondeterministic, "left_out": report.left_out}
    facts = machine.facts()
    return Row(
        kind="check",
        what=report.rung,
        dtype=report.dtype,
        options={"device": report.device},
        texts={rung.full_name: identity.text(rung)},
        verdict=report.verdict,
        reason=report.reason,
        metrics={name: float(value) for name, value in figures.items() if value is not None},
        detail={name: value for name, value in detail.items() if value},
        notes=list(report.notes),
        machine=facts if report.device == "cuda" else {**facts, "gpu": ""},
    )


def known(device: str, rows: Iterable[Row]) -> set[tuple[str, str]]:
    """The rungs and number formats whose present code is known to be right on this device."""
    some = (r for r in rows if r.kind == "check" and r.options.get("device") == device and r.verdict != "failed")
    return {(r.what, r.dtype) for r in some if codes.current(r)}
