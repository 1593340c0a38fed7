"""What compute-sanitizer prints is read for what it says."""

import pytest

from rung.check.judge import check
from rung.rungs import catalogue
from rung.rungs.cuda import CudaRung
from sanitize import SANITIZED, _read, sanitize

CLEAN = "========= COMPUTE-SANITIZER\nlaunched gelu/01 f32\nlaunched gelu/02 f32\n========= ERROR SUMMARY: 0 errors\n"
WRITE = (
    "========= COMPUTE-SANITIZER\nlaunched x/01 f32\n========= Invalid __global__ write of size 4 bytes\n"
    "=========     at k+0x90\n========= ERROR SUMMARY: 3 errors\n"
)
RACE = (
    "========= COMPUTE-SANITIZER\nlaunched x/01 f32\n========= Error: Race reported between Write and Read\n"
    "========= RACECHECK SUMMARY: 1 hazard displayed (1 error, 0 warnings)\n"
)


def test_clean() -> None:
    found = _read("gelu", "memcheck", CLEAN, 0)
    assert found.clean and found.launched == 2 and not found.text


@pytest.mark.parametrize(("tool", "output", "errors"), [("memcheck", WRITE, 3), ("racecheck", RACE, 1)])
def test_errors_are_reported(tool: str, output: str, errors: int) -> None:
    found = _read("x", tool, output, 1)
    assert not found.clean and found.errors == errors
    assert "write" in found.text or "Race" in found.text


def test_a_run_that_launched_nothing_is_not_clean() -> None:
    assert not _read("x", "memcheck", "========= COMPUTE-SANITIZER\nTraceback\nboom\n", 1).clean
    assert not _read("x", "memcheck", "========= ERROR SUMMARY: 0 errors\n", 0).clean


def test_a_complaint_names_the_launch_during_which_it_came() -> None:
    output = (
        "========= COMPUTE-SANITIZER\nlaunching x/01 f32\nlaunched x/01 f32\nlaunching x/02 bf16\n"
        "========= Error: Race reported between Write and Read\nlaunched x/02 bf16\n"
        "========= RACECHECK SUMMARY: 1 hazard displayed (1 error, 0 warnings)\n"
    )
    lines = _read("x", "racecheck", output, 1).text.splitlines()
    assert lines[0] == "during x/02 bf16:" and "Race" in lines[1]
    assert _read("x", "racecheck", output, 1).launched == 2


@pytest.mark.parametrize("name", ["attention/33", "layernorm/13"])
def test_what_the_tools_see_computes_the_same(name: str) -> None:
    rung = catalogue.find(name)
    assert isinstance(rung, CudaRung) and SANITIZED in rung.source
    report = check(rung.built_for(SANITIZED), rung.dtypes[0], device="emulator", quick=True)
    assert report.verdict == "ok", report.reason


@pytest.mark.gpu
def test_a_small_ladder_is_clean() -> None:
    rungs = catalogue.rungs("residual", libraries=False)
    findings = list(sanitize([r.full_name for r in rungs]))
    assert [f.tool for f in findings] == ["memcheck", "racecheck"]
    assert all(f.clean for f in findings), findings
    assert findings[0].launched == sum(len(r.dtypes) for r in rungs)
