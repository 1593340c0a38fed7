"""The header's expressions: arithmetic as in Python, and nothing else."""

import pytest

from gpuless.base.expressions import evaluate, evaluate_int, names_in
from rung.errors import RungError


@pytest.mark.parametrize(
    ("text", "value"),
    [
        ("B * T", 12),
        ("ceil_div(T, 3) + 1", 3),
        ("C // 3 % 2", 1),
        ("round_up(T, 8)", 8),
        ("next_pow2(5)", 8),
        ("2 ** 3 << 1", 16),
        ("T == 4 and not B > 3", True),
        ("1 <= B < T", True),
        ("T if B == 1 else C", 9),
        ("max(B, T, C) - min(B, T)", 6),
        ("-B + abs(-T)", 1),
        ("log2(T) == 2.0 or C", True),
    ],
)
def test_values(text: str, value: object) -> None:
    assert evaluate(text, {"B": 3, "T": 4, "C": 9}) == value


@pytest.mark.parametrize(
    "text",
    [
        "__import__('os').system('true')",
        "B.real",
        "[1, 2]",
        "open('x')",
        "lambda: 1",
        "'a' * 3",
        "2 ** B",
        "1 << 100",
        "max(key=1)",
        "B[0]",
        "f'{B}'",
        "(" * 200,
        "9 ** 8 ** 8",
    ],
)
def test_everything_else_is_refused(text: str) -> None:
    with pytest.raises(RungError):
        evaluate(text, {"B": 3})


def test_an_unknown_name_is_named_with_those_that_exist() -> None:
    with pytest.raises(RungError, match=r"'TT'.*it may use B, T"):
        evaluate("B * TT", {"B": 1, "T": 2})


def test_division_by_zero_is_a_sentence() -> None:
    with pytest.raises(RungError, match="no value"):
        evaluate("B // (T - 2)", {"B": 1, "T": 2})


def test_a_fraction_is_not_a_size() -> None:
    with pytest.raises(RungError, match="whole number"):
        evaluate_int("B / 2", {"B": 3}, "grid")
    assert evaluate_int("B / 2", {"B": 4}, "grid") == 2


def test_names() -> None:
    assert names_in("ceil_div(B * T, BLOCK)") == {"B", "T", "BLOCK"}
