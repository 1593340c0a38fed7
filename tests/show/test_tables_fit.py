"""Tables on a terminal that is narrow: columns go, lines stay."""

import re

import pytest

from rung.cli import console
from verbs import rung

COLUMNS = ("rung", "arch", "dtype", "cold us", "GB/s", "what it is")
ROWS = [
    ["01_naive", "sm_90", "f32", "10.5", "411", "one thread per row, from one end to the other"],
    ["02_tree", "sm_90", "f32", "4.25", "1020", "a tree in shared memory, with a barrier for each step"],
]


def named(width: int, drop: tuple[str, ...] = ()) -> tuple[list[str], list[str], list[str]]:
    visible, same, left_out = console.fitting(COLUMNS, ROWS, width, drop)
    return [COLUMNS[i] for i in visible], [COLUMNS[i] for i in same], [COLUMNS[i] for i in left_out]


def test_a_wide_terminal_gets_every_column() -> None:
    assert named(200) == (list(COLUMNS), [], [])


def test_what_is_the_same_in_every_row_goes_first() -> None:
    assert named(60) == (["rung", "dtype", "cold us", "GB/s", "what it is"], ["arch"], [])
    assert named(52) == (["rung", "cold us", "GB/s", "what it is"], ["arch", "dtype"], [])


def test_then_go_the_columns_that_the_verb_can_spare() -> None:
    assert named(44, ("GB/s",)) == (["rung", "cold us", "what it is"], ["arch", "dtype"], ["GB/s"])
    assert named(20)[0] == ["rung", "cold us"]


@pytest.mark.parametrize("width", [80, 200])
@pytest.mark.parametrize("words", ["list", "list attention", "results --op gelu", "study"])
def test_no_line_is_longer_than_the_terminal(
    words: str, width: int, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setenv("COLUMNS", str(width))
    monkeypatch.setattr(console, "is_terminal", lambda: True)
    rung(*words.split())
    lines = re.sub(r"\x1b\[[0-9;]*m", "", capsys.readouterr().out).split("\n\n")[0].splitlines()
    assert len(lines) > 5 and max(map(len, lines)) <= width and " · " not in lines[1]


def test_help_of_a_verb_names_no_types_of_python(capsys: pytest.CaptureFixture[str]) -> None:
    rung("help", "bench")
    out = capsys.readouterr().out
    assert "--dtype <str>" in out and "list[" not in out


def test_one_rung_is_listed_alone(capsys: pytest.CaptureFixture[str]) -> None:
    rung("list", "reduce/3")
    out = capsys.readouterr().out
    assert "03_sequential" in out and "02_interleaved" not in out


@pytest.mark.parametrize(
    ("words", "message"),
    [
        ("check gelu --tune BLOCK=1000000000", "more than any kernel takes"),
        ("check gelu --seed 99999999999999999999", "--seed"),
        ("bench gelu --shape nope", "gelu has no shape 'nope'"),
        ("climb --model nope/nope/nope", "there is no folder nope/nope/nope"),
        ("generate x -m gtp2 --offline", "did you mean gpt2?"),
    ],
)
def test_foreseeable_mistakes_are_reported_at_once(words: str, message: str, capsys: pytest.CaptureFixture[str]) -> None:
    assert rung(*words.split()) == 2
    err = capsys.readouterr().err
    assert message in err and "Traceback" not in err
