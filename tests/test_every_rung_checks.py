"""Every rung of every ladder is right on this machine: emulated CUDA, interpreted Triton, library calls."""

import pytest

from rung import catalogue
from rung.lab import check_many


@pytest.mark.parametrize("operation", list(catalogue.operations()))
def test_every_rung_is_right_on_the_emulator(operation: str) -> None:
    ladder = catalogue.rungs(operation)
    work = check_many.tasks(ladder, device="emulator")
    reports = list(check_many.check_all(work, jobs=1))
    wrong = [f"{r.rung} {r.dtype}: {r.reason}" for r in reports if r.verdict == "failed"]
    assert not wrong, "\n".join(wrong)
    # What cannot run here says why; what a rung file holds is at the least compiled.
    skipped = [r for r in reports if r.verdict == "skipped"]
    assert all(r.reason for r in skipped)
    assert {r.rung for r in skipped} <= {rung.full_name for rung in ladder if rung.kind == "library"}
    assert any(r.verdict == "ok" for r in reports)
