"""Mutants: small, at the right places, and noticed by the checker."""

import json
from collections import Counter
from dataclasses import replace
from pathlib import Path
from typing import NoReturn

import pytest

import mutation
import mutation_tables
from mutation import judge, main, trials
from rung.check.report import Report
from rung.errors import RungError
from rung.results.row import Row
from rung.rungs import catalogue
from rung.rungs.base import Rung

SOURCE = """/*---
idea = "if (a < b) __syncthreads();"
---*/
// if (a < b)
extern "C" __global__ void k(const float* x, float* out, int N, float scale)
{
    __shared__ float s[32];
    const int i = threadIdx.x;
    s[i] = i < N ? x[i] * scale : 0.0f;
    __syncthreads();
    out[i] = fmaxf(s[31 - i], 0.5f);
}
"""


def test_comments_the_header_and_strings_are_left_alone() -> None:
    found = list(mutation.mutants(SOURCE))
    assert found
    assert all(m.line >= 5 for m in found)
    assert all(m.of(SOURCE).splitlines()[:4] == SOURCE.splitlines()[:4] for m in found)


def test_every_mutant_differs_in_one_line() -> None:
    for m in mutation.mutants(SOURCE):
        pairs = zip(SOURCE.splitlines(), m.of(SOURCE).splitlines(), strict=True)
        assert [n for n, (a, b) in enumerate(pairs, 1) if a != b] == [m.line]


def test_the_kinds_are_there() -> None:
    kinds = {m.kind for m in mutation.mutants(SOURCE)}
    assert {"barrier", "comparison", "index", "term", "scale", "clamp", "constant"} <= kinds


def test_a_sample_is_of_every_ladder_and_kind_alike_and_repeats() -> None:
    rungs = [rung for name in ("residual", "softmax", "layernorm") for rung in catalogue.rungs(name, libraries=False)]
    few = trials(rungs, count=60, seed=3)
    assert few == trials(rungs, count=60, seed=3) != trials(rungs, count=60, seed=4)
    assert len({trial.question for trial in few}) == 60
    pairs = Counter((trial.rung.partition("/")[0], trial.kind) for trial in few)
    assert {of for of, _ in pairs} == {"residual", "softmax", "layernorm"}
    assert max(pairs.values()) <= 4


def test_every_rung_in_cuda_has_mutants() -> None:
    for name in catalogue.operations():
        for rung in catalogue.rungs(name, libraries=False):
            if rung.kind == "cuda":
                assert any(mutation.mutants(rung.source)), rung.full_name


def test_a_mutant_is_refused_for_a_reason() -> None:
    work = trials([catalogue.find("residual/1")], count=None, seed=0)
    line = next(
        n for n, text in enumerate(catalogue.find("residual/1").source.splitlines(), 1) if ") + to_float" in text
    )
    (minus,) = [t for t in work if t.place["change"] == "+ -> -" and t.place["line"] == line]
    verdict = judge(minus)
    assert verdict.verdict == "failed" and "values are off" in verdict.reason


def test_what_a_gpu_calls_right_is_judged_by_the_emulator_as_well(monkeypatch: pytest.MonkeyPatch) -> None:
    (trial, *_) = trials([catalogue.find("reduce/4")], count=1, seed=0)
    asked = []

    def answer(rung: Rung, dtype: str, *, device: str, **_: object) -> Report:
        asked.append(device)
        race = Report(rung.full_name, dtype, "emulator", "failed", "a race")
        return race if device == "emulator" else Report(rung.full_name, dtype, "cuda")

    class OnGpu:
        def __init__(self, device: str, rung: Rung) -> None: ...
        def __enter__(self) -> None: ...
        def __exit__(self, *_: object) -> None: ...

    monkeypatch.setattr(mutation, "check", answer)
    monkeypatch.setattr(mutation, "Sandbox", OnGpu)
    row = judge(replace(trial, device="cuda"))
    assert (row.verdict, row.reason) == ("failed", "a race")
    assert asked == ["cuda", "emulator"]


def test_a_reason_names_files_and_not_where_they_lie(monkeypatch: pytest.MonkeyPatch) -> None:
    (trial, *_) = trials([catalogue.find("residual/1")], count=1, seed=0)
    where = mutation.SOURCES / "rung" / "ladders" / "include" / "ptx.cuh"

    def refused(*_: object, **__: object) -> NoReturn:
        raise RungError(f"a wait ({where}:72) in {trial.place['file']}")

    monkeypatch.setattr(mutation, "check", refused)
    assert judge(trial).reason == f"a wait (rung/ladders/include/ptx.cuh:72) in {trial.place['file']}"


@pytest.mark.parametrize(("after", "same"), [("(i + 0) < ", True), ("(i ^ (B >> 30)) < ", False)])
def test_a_survivor_of_the_same_machine_code_is_equivalent(
    monkeypatch: pytest.MonkeyPatch, after: str, same: bool
) -> None:
    (trial, *_) = trials([catalogue.find("residual/1")], count=1, seed=0)
    source = catalogue.find("residual/1").source
    assert source.count("i < ") == 1
    monkeypatch.setattr(mutation, "check", lambda rung, dtype, **_: Report(rung.full_name, dtype, "emulator"))
    row = judge(replace(trial, source=source.replace("i < ", after)))
    assert row.verdict == "ok" and (mutation.SAME_CODE in row.notes) == same


@pytest.mark.slow
@pytest.mark.parametrize(
    ("rung", "change", "line"),
    [
        ("embedding/4", "B -> B - 1", "for (int b = 0; b < B; b += UNROLL) {"),
        ("sample/2", "min(first, i) -> (i)", "first = z[i] == value ? min(first, i) : first;"),
    ],
)
def test_what_once_survived_is_refused_by_the_case_that_was_added(rung: str, change: str, line: str) -> None:
    work = [t for t in trials([catalogue.find(rung)], count=None, seed=0) if t.place["change"] == change]
    (wrong,) = [
        t for t in work if line in (Path(t.path).parent / t.place["file"]).read_text().splitlines()[t.place["line"] - 1]
    ]
    assert judge(wrong).verdict == "failed"


def test_a_score_counts_what_compiles_and_ends_and_names_each_survivor() -> None:
    def row(what: str, verdict: str, note: str = "") -> Row:
        place = {"device": "emulator", "file": "01.cu", "line": 7, "change": "a -> b"}
        return Row(kind="mutate", what=what, part="term", options=place, verdict=verdict, notes=[note] if note else [])

    rows = [
        *(row("gelu/01", verdict) for verdict in ("failed", "failed", "failed", "illegal", "too slow")),
        row("gelu/01", "ok", "equivalent: the same"), row("relu/01", "ok"), row("relu/01", "failed"),
    ]  # fmt: skip
    parts = mutation_tables.parts(rows)
    assert parts["mutants:gpu"]().strip() == "Not measured yet." and parts["mutants:gpu-survivors"]() == ""
    ladders = parts["mutants:ladders"]()
    assert "| gelu | 4 | 3 | 1 | 0 | 100.0% |" in ladders and "| relu | 2 | 1 | 0 | 1 | 50.0% |" in ladders
    assert "| all | 6 | 4 | 1 | 1 | 80.0% |" in parts["mutants:kinds"]()
    survivors = parts["mutants:survivors"]().splitlines()
    assert "not classified yet" in survivors[3] and "equivalent: the same" in survivors[4]


@pytest.mark.slow
def test_the_command_lists_survivors_and_goes_on_where_it_was(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    rows = tmp_path / "mutants.jsonl"
    command = ["residual/1", "--sample", "2", "-j", "1", "-o", str(rows)]
    assert main([*command, "--minutes", "0"]) == 0
    assert not rows.exists()
    assert main(command) == 0
    assert len(rows.read_text().splitlines()) == 2
    assert all(json.loads(line)["verdict"] == "failed" for line in rows.read_text().splitlines())
    assert main(command) == 0
    assert len(rows.read_text().splitlines()) == 2
    assert "2 of 2 mutants that change the machine code are refused" in capsys.readouterr().out
