"""The exercises, through the command line: a start fails, hints open one after the other, solutions are right and meet goals."""

import json
from pathlib import Path

import pytest

from rung.cli import main
from rung.learn import BLANK, Exercise, exercises
from rung.rungs import catalogue

EVERY = exercises()
QUICK = (1, 14)


@pytest.fixture(autouse=True)
def own_record(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("RUNG_RESULTS", str(tmp_path / "results.jsonl"))
    monkeypatch.chdir(tmp_path)


def rung(*words: str) -> int:
    with pytest.raises(SystemExit) as ended:
        main(list(words))
    return int(ended.value.code or 0)


def test_there_are_four_in_each_of_six_chapters() -> None:
    assert [e.number for e in EVERY] == list(range(1, 25))
    assert [EVERY[i].chapter for i in range(0, 24, 4)] == list(dict.fromkeys(e.chapter for e in EVERY))


@pytest.mark.parametrize("exercise", EVERY, ids=lambda e: e.name)
def test_an_exercise_is_whole(exercise: Exercise) -> None:
    blanks = BLANK.findall(exercise.source)
    assert sorted(blanks) == sorted(exercise.solution) and len(exercise.hints) == 3
    assert all(catalogue.find(name) for name in exercise.story)
    assert f"Exercise {exercise.number}:" in exercise.source
    assert exercise.answers(exercise.solved) == {b: " ".join(t.split()) for b, t in exercise.solution.items()}
    for fill, sentence in exercise.mistakes:
        wrong = BLANK.sub(lambda blank: {**exercise.solution, **fill}[blank[0]], exercise.source)  # noqa: B023
        assert exercise.mistake(wrong) == sentence != exercise.mistake(exercise.solved)


def test_hints_open_one_after_the_other(capsys: pytest.CaptureFixture[str]) -> None:
    for count in (1, 2, 3, 3):
        assert rung("hint", "3") == 0
        out = capsys.readouterr().out
        assert [hint in out for hint in EVERY[2].hints] == [i < count for i in range(3)]


@pytest.mark.slow
def test_an_exercise_is_written_once_and_its_blanks_fail(tmp_path: Path, capfd: pytest.CaptureFixture[str]) -> None:
    assert rung("learn", "1") == 0
    path = tmp_path / "01_index.cu"
    assert path.read_text() == EVERY[0].source
    assert rung("learn", "1") == 1
    assert "BLANK_" in "".join(capfd.readouterr())
    path.write_text(EVERY[0].source.replace("BLANK_1", "threadIdx.x").replace("BLANK_2", EVERY[0].solution["BLANK_2"]))
    assert rung("learn", "1") == 1
    assert EVERY[0].mistakes[1][1] in capfd.readouterr().out and path.read_text() != EVERY[0].source


@pytest.mark.slow
@pytest.mark.parametrize("exercise", EVERY, ids=lambda e: e.name)
def test_the_solution_is_right_and_counted_as_solved(
    exercise: Exercise, tmp_path: Path, capfd: pytest.CaptureFixture[str]
) -> None:
    (tmp_path / f"{exercise.name}.cu").write_text(exercise.source)
    assert rung("learn", str(exercise.number)) == 1
    (tmp_path / f"{exercise.name}.cu").write_text(exercise.solved)
    code = rung("learn", str(exercise.number))
    assert code == 0, "".join(capfd.readouterr())
    capfd.readouterr()
    assert rung("learn", "--json") == 0
    rows = json.loads(capfd.readouterr().out)
    assert [r["number"] for r in rows if r["solved"]] == [exercise.number]


@pytest.mark.slow
@pytest.mark.parametrize("exercise", [e for e in EVERY if e.goal], ids=lambda e: e.name)
def test_a_right_kernel_that_misses_the_goal_is_not_solved(exercise: Exercise, tmp_path: Path) -> None:
    slow = [fill for fill, sentence in exercise.mistakes if "and slow" in sentence]
    for fill in slow:
        wrong = BLANK.sub(lambda blank: {**exercise.solution, **fill}[blank[0]], exercise.source)  # noqa: B023
        (tmp_path / f"{exercise.name}.cu").write_text(wrong)
        assert rung("check", exercise.operation, f"{exercise.name}.cu", "--dtype", exercise.dtype) == 0
        assert rung("learn", str(exercise.number)) == 1
