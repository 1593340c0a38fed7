"""`rung new`: the copy is checked as it stands, and is a rung of its own."""

from __future__ import annotations

from pathlib import Path

import pytest

from rung.rungs import catalogue
from verbs import rung


@pytest.mark.parametrize(
    ("source", "file", "of"),
    [
        ("residual/2", "mine.cu", "residual/2"),
        ("residual/4", "mine.py", "residual/4"),
        ("residual", "mine.py", "residual/4"),
        ("residual/2", "mine.py", "residual/2"),
        ("softmax", "mine", "softmax/1"),
        ("softmax", "10_mine.cu", "softmax/1"),
    ],
)
def test_a_copy_names_its_parent_and_leaves_its_place_in_models(
    source: str, file: str, of: str, tmp_path: Path
) -> None:
    assert rung("new", source, str(tmp_path / file)) == 0
    operation = source.partition("/")[0]
    parent = catalogue.find(of)
    copy = catalogue.rung_from_file(catalogue.operation(operation), next(tmp_path.iterdir()))
    assert catalogue.parent(copy) == parent
    assert copy.dtypes == parent.dtypes and copy.tune == parent.tune
    assert "serves" not in copy.source and not copy.found
