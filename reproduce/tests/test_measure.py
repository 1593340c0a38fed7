"""What `rung reproduce --run` plans."""

from __future__ import annotations

from pathlib import Path

import pytest

from rung.results import codes, current, store
from rung_reproduce import measure


def test_only_what_was_measured_here_is_left_out(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Somebody else's card of the same kind has rows: a run measures all the same, and goes on from its own rows."""
    monkeypatch.setenv("RUNG_RESULTS", str(tmp_path / "own.jsonl"))
    theirs = current.of_gpu(store.published(), "H200")
    assert measure.rows(theirs.gpu) == []
    whole = measure.plan("flash", measure.rows(theirs.gpu))
    studies = [row for row in theirs.results if row.kind == "climb" and codes.current(row)]
    store.write(tmp_path / "own.jsonl", studies)
    left = measure.plan("flash", measure.rows(theirs.gpu))
    assert 0 < len(left) < len(whole)
