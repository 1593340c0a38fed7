"""Verdicts of `rung check` as lines: the verdict first, then FILE:LINE: kind: what is wrong, expected and actual, and
under which conditions; on a terminal one screen of its width."""

from __future__ import annotations

import json
import textwrap
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

from gpuless.base.files import read_text
from rung.check.report import admitted_by, right_where
from rung.explain.diagnosis import Diagnosis
from rung.show.verb_tables import cases_left_out

if TYPE_CHECKING:
    from rung.check.report import Report

INDENT = "    "


def head(name: str, dtype: str, cases: float, element: float, verdict: str, remark: str = "") -> str:
    """The first line; names and formats come padded to one width."""
    error = f"{element:.3f} of bound" if verdict == "ok" else ""
    count = f"{cases:>2.0f} case{'s' if cases != 1 else ''}" if cases else ""
    return f"{verdict:6}  {name}  {dtype}  {count:8}  {error:14}  {remark}".rstrip()


def lines(report: Report, name: int, dtype: int, *, file: Path | None = None, width: int = 0) -> Iterator[str]:
    """A verdict; `name` and `dtype` are widths of columns. A width of 0 does not wrap."""
    padded = f"{report.rung:{name}}", f"{report.dtype:{dtype}}"
    yield head(*padded, report.cases, report.element, report.verdict)
    for text in _body(report, file):
        yield from wrapped(text, width)


def _body(report: Report, file: Path | None) -> Iterator[str]:
    if report.reason:
        yield _reason(report, file)
    if report.verdict == "failed":
        yield from _quoted(report)
        yield from _failure(report)
    elif report.case:
        yield f"in case {report.case!r}"
    if report.nondeterministic:
        yield "nondeterministic: two runs differ in a bit"
    if report.unreached:
        yield f"{len({(p.file, p.line) for p in report.unreached})} lines not reached"
    if report.tunings:
        yield f"{report.tunings} other tunings"
    yield from report.notes
    if report.left_out and not report.reason:
        yield cases_left_out(report.rung, report.left_out)


def _quoted(report: Report) -> Iterator[str]:
    """The lines that the reason names, with their text."""
    places = {(str(p["file"]), int(p["line"])) for p in (report.place, *report.related) if {"file", "line"} <= {*p}}
    for name, number in sorted(places):
        source = read_text(Path(name)).splitlines() if Path(name).is_file() else []
        if number <= len(source):
            yield f"{number:>4} | {source[number - 1].strip()}"


def _reason(report: Report, file: Path | None) -> str:
    """What is wrong, after its place."""
    where, kind = _place(report.place, file), report.cause or ""
    text = report.reason.removeprefix(f"{report.place.get('file', file)}: ")
    if file is not None:
        text = text.removeprefix(f"{file}: ").removeprefix(f"{file.name}: ")
    front = ": ".join(part for part in (where, kind if kind not in ("call", text) else "") if part)
    return f"{front}: {text}" if front else text


def _place(place: Mapping[str, Any], file: Path | None) -> str:
    """FILE:LINE, as editors read it."""
    known = place.get("file") or file
    if file is not None and known and Path(known).name == file.name:
        known = file
    if not known:
        return ""
    return f"{known}:{place['line']}" if "line" in place else str(known)


def _failure(report: Report) -> Iterator[str]:
    """Expected and actual with their neighbours, then the call, then what separates it from right calls."""
    failure = report.failure
    if "map" in failure:
        yield from Diagnosis.from_json(failure).lines()
        if "admitted_by" in failure:
            yield admitted_by(failure["admitted_by"])
    case = f"case {report.case!r}: " if report.case else ""
    if failure:
        facts = " ".join(f"{n}={v:g}" for n, v in {**failure["dims"], **failure["scalars"]}.items())
        without = f", without {' and '.join(failure['without'])}" if failure["without"] else ""
        yield f"{case}at {facts}, {failure['dtype']}{without}"
        if failure["without"]:
            yield f"a kernel for calls with it alone has the header's line needs = {json.dumps(failure['without'])}"
    elif case:
        yield f"in {case.rstrip(': ')}"
    if needs := failure.get("needs"):
        yield right_where(needs, report.place)


def wrapped(text: str, width: int) -> Iterator[str]:
    for part in text.split("\n"):
        if width and len(INDENT) + len(part) > width:
            deeper = INDENT + " " * (len(part) - len(part.lstrip()) + 2)
            yield from textwrap.wrap(
                part, width, initial_indent=INDENT, subsequent_indent=deeper, break_on_hyphens=False,
                break_long_words=False,
            )  # fmt: skip
        else:
            yield INDENT + part


def gcc(report: Report, file: Path | None) -> Iterator[str]:
    """FILE:LINE: error: ..., a line each, as gcc writes it; a note for each related place."""
    if report.verdict == "ok":
        return
    level = "error" if report.verdict == "failed" else "warning"
    text = " ".join(_reason(report, None).split()).removeprefix(f"{report.place.get('file', '')}: ")
    text = text.removeprefix(f"{_place(report.place, None)}: ")
    at = " ".join(f"{n}={v:g}" for n, v in report.failure.get("dims", {}).items())
    yield f"{_place(report.place, file) or report.rung}: {level}: {text}{f' (at {at})' if at else ''}"
    for one in report.related:
        yield f"{_place(one, file)}: note: the other access"


def of_kernels(reports: Sequence[Report], others: Mapping[str, str]) -> list[dict[str, str]]:
    """Each kernel of a file, its verdict, and the reason where it has none: for the document."""
    worst: dict[str, Report] = {}
    for report in reports:
        for kernel in report.kernels:
            before = worst.get(kernel)
            worst[kernel] = report if before is None or _badness(report) > _badness(before) else before
    judged = [{"kernel": kernel, "verdict": r.verdict, "rung": r.rung} for kernel, r in worst.items()]
    return judged + [{"kernel": k, "verdict": "not judged", "reason": why} for k, why in others.items()]


def _badness(report: Report) -> int:
    return {"ok": 0, "failed": 2}.get(report.verdict, 1)


def kernels(reports: Sequence[Report], others: Mapping[str, str], width: int) -> Iterator[str]:
    """A line for each kernel of a file whose verdict has no line of its own."""
    several = {kernel for report in reports if len(report.kernels) > 1 for kernel in report.kernels}
    every = [one for one in of_kernels(reports, others) if one["kernel"] in several or one["kernel"] in others]
    if every:
        yield ""
    for one in every:
        why = f": {one['reason']}" if one.get("reason") else ""
        told = f"{one['kernel']}: {one['verdict']}{why}"
        yield from (line.removeprefix(INDENT) for line in wrapped(told, width + len(INDENT) if width else 0))
