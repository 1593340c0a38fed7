"""The exercises: as they are they fail at the blank, with the page's solutions they are right."""

import re
from pathlib import Path

import pytest

from rung import RungError
from rung.check.judge import check
from rung.check.report import LADDER, Report
from rung.rungs import catalogue
from rung.rungs.base import Rung

FOLDER = Path(__file__).parents[2] / "docs" / "exercises"
PAGE = (FOLDER / "README.md").read_text(encoding="utf-8")
TASKS = re.findall(r"rung check (\w+) docs/exercises/(\w+\.cu)\n.*?```text\n(.*?)```", PAGE, re.DOTALL)


def judged(rung: Rung) -> Report:
    try:
        return check(rung, "f32", device="emulator", effort=LADDER)
    except RungError as error:
        return Report(rung.full_name, "f32", "emulator", "failed", str(error))


def test_every_exercise_has_its_task() -> None:
    assert sorted(name for _, name, _ in TASKS) == sorted(p.name for p in FOLDER.glob("*.cu"))


@pytest.mark.slow
@pytest.mark.parametrize(("operation", "name", "solution"), TASKS, ids=[task[1] for task in TASKS])
def test_the_grader_refuses_blanks_and_takes_the_solution(operation: str, name: str, solution: str, tmp_path: Path) -> None:
    source = (FOLDER / name).read_text(encoding="utf-8")
    of = catalogue.operation(operation)
    untouched = judged(catalogue.rung_from_file(of, FOLDER / name))
    assert untouched.verdict == "failed" and "BLANK_" in untouched.reason
    for blank, text in re.findall(r"^(BLANK_\d): (.*)$", solution, re.MULTILINE):
        assert source.count(blank) == 1
        source = source.replace(blank, text)
    assert "BLANK" not in source
    (tmp_path / name).write_text(source)
    filled = judged(catalogue.rung_from_file(of, tmp_path / name))
    assert filled.verdict == "ok", filled.reason
