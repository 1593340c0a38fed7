"""The outputs in README.md and in docs/counters.md are what their commands print."""

import re
from pathlib import Path

import pytest

from rung.learn import exercises, find
from verbs import rung

ROOT = Path(__file__).parents[2]
README, COUNTERS = ((ROOT / name).read_text(encoding="utf-8") for name in ("README.md", "docs/counters.md"))
SHOWN = re.findall(r"```\n\$ rung ([^\n]+)\n(.*?)```", README + COUNTERS, re.DOTALL)


@pytest.mark.parametrize(("command", "shown"), SHOWN, ids=[command for command, _ in SHOWN])
def test_an_output_is_what_is_printed(
    command: str, shown: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setenv("RUNG_RESULTS", str(tmp_path / "results.jsonl"))
    monkeypatch.chdir(tmp_path)
    if command.startswith("learn"):
        exercise = find(command.split()[1])
        (tmp_path / exercise.file).write_text(exercise.source)
    rung(*command.split())
    printed = capsys.readouterr().out
    wanted = [" ".join(shown.split())] if command.startswith("learn") else shown.splitlines()
    assert all(" ".join(line.split()) in " ".join(printed.split()) for line in wanted), printed


def test_the_number_of_exercises_is_right() -> None:
    assert len(SHOWN) == 2
    assert f"{len(exercises())} exercises" in README
