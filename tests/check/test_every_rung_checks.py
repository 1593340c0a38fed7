"""Every rung of every ladder is right on this machine: emulated CUDA, interpreted Triton, library calls."""

import pytest

from rung.check.judge import check, requests
from rung.check.processes import check_all
from rung.check.report import CheckRequest
from rung.rungs import catalogue

PORTION = 12  # rungs and dtypes a test, so that a large ladder is spread over the processes


def portions() -> list[tuple[str, int]]:
    counts = {name: sum(len(r.dtypes) for r in catalogue.rungs(name)) for name in catalogue.operations()}
    return [(name, start) for name, count in counts.items() for start in range(0, count, PORTION)]


@pytest.mark.parametrize("operation", list(catalogue.operations()))
def test_a_ladders_first_rung_is_right(operation: str) -> None:
    rung = catalogue.rungs(operation)[0]
    report = check(rung, rung.dtypes[0], device="emulator", quick=True)
    assert report.verdict == "ok", report.reason


@pytest.mark.slow
@pytest.mark.parametrize(("operation", "start"), portions())
def test_every_rung_is_right_on_the_emulator(operation: str, start: int) -> None:
    ladder = {r.full_name: r for r in catalogue.rungs(operation)}
    work = requests(list(ladder.values()), CheckRequest(coverage=True))[start : start + PORTION]
    reports = list(check_all(work, jobs=1))
    wrong = [f"{r.rung} {r.dtype}: {r.reason}" for r in reports if r.verdict == "failed"]
    assert not wrong, "\n".join(wrong)
    # Cases take each branch and loop every way, but for what the source says never happens.
    assert not [(r.rung, r.dtype, r.unreached) for r in reports if r.unreached]
    # A rung that cannot run here gives the reason, and is a library that needs CUDA; no rung file is left out.
    skipped = [r for r in reports if r.verdict == "skipped"]
    assert all(r.reason for r in skipped)
    assert all(ladder[r.rung].kind == "library" for r in skipped)
    assert len(reports) == len(work) > 0
