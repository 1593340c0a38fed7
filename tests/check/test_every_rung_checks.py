"""Every rung of every ladder is right on this machine: emulated CUDA, interpreted Triton, library calls.

A verdict is kept in the cache folder under a digest of all that it depends on: the rung and what it includes, its
operation, the emulator, the checker, and the versions of compiler and libraries. While these are unchanged it is
reused; `pytest --fresh` judges anew.
"""

import hashlib
import json
import platform
from collections.abc import Iterator
from functools import cache
from pathlib import Path

import numpy
import pytest
import torch
import triton

import gpuless
import rung
from gpuless.base import disk_cache
from gpuless.compile import toolchain
from rung.check.judge import check, requests
from rung.check.processes import report_on_all
from rung.check.report import CheckRequest
from rung.results import tree
from rung.rungs import catalogue, identity
from rung.rungs.base import Rung

PACKAGE, MACHINE = Path(rung.__file__).parent, Path(gpuless.__file__).parent
ABOVE = {"__init__", "__main__", "api", "doctor", "ops"}  # modules that call the checker
PORTION = 12  # rungs and dtypes a test, so that a large ladder is spread over the processes


def portions() -> list[tuple[str, int]]:
    counts = {name: sum(len(r.dtypes) for r in catalogue.rungs(name)) for name in catalogue.operations()}
    return [(name, start) for name, count in counts.items() for start in range(0, count, PORTION)]


@cache
def surroundings(operation: str) -> str:
    """A digest of what the verdicts on an operation's rungs depend on."""
    ladder = (p for p in (PACKAGE / "ladders" / operation).glob("*.py") if not p.name[:2].isdigit())
    modules = sorted([*(p for p in PACKAGE.glob("*.py") if p.stem not in ABOVE), *ladder])
    folders = [tree.digest(p) for p in (MACHINE, *(PACKAGE / name for name in ("check", "rungs", "cuda")))]
    versions = (torch.__version__, triton.__version__, numpy.__version__, platform.python_version())
    machine = (toolchain.compiler(), toolchain.compiler_version(), toolchain.machine_flags())
    text = repr((folders, versions, machine)).encode() + b"".join(p.read_bytes() for p in modules)
    return hashlib.sha256(text).hexdigest()


def verdict_file(rung: Rung, dtype: str) -> Path:
    own = rung.path.read_bytes() if rung.path else rung.source.encode()
    included = [p.read_bytes() for p in sorted(identity.files(rung))] if rung.path else []
    text = repr((surroundings(rung.operation.name), rung.full_name, dtype, own, included)).encode()
    return disk_cache.folder("verdicts") / f"{hashlib.sha256(text).hexdigest()[:32]}.json"


def reports(work: list[CheckRequest], *, fresh: bool) -> Iterator[tuple[str, str]]:
    """The rung, and what is wrong with it, judged now or before."""
    for task in work:
        rung = catalogue.find(task.rung)
        kept_verdict = verdict_file(rung, task.dtype)
        if kept_verdict.is_file() and not fresh:
            continue
        (report,) = report_on_all([task], jobs=1)
        name = f"{report.rung} {report.dtype}"
        if report.verdict == "failed":
            yield name, report.reason
        # Cases take each branch and loop every way, but for what the source says never happens.
        elif report.unreached:
            yield name, f"no case reaches {report.unreached}"
        # A rung that cannot run here gives the reason, and is a library that needs CUDA; no rung file is left out.
        elif report.verdict == "skipped" and not (report.reason and rung.kind == "library"):
            yield name, f"skipped: {report.reason}"
        else:
            kept_verdict.write_text(json.dumps({"rung": report.rung, "dtype": report.dtype, "verdict": report.verdict}))


@pytest.mark.parametrize("operation", list(catalogue.operations()))
def test_a_ladders_first_rung_is_right(operation: str) -> None:
    rung = catalogue.rungs(operation)[0]
    report = check(rung, rung.dtypes[0], device="emulator", quick=True)
    assert report.verdict == "ok", report.reason


@pytest.mark.slow
@pytest.mark.parametrize(("operation", "start"), portions())
def test_every_rung_is_right_on_the_emulator(operation: str, start: int, request: pytest.FixtureRequest) -> None:
    work = requests(list(catalogue.rungs(operation)), CheckRequest(coverage=True))[start : start + PORTION]
    assert work
    wrong = dict(reports(work, fresh=request.config.getoption("--fresh")))
    assert not wrong


def test_a_verdict_belongs_to_the_code_that_it_was_given_for(tmp_path: Path) -> None:
    rung = catalogue.find("bias/1")
    assert rung.path is not None
    same = catalogue.rung_from_file(rung.operation, rung.path)
    changed = tmp_path / rung.path.name
    changed.write_text(rung.path.read_text() + "\n// changed\n")
    other = catalogue.rung_from_file(rung.operation, changed)
    assert verdict_file(rung, "f32") == verdict_file(same, "f32")
    assert len({verdict_file(rung, "f32"), verdict_file(rung, "f16"), verdict_file(other, "f32")}) == 3
