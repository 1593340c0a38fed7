"""What `rung reproduce --run` plans."""

from __future__ import annotations

from pathlib import Path

import pytest

from rung.results import codes, current, store
from rung_reproduce import measure
from verbs import rung


def test_only_what_was_measured_here_is_left_out(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Somebody else's card of the same kind has rows: a run measures all the same, and goes on from its own rows."""
    monkeypatch.setenv("RUNG_RESULTS", str(tmp_path / "own.jsonl"))
    theirs = current.of_gpu(store.published(), "H200")
    assert {row.kind for row in measure.rows(theirs.gpu)} == {"count"}  # which no card has part in
    whole = measure.plan("flash", measure.rows(theirs.gpu))
    studies = [row for row in theirs.results if row.kind == "climb" and codes.current(row)]
    store.write(tmp_path / "own.jsonl", studies)
    left = measure.plan("flash", measure.rows(theirs.gpu))
    assert 0 < len(left) < len(whole)


def test_a_rung_that_an_item_names_is_raced_once(monkeypatch: pytest.MonkeyPatch) -> None:
    """Its items need one row, not one for each shape and format of the operation."""
    asked: list[list[str]] = []
    monkeypatch.setattr(measure, "main", asked.append)
    for name in ("flash", "milestone3"):
        for step in measure.plan(name, []):
            if step.name.startswith("bench"):
                step.work(60.0)
    assert len(asked) > 20 and all("--shape" in words and "--dtype" in words for words in asked)
    assert any("transpose/04_swizzled" in words for words in asked)


def test_what_a_run_would_measure_is_told_without_a_gpu(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setenv("RUNG_RESULTS", str(tmp_path / "own.jsonl"))
    monkeypatch.setattr("torch.cuda.is_available", lambda: False)
    assert rung("reproduce", "milestone", "--run", "--dry-run") == 0
    told = capsys.readouterr().out
    assert all(step.name in told for step in measure.plan("milestone", measure.rows("")))


def test_a_step_whose_need_is_missing_is_left_out_and_named(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """Neither CUTLASS's headers nor Nsight Compute are there: their steps are none, and the command names them."""
    monkeypatch.setenv("RUNG_RESULTS", str(tmp_path / "own.jsonl"))
    monkeypatch.setenv("CUTLASS_PATH", str(tmp_path))
    monkeypatch.setenv("RUNG_NCU", str(tmp_path / "nowhere"))
    lacking = [step.name.split(" ")[:2] for step in measure.wanted("milestone2", []) if step.lacks]
    assert lacking[1:] == [["study", "cutlass"]] and lacking[0][0] == "profile"  # one, of all kernels that are profiled
    assert not any(step.lacks for step in measure.plan("milestone2", []))
    code = rung("reproduce", "milestone2", "--run", "--dry-run")
    told = capsys.readouterr()
    assert code == 0 and "study cutlass" not in told.out
    assert "study cutlass is left out" in " ".join(told.err.split()) and "RUNG_NCU names" in told.err
