"""Variables without a first value: which are given one for trials."""

import pytest

from rung.learn.checked import UNSET, with_unset_variables

NAN, PATTERN = UNSET["float"], UNSET["int"]


@pytest.mark.parametrize(
    ("before", "after"),
    [
        ("void k() { float a; }", f"void k() {{ float a = {NAN}; }}"),
        ("void k() { int n = 1, i, j = f(2, 3); }", f"void k() {{ int n = 1, i = {PATTERN}, j = f(2, 3); }}"),
        ("void k() { float d[4], m = 0; }", f"void k() {{ float d[4], m = 0; for (auto& one_ : d) one_ = {NAN}; }}"),
        ("void k() { if (x) { float d[2][3]; } }",
         f"void k() {{ if (x) {{ float d[2][3]; for (auto& row1_ : d) for (auto& one_ : row1_) one_ = {NAN}; }} }}"),
    ],
)  # fmt: skip
def test_a_local_variable_without_a_value_gets_one(before: str, after: str) -> None:
    assert with_unset_variables(before) == after


@pytest.mark.parametrize(
    "text",
    [
        "float global; struct Pair { float value; int index; };",
        "void k() { struct Pair { float value; }; __shared__ float s[32]; extern __shared__ int e[]; static int once; }",
        "void k(float x, int n) { for (int i = 0; i < n; i++) x += i; float* p; float d[4] = {}; float y{}; }",
        '/*---\nidea = "; float a;"\n---*/ // ; float b;\n',
    ],
)
def test_other_declarations_stay(text: str) -> None:
    assert with_unset_variables(text) == text
