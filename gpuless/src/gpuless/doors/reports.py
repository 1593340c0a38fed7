"""Reports of a run in the forms that other tools read: SARIF, JUnit, GitHub's annotations; coverage as lcov and
Cobertura (coverage_files.py). docs/doors.md has the options."""

from __future__ import annotations

import argparse
import hashlib
import json
import os
import tempfile
import xml.etree.ElementTree as xml
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

from gpuless.base.errors import MEANINGS
from gpuless.doors import findings

if TYPE_CHECKING:
    from gpuless.program import execution

_SARIF = "https://docs.oasis-open.org/sarif/sarif/v2.1.0/errata01/os/schemas/sarif-schema-2.1.0.json"
Finding = findings.Finding


def add_options(parser: argparse.ArgumentParser) -> None:
    group = parser.add_argument_group("reports")
    group.add_argument("--sarif", metavar="FILE", help="faults for code scanning and editors (SARIF 2.1.0)")
    group.add_argument("--junit", metavar="FILE", help="kernels as test cases (JUnit's XML)")
    group.add_argument("--lcov", metavar="FILE", help="coverage of device code by line and branch")
    group.add_argument("--cobertura", metavar="FILE", help="the same as Cobertura's XML")
    group.add_argument("--suppress", metavar="FILE", help="faults to pass over, in TOML, each with its reason")


@dataclass
class Reports:
    """What is asked for, and what is suppressed."""

    options: argparse.Namespace
    suppressions: Sequence[findings.Suppression]
    counts: Path | None  # a folder with a file for each process
    passed: list[tuple[Finding, findings.Suppression]] = field(default_factory=list)

    def execution(self, how: execution.Execution) -> execution.Execution:
        """What the reports need beside: counts, and the programs' own exit codes where faults may be suppressed."""
        return replace(how, counts=self.counts, own_code=bool(self.suppressions))

    def judged(self, code: int, found: Sequence[Finding], records: Sequence[Finding]) -> tuple[int, list[Finding]]:
        """The exit code and the findings without what is suppressed."""
        left, passed = findings.divided(found, self.suppressions)
        self.passed += passed
        counted, _ = findings.divided([one for one in records if one["record"] == "fault"], self.suppressions)
        return code or min((one["exit"] for one in counted), default=0), left

    def write(
        self, command: Sequence[str], code: int, found: Sequence[Finding], kernels: Sequence[Mapping[str, Any]]
    ) -> None:
        if self.options.sarif:
            _write(self.options.sarif, json.dumps(sarif(command, code, found, self.passed), indent=1))
        if self.options.junit:
            _write(self.options.junit, junit(command, found, kernels))
        if self.counts:
            from gpuless.doors import coverage_files

            covered = coverage_files.read(self.counts)
            if self.options.lcov:
                _write(self.options.lcov, coverage_files.lcov(covered))
            if self.options.cobertura:
                _write(self.options.cobertura, coverage_files.cobertura(covered))
        if os.environ.get("GITHUB_ACTIONS") == "true":
            print(*map(annotation, found), sep="\n", end="\n" if found else "", flush=True)


@contextmanager
def asked(options: argparse.Namespace) -> Iterator[Reports]:
    """Inside there is a folder for counts."""
    suppressions = findings.read_suppressions(Path(options.suppress)) if options.suppress else []
    with tempfile.TemporaryDirectory(prefix="gpuless-counts-") as folder:
        yield Reports(options, suppressions, Path(folder) if options.lcov or options.cobertura else None)


def _write(path: str, text: str) -> None:
    Path(path).parent.mkdir(parents=True, exist_ok=True)
    Path(path).write_text(text, encoding="utf-8")


def relative(file: str) -> str:
    """A file as reports name it: below the present folder if it lies there."""
    path = Path(file)
    try:
        return path.resolve().relative_to(Path.cwd()).as_posix() if path.is_absolute() else path.as_posix()
    except ValueError:
        return path.as_posix()


def _location(what: str, file: str, line: int) -> dict[str, Any]:
    where = relative(file)
    artifact = {"uri": Path(where).as_uri()} if where.startswith("/") else {"uri": where, "uriBaseId": "%SRCROOT%"}
    physical = {"artifactLocation": artifact, "region": {"startLine": line}}
    return {"physicalLocation": physical, "message": {"text": what}}


def sarif(
    command: Sequence[str], code: int, found: Sequence[Finding], passed: Sequence[tuple[Finding, findings.Suppression]]
) -> dict[str, Any]:
    """A log of SARIF 2.1.0 with one run; what is suppressed stands in it with its reason."""
    every = [(one, None) for one in found] + list(passed)
    kinds = sorted({one["kind"] for one, _ in every})
    results = []
    for one, entry in every:
        located = [_location(*place) for place in findings.places(one)]
        lines = (f"{relative(file)}:{findings.text_of_line(file, line)}" for _, file, line in findings.places(one))
        marks = "|".join([one["kind"], *lines])  # the same where lines have moved
        result = {
            "ruleId": one["kind"],
            "ruleIndex": kinds.index(one["kind"]),
            "level": "error",
            "message": {"text": one["text"]},
            "locations": located[:1],
            "partialFingerprints": {"gpuless/v1": hashlib.sha256(marks.encode()).hexdigest()},
        }
        if located[1:]:
            result["relatedLocations"] = [{"id": n, **place} for n, place in enumerate(located[1:], 1)]
        if entry:
            result["suppressions"] = [{"kind": "external", "justification": entry.reason}]
        results.append(result)
    described = ((kind, MEANINGS.get(kind, f"A fault of the kind {kind}.")) for kind in kinds)
    rules = [{"id": kind, "shortDescription": {"text": text}} for kind, text in described]
    run = {
        "tool": {"driver": {"name": "gpuless", "informationUri": "https://github.com/rung-gpu/rung", "rules": rules}},
        "invocations": [{"executionSuccessful": code == 0, "exitCode": code, "commandLine": " ".join(command)}],
        "originalUriBaseIds": {"%SRCROOT%": {"uri": Path.cwd().as_uri() + "/"}},
        "results": results,
    }
    return {"$schema": _SARIF, "version": "2.1.0", "runs": [run]}


def junit(command: Sequence[str], found: Sequence[Finding], kernels: Sequence[Mapping[str, Any]]) -> str:
    """Each kernel is a test case, and so is the program, which has the faults of no kernel."""
    name = Path(command[0]).name
    seconds: dict[str, float] = {}
    for one in kernels:
        seconds[one["kernel"]] = seconds.get(one["kernel"], 0.0) + one["seconds"]
    of: dict[str, list[Finding]] = {kernel: [] for kernel in (*seconds, name)}
    for one in found:
        of.setdefault(str((one.get("place") or {}).get("kernel", name)), []).append(one)
    failed = sum(bool(faults) for faults in of.values())
    facts = {"name": "gpuless", "tests": str(len(of)), "failures": str(failed), "errors": "0", "skipped": "0"}
    suite = xml.Element("testsuite", facts | {"time": f"{sum(seconds.values()):.6f}"})
    for kernel, faults in of.items():
        case = xml.SubElement(suite, "testcase", classname=name, name=kernel, time=f"{seconds.get(kernel, 0):.6f}")
        if faults:
            kinds = ", ".join(sorted({one["kind"] for one in faults}))
            failure = xml.SubElement(case, "failure", type=kinds, message=_printable(faults[0]["text"]))
            failure.text = _printable("\n".join(map(findings.paragraph, faults)))
    top = xml.Element("testsuites")
    top.append(suite)
    return xml.tostring(top, encoding="unicode", xml_declaration=True) + "\n"


def _printable(text: str) -> str:
    """XML has no control characters."""
    return "".join(letter if letter >= " " or letter in "\t\n" else "?" for letter in text)


def annotation(finding: Finding) -> str:
    """A workflow command by which GitHub shows the finding at its line."""

    def escaped(text: str, more: str = "") -> str:
        for letter in "%\r\n" + more:
            text = text.replace(letter, f"%{ord(letter):02X}")
        return text

    where = ""
    lines = list(findings.places(finding))
    if lines:
        _, file, line = lines[0]
        where = f"file={escaped(relative(file), ':,')},line={line},"
    others = "".join(f"\n{what}: {relative(file)}:{line}" for what, file, line in lines[1:])
    title = f"gpuless%3A {escaped(finding['kind'], ':,')}"
    return f"::error {where}title={title}::{escaped(finding['text'] + others)}"
