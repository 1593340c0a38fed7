"""What the documents found: each finding has rows and a reason, and no row contradicts its verdict."""

from __future__ import annotations

import json
from dataclasses import replace

import pytest

from rung.cli import main
from rung.results import codes, current, store
from rung.results.row import Row
from rung_reproduce import findings, sources
from rung_reproduce.findings import Finding


@pytest.fixture(scope="module")
def rows() -> list[Row]:
    found = current.of_gpu(store.published(), "NVIDIA H200")
    return [row for row in found.results if codes.current(row)]


def test_rows_agree_with_each_verdict(rows: list[Row]) -> None:
    wrong = {f.says: (f.verdict, f.judged(rows)) for f in findings.findings() if f.judged(rows) != f.verdict}
    assert not wrong


def test_each_finding_has_a_verdict_and_a_reason_and_each_document_findings() -> None:
    every = findings.findings()
    assert all(f.verdict in findings.VERDICTS and f.why.strip() and f.says.strip() for f in every)
    assert {f.document.name for f in every} == {*sources.documents()} == {*findings.takeaways()}
    assert all(f.figures or f.verdict == "unseen" for f in every)


def test_no_verdict_would_survive_rows_that_say_otherwise(rows: list[Row]) -> None:
    compared = [f for f in findings.findings() if f.figures]
    assert len(compared) > 150 and all(f.ours(rows) is not None for f in compared)
    for f in compared:
        theirs = {"more": 2.0, "less": 0.5}.get(f.than(), (f.theirs() or 0) / f.neutral)
        other = {"none": 2.0, "lost": theirs, "reversed": theirs}.get(f.verdict, f.neutral / (f.ours(rows) or 1))
        assert _with(f, other * f.neutral).judged(rows) != f.verdict, f.says


def test_a_row_that_turns_is_found_out(rows: list[Row]) -> None:
    one = next(f for f in findings.findings() if f.verdict == "same" and len(f.figures) == 2 and (f.theirs() or 0) > 2)
    turned = replace(one, figures=one.figures[::-1], neutral=1.0)
    assert turned.judged(rows) == "same"  # theirs turns as well
    assert _with(one, 1 / (one.ours(rows) or 1)).judged(rows) == "reversed"
    assert _with(one, (one.theirs() or 1) ** 0.3).judged(rows) == "smaller"


class _Fixed(Finding):
    def ours(self, rows: object) -> float:
        return float(self.says)


def _with(one: Finding, ours: float) -> Finding:
    return _Fixed(one.document, str(ours), one.figures, one.neutral, one.verdict, one.why)


def test_the_command_line_tells_them(capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit) as ended:
        main(["reproduce", "flash", "--findings", "--json"])
    assert not ended.value.code
    (flash,) = json.loads(capsys.readouterr().out)
    assert flash["document"] == "flash" and len(flash["findings"]) > 10
    assert {"they found", "theirs", "ours", "verdict", "why"} == {*flash["findings"][0]}
