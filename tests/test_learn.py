"""The exercises, through the command line: a start fails, hints open one after the other, solutions are right and meet goals."""

import json
from pathlib import Path
from typing import Any

import pytest

from rung.cli import main
from rung.learn import BLANK, PER_CHAPTER, Exercise, exercises
from rung.rungs import catalogue

EVERY = exercises()


@pytest.fixture(autouse=True)
def own_record(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("RUNG_RESULTS", str(tmp_path / "results.jsonl"))
    monkeypatch.chdir(tmp_path)


def rung(*words: str) -> int:
    with pytest.raises(SystemExit) as ended:
        main(list(words))
    return int(ended.value.code or 0)


def graded(exercise: Exercise, code: int, capfd: pytest.CaptureFixture[str]) -> dict[str, Any]:
    """What `rung learn NUMBER --json` prints."""
    capfd.readouterr()
    ended = rung("learn", str(exercise.number), "--json")
    out, log = capfd.readouterr()
    assert ended == code, out + log
    return dict(json.loads(out))


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


@pytest.mark.parametrize("exercise", EVERY, ids=lambda e: e.name)
def test_an_exercise_is_written_once_and_a_start_is_told_its_blanks(
    exercise: Exercise, tmp_path: Path, capfd: pytest.CaptureFixture[str]
) -> None:
    assert graded(exercise, 0, capfd)["state"] == "begun"
    path = tmp_path / f"{exercise.name}.cu"
    assert path.read_text() == exercise.source
    for left in (sorted(exercise.solution), sorted(exercise.solution)[1:]):
        found = graded(exercise, 1, capfd)
        assert found["state"] == "blank" and found["blanks"] == left and all(b in found["says"] for b in left)
        path.write_text(path.read_text().replace("BLANK_1", exercise.solution["BLANK_1"]))
        if len(exercise.solution) == 1:
            break


@pytest.mark.parametrize(
    "exercise",
    [pytest.param(e, marks=pytest.mark.slow if n % 3 else [], id=e.name) for n, e in enumerate(EVERY[1::PER_CHAPTER])],
)
def test_a_chapter_has_a_solution_that_is_right_at_first_sight(exercise: Exercise, tmp_path: Path) -> None:
    (tmp_path / f"{exercise.name}.cu").write_text(exercise.solved)
    assert rung("check", exercise.operation, f"{exercise.name}.cu", "--dtype", exercise.dtype, "--quick") == 0


@pytest.mark.slow
@pytest.mark.parametrize("exercise", EVERY, ids=lambda e: e.name)
def test_a_start_does_not_compile(exercise: Exercise, tmp_path: Path, capfd: pytest.CaptureFixture[str]) -> None:
    (tmp_path / f"{exercise.name}.cu").write_text(exercise.source)
    assert rung("check", exercise.operation, f"{exercise.name}.cu", "--dtype", exercise.dtype, "--json") == 1
    (report,) = json.loads(capfd.readouterr().out)["reports"]
    assert report["verdict"] == "failed" and any(blank in report["reason"] for blank in exercise.solution)


@pytest.mark.slow
@pytest.mark.parametrize("exercise", EVERY, ids=lambda e: e.name)
def test_the_solution_is_right_and_counted_as_solved(
    exercise: Exercise, tmp_path: Path, capfd: pytest.CaptureFixture[str]
) -> None:
    (tmp_path / f"{exercise.name}.cu").write_text(exercise.solved)
    assert graded(exercise, 0, capfd)["state"] == "solved"
    assert rung("learn", "--json") == 0
    rows = json.loads(capfd.readouterr().out)
    assert [r["number"] for r in rows if r["solved"]] == [exercise.number]


MISTAKES = [(e, fill, sentence) for e in EVERY for fill, sentence in e.mistakes]


@pytest.mark.slow
@pytest.mark.parametrize(("exercise", "fill", "sentence"), MISTAKES, ids=[f"{e.name}-{i}" for i, (e, *_) in enumerate(MISTAKES)])
def test_a_mistake_of_learners_fails_and_gets_its_sentence(
    exercise: Exercise, fill: dict[str, str], sentence: str, tmp_path: Path, capfd: pytest.CaptureFixture[str]
) -> None:
    state = "slow" if "and slow" in sentence else "solved" if "and waits" in sentence else "wrong"
    wrong = BLANK.sub(lambda blank: {**exercise.solution, **fill}[blank[0]], exercise.source)
    (tmp_path / f"{exercise.name}.cu").write_text(wrong)
    found = graded(exercise, int(state != "solved"), capfd)
    assert (found["state"], found["says"]) == (state, sentence)
