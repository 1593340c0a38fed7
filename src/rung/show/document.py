"""The JSON document of `rung check`, `run`, `inspect` and `count`: one shape, described by document.schema.json."""

from __future__ import annotations

import re
import shlex
from collections.abc import Callable, Iterable, Sequence
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from rung.check.report import Report

SCHEMA = "rung/1"  # the number changes when a key changes its meaning
_VERDICTS = {0: "ok", 2: "refused", 3: "not judged", 130: "stopped"}  # by exit code
_LINE = re.compile(r"([^\s:(',]+\.\w+)(?::|, line |\()(\d+)|, line (\d+)")
_INDEX = re.compile(r"(block|thread) \((\d+), (\d+), (\d+)\)")
_KERNEL = re.compile(r"kernel '([^']+)'")
_FILE = re.compile(r"\s*([^\s:]+\.(?:cu|cuh|py)):? ")


def document(
    verb: str,
    code: int,
    results: Sequence[Any] = (),
    findings: Iterable[dict[str, Any]] = (),
    notes: Iterable[str] = (),
    **more: Any,
) -> dict[str, Any]:
    """What a verb has found. A `code` of 1 and those of programs are verdicts of "failed"."""
    verdict = _VERDICTS.get(code, "failed")
    head = {"schema": SCHEMA, "verb": verb, "verdict": verdict, "exit": code}
    return {**head, "findings": [*findings], "results": [*results], "notes": [*notes], **more}


def finding(kind: str, text: str, repeat: Sequence[object] = (), **more: Any) -> dict[str, Any]:
    """Something that is wrong. The place is read from the text, whose form is that of the emulator and of compilers;
    further places in it are related (what a race is with, where memory was allocated)."""
    file = (found := _FILE.match(text)) and found[1]
    places = [{"file": m[1] or file, "line": int(m[2] or m[3])} for m in _LINE.finditer(text) if m[1] or file]
    where: dict[str, Any] = dict(places[0]) if places else {"file": file} if file else {}
    if kernel := _KERNEL.search(text):
        where["kernel"] = kernel[1]
        for name, *index in _INDEX.findall(text):
            where.setdefault(name, [int(i) for i in index])
    command = shlex.join(["rung", *map(str, repeat)]) if repeat else ""
    more = {"place": where, "related": places[1:], **more, "repeat": command}
    return {"kind": kind or "error", "text": text, **{name: value for name, value in more.items() if value}}


_TOLD: tuple[str, ...] = ("reason", "cause", "case", "failure", "place", "related")  # of a report, by its finding


def of_reports(
    code: int, reports: Sequence[Report], repeat: Callable[[Report], list[object]], device: str,
    missed: Sequence[str] = (), notes: Sequence[str] = (), *, complete: bool = True, **more: Any,
) -> dict[str, Any]:  # fmt: skip
    """The reports as JSON: what is wrong, missed goals too, is apart from what was done."""
    found: list[dict[str, Any]] = []
    for r in (r for r in reports if r.verdict != "ok"):
        facts = dict(r.failure)
        case = {"name": r.case, "values": facts.pop("dims", {}) | facts.pop("scalars", {})}
        case |= {"dtype": facts.pop("dtype", r.dtype), "without": facts.pop("without", [])}
        facts_of: dict[str, Any] = {"about": f"{r.rung} {r.dtype}", "case": case if r.case else {}, "evidence": facts}
        if r.place:
            facts_of |= {"place": r.place, "related": r.related}
        found.append(finding(r.cause or r.verdict, r.reason, repeat(r), **facts_of))
    found += [finding("goal", line, repeat(reports[0])) for line in missed]
    rows = [{n: v for n, v in r.as_json().items() if n not in _TOLD} for r in reports]
    return document("check", code, rows, found, notes, device=device, complete=complete, **more)
