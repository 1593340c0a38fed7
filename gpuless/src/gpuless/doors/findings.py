"""Faults as every door shows them: the lines that they name, and those that a project suppresses."""

from __future__ import annotations

import fnmatch
import tomllib
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, fields
from pathlib import Path
from typing import Any

from gpuless.base.errors import UserError

Finding = Mapping[str, Any]  # an entry of `findings` in the JSON of `gpuless run`, or a record of a fault


def places(finding: Finding) -> Iterator[tuple[str, str, int]]:
    """What each place of a finding is, its file and its line: its own first."""
    own = finding.get("place") or {}
    related = finding.get("related") or []
    others = [related] if isinstance(related, dict) else related
    every = [("here", own), *(("the other place", one) for one in others)]
    called = finding.get("called") or {}
    if launched := finding.get("launched"):
        file, _, line = launched.rpartition(":")
        called = {"file": file, "line": int(line)}
    if called and (called.get("file"), called.get("line")) != (own.get("file"), own.get("line")):
        every.append(("launched here" if own.get("kernel") else "called here", called))
    seen = set()
    for what, place in every:
        where = (str(place.get("file", "")), int(place.get("line", 0)))
        if where[0] and where[1] > 0 and where not in seen:
            seen.add(where)
            yield (what, *where)


def text_of_line(file: str, line: int) -> str:
    """A line of a source, empty where it cannot be read."""
    try:
        return Path(file).read_text(encoding="utf-8", errors="replace").splitlines()[line - 1].strip()
    except (OSError, IndexError):
        return ""


def paragraph(finding: Finding) -> str:
    """A finding with its lines, for people."""
    told = [f"{finding['kind']}: {finding['text']}"]
    told += [f"  {file}:{line}: {text_of_line(file, line)}  ({what})" for what, file, line in places(finding)]
    return "\n".join(told)


@dataclass(frozen=True)
class Suppression:
    """What a project has looked at and lets pass. Patterns are those of file names; a missing key fits all."""

    reason: str
    kind: str = "*"
    kernel: str = "*"
    file: str = "*"
    line: int = 0
    text: str = "*"

    def fits(self, finding: Finding) -> bool:
        place = finding.get("place") or {}
        lines = [(file, line) for _, file, line in places(finding)] or [("", 0)]
        return (
            fnmatch.fnmatchcase(finding["kind"], self.kind)
            and fnmatch.fnmatchcase(str(place.get("kernel", "")), self.kernel)
            and fnmatch.fnmatchcase(finding["text"], self.text)
            and any(fnmatch.fnmatch(file, self.file) and self.line in (0, line) for file, line in lines)
        )


def read_suppressions(path: Path) -> list[Suppression]:
    """The `[[suppress]]` tables of a TOML file; each has a reason."""
    try:
        tables = tomllib.loads(path.read_text(encoding="utf-8")).get("suppress", [])
    except OSError as problem:
        raise UserError(f"{path} cannot be read: {problem.strerror}.") from None
    except tomllib.TOMLDecodeError as problem:
        raise UserError(f"{path} is no TOML: {problem}.") from None
    known = {one.name for one in fields(Suppression)}
    for number, table in enumerate(tables, 1):
        if unknown := set(table) - known:
            raise UserError(f"{path}: entry {number} has unknown keys: {', '.join(sorted(unknown))}.")
        if not str(table.get("reason", "")).strip():
            raise UserError(f"{path}: entry {number} has no reason.")
    return [Suppression(**table) for table in tables]


def divided(
    findings: Sequence[Finding], suppressions: Sequence[Suppression]
) -> tuple[list[Finding], list[tuple[Finding, Suppression]]]:
    """The findings that count, and those that are suppressed, each with its entry."""
    left, passed = [], []
    for finding in findings:
        entry = next((one for one in suppressions if one.fits(finding)), None)
        if entry:
            passed.append((finding, entry))
        else:
            left.append(finding)
    return left, passed
