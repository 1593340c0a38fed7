"""docs/tutorial.md is followed to the letter: each version of its kernel gets the verdict printed there."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

from rung import plugins
from rung.check.judge import check
from rung.check.report import Report
from rung.cli import VERBS
from rung.rungs import catalogue
from rung.show.verdicts import head
from verbs import rung

TUTORIAL = (Path(__file__).parents[2] / "docs" / "tutorial.md").read_text(encoding="utf-8")


def blocks(language: str) -> list[str]:
    return re.findall(rf"```{language}\n(.*?)```", TUTORIAL, re.DOTALL)


def patched(source: str, diff: str) -> str:
    """`source` with each run of `-` lines replaced by the `+` lines that follow it."""
    for old, new in re.findall(r"((?:^-.*\n)+)((?:^\+.*\n)+)", diff, re.MULTILINE):
        before, after = (re.sub(r"^[-+]", "", part, flags=re.MULTILINE) for part in (old, new))
        assert source.count(before) == 1, f"{before!r} is not in the kernel exactly once"
        source = source.replace(before, after)
    return source


def versions() -> list[str]:
    (source,) = blocks("cuda")
    every = [source]
    for diff in blocks("diff"):
        every.append(patched(every[-1], diff))
    return every


def verdict_on(source: str, folder: Path) -> Report:
    path = folder / "warp_rows.cu"
    path.write_text(source, encoding="utf-8")
    rung = catalogue.rung_from_file(catalogue.operation("reduce"), path)
    return check(rung, "f32", device="emulator")


@pytest.mark.parametrize("step", range(3))
def test_each_failure_is_the_one_that_is_printed(
    step: int, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    report = verdict_on(versions()[step], tmp_path)
    printed = blocks("text")[step].strip()
    assert report.verdict == "failed"
    assert (f"case {report.case!r}" in printed) is (step > 0)  # names are looked at before any case
    assert printed.endswith(report.reason.replace(f"{tmp_path}/", ""))


def test_the_last_version_is_right(tmp_path: Path) -> None:
    report = verdict_on(versions()[-1], tmp_path)
    assert report.verdict == "ok", report.reason
    line = head(report.rung, report.dtype, report.cases, report.element, report.verdict)
    assert blocks("text")[3].split() == f"{line} 3 other tunings".split()


def test_its_counts_are_what_is_printed(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    (tmp_path / "warp_rows.cu").write_text(versions()[-1])
    monkeypatch.chdir(tmp_path)
    rung("count", "reduce", "warp_rows.cu", "--shape", "B=64,N=768")
    printed = capsys.readouterr().out
    assert blocks("text")[4] in printed


def test_its_commands_are_verbs() -> None:
    verbs = re.findall(r"^    rung (\w+)", TUTORIAL, re.MULTILINE)
    assert len(verbs) >= 8
    assert set(verbs) <= {*VERBS, *plugins.entries(plugins.COMMANDS)}
