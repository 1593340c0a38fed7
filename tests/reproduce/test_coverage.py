"""docs/coverage.md says where each technique of the sources is found; here its words are held to account.

What is said to be there names what shows it: a rung of which a row is stored, a stored row by its file and name, or a
test. A verb or a module alone shows nothing.
"""

from __future__ import annotations

import json
import re
from dataclasses import dataclass, replace
from functools import cache
from pathlib import Path

import pytest

from rung.cli import VERBS
from rung.errors import RungError
from rung.results import sources
from rung.rungs import catalogue

ROOT = Path(__file__).parents[2]
TABLE = ROOT / "docs" / "coverage.md"
SOURCES = tuple(document.title for document in sources.documents().values())
STATES = ("there", "not measured: ", "not there: ", "background: ")


@dataclass(frozen=True)
class Row:
    """One technique of one source, what realises it, and whether that is there."""

    line: int
    source: str
    technique: str
    by: str
    state: str

    @property
    def names(self) -> list[str]:
        return re.findall(r"`([^`]+)`", self.by)


def read(text: str) -> list[Row]:
    rows, source = [], ""
    for number, line in enumerate(text.splitlines(), start=1):
        if line.startswith("## "):
            source = line.removeprefix("## ")
        elif source and line.startswith("| ") and not line.startswith(("| ---", "| section ")):
            cells = [cell.strip() for cell in line.strip("| ").split("|")]
            assert len(cells) == 4, f"line {number} has {len(cells)} cells instead of 4"
            section, technique, by, state = cells
            rows.append(Row(number, source, f"{section}: {technique}", by, state))
    return rows


@cache
def stored(file: str) -> set[str]:
    """What the rows of a file of results are of, and of its parts; those that went well."""
    path = ROOT / file
    rows = [json.loads(line) for line in path.read_text(encoding="utf-8").splitlines()] if path.is_file() else []
    right = [row for row in rows if row.get("verdict", "ok") == "ok"]
    return {"/".join(filter(None, parts)) for r in right for parts in ((r["what"],), (r["what"], r.get("part", "")))}


def shows(name: str) -> bool:
    """Whether `name` is evidence: a test, a stored row, or a rung that has one."""
    if "::" in name or "#" in name:
        return True
    if name.startswith("rung ") or name.count("/") != 1:
        return False
    try:
        rung = catalogue.find(name).full_name
    except RungError:
        return False
    return any(rung in stored(f"results/h200/{kind}.jsonl") for kind in ("bench", "check", "profile"))


def complaint(name: str) -> str | None:
    """Why `name` (a rung, a command, a test or another file) cannot be what realises something."""
    if name.startswith("rung "):
        verb = name.split()[1]
        if verb not in VERBS:
            return f"there is no verb {verb!r}"
        module = ROOT / "src" / "rung" / "cli" / f"{VERBS[verb][0]}.py"
        return None if module.exists() else f"the verb {verb!r} has no module"
    path, _, test = name.partition("::")
    if "#" in name:
        file, _, what = name.partition("#")
        return None if what in stored(file) else f"{file} has no row of {what!r} that went well"
    if path.startswith(("tests/", "src/", "docs/", "tools/", "benchmarks/", "results/")):
        if not (ROOT / path).exists():
            return f"there is no {path}"
        return None if not test or f"def {test}" in (ROOT / path).read_text() else f"{path} has no {test}"
    try:
        catalogue.find(name)
    except RungError as error:
        return str(error)
    return None


def overtaken(row: Row) -> str:
    """What is stored by now of a row that is said not to be measured."""
    named = re.findall(r"rung study ([\w-]+)", row.by + row.state) if row.state.startswith("not measured: ") else []
    return next(
        (f"results/h200/study.jsonl has {study!r}" for study in named if study in stored("results/h200/study.jsonl")),
        "",
    )


ROWS = read(TABLE.read_text(encoding="utf-8"))


@pytest.mark.parametrize("row", ROWS, ids=lambda row: f"line{row.line}")
def test_evidence_of_the_coverage_table_exists(row: Row) -> None:
    assert row.state.startswith(STATES), f"line {row.line}: the state {row.state!r} is none of {STATES}"
    if row.state != "there":
        assert row.state.split(": ", 1)[1], f"line {row.line} gives no reason"
        assert not overtaken(row), f"line {row.line} ({row.technique}) is said to be {row.state}, but {overtaken(row)}"
        return
    assert row.names, f"line {row.line} ({row.technique}) names nothing"
    assert any(map(shows, row.names)), f"line {row.line} ({row.technique}) names no stored row and no test"
    wrong = {name: why for name in row.names if (why := complaint(name)) is not None}
    assert not wrong, f"line {row.line} ({row.technique}): {wrong}"


def test_a_study_that_was_run_is_not_called_unmeasured() -> None:
    row = Row(1, "", "", "`rung study waves`", "not measured: `rung study waves` would store it")
    assert overtaken(row) == "results/h200/study.jsonl has 'waves'"
    assert not overtaken(replace(row, by="`rung study tides`", state="not measured: not run")), "no such row"


def test_every_source_is_covered() -> None:
    assert {row.source for row in ROWS} == set(SOURCES)


@pytest.mark.parametrize(
    "name",
    [
        "copy/99_nowhere",
        "nothing/01_naive",
        "rung fly",
        "tests/test_nothing.py",
        "tests/reproduce/test_coverage.py::test_no",
        "results/h200/study.jsonl#tides",
    ],
)
def test_a_name_that_does_not_exist_is_noticed(name: str) -> None:
    assert complaint(name) is not None


@pytest.mark.parametrize(
    "name",
    [
        "copy/01_strided",
        "rung check copy",
        "tests/reproduce/test_coverage.py",
        "pointwise/torch.compile",
        "results/h200/study.jsonl#waves",
        "results/h200/parallel.jsonl#attention/pipeline",
    ],
)
def test_a_name_that_exists_passes(name: str) -> None:
    assert complaint(name) is None


@pytest.mark.parametrize(
    ("name", "evidence"),
    [
        ("rung profile", False), ("src/rung/models/cache.py", False), ("docs/beyond.md", False), ("copy/99_nowhere", False),
        ("copy/01_strided", True), ("results/h200/study.jsonl#waves", True), ("tests/test_a.py::test_b", True),
    ],
)  # fmt: skip
def test_a_verb_or_a_module_shows_nothing_by_itself(name: str, evidence: bool) -> None:
    assert shows(name) == evidence
