"""`rung study attention`: what it measures, keeps, reloads, refuses, and says of what it leaves out."""

import json
import os

import pytest
import torch

from rung.results import store
from rung_reproduce.parallel import data, launch
from rung_reproduce.parallel.pipeline import Overlap, Pipelined
from rung_reproduce.studies import attention, contestants, ranks
from rung_reproduce.studies.common import Gpu
from rung_reproduce.studies.contestants import Measured
from suite import PACKAGES
from verbs import rung

without_mpi = launch.available()


@pytest.fixture(autouse=True)
def apart(tmp_path, monkeypatch):
    monkeypatch.setenv("RUNG_RESULTS", str(tmp_path / "results.jsonl"))
    monkeypatch.setenv("PYTHONPATH", os.pathsep.join(filter(None, [PACKAGES, os.environ.get("PYTHONPATH")])))
    monkeypatch.chdir(tmp_path)


def study(*words):
    return rung("study", "attention", *words)


@pytest.mark.skipif(without_mpi is not None, reason=str(without_mpi))
def test_over_ranks_it_gives_tables_charts_and_a_row(tmp_path, capsys):
    assert (
        study("--n", "64", "--n", "96", "--mpi", "--ranks", "1", "--ranks", "2", "--data", "kept", "--causal")
        == 0
    )
    out = capsys.readouterr().out
    for name in ("sequential C++", "vectorised C++, 1 thread", "MPI ring, 1 rank", "MPI ring, 2 ranks"):
        assert name in out
    assert "the ring over several GPUs" in out.partition("Left out:")[2]
    assert "CUDA, tree softmax" in out.partition("Left out:")[2] or torch.cuda.is_available()
    for part in ("", "-speedup", "-strong", "-weak"):
        assert (tmp_path / f"study-attention{part}.svg").read_text().startswith("<svg")
    rows = {row.part: row for row in store.read(tmp_path / "results.jsonl")}
    assert {"", "speedup", "strong", "weak"} <= set(rows) and rows[""].options["ranks"] == [1, 2]
    assert [r[0] for r in rows["strong"].detail["rows"]][-1] == 64
    stored = data.load(tmp_path / "kept" / data.file_name(64, 64, 1), (1, 64, 64))
    assert (stored == data.generate(64, 64, 1, seed=0)).all()


@pytest.mark.slow
@pytest.mark.skipif(without_mpi is not None, reason=str(without_mpi))
def test_a_running_job_is_joined(tmp_path, capsys):
    program = tmp_path / "rank.py"
    program.write_text(
        "import sys\nfrom rung.cli import main\nmain(['study', 'attention', '--n', '64', '--mpi', '--json', '--no-chart'])"
    )
    found = json.loads(launch.run([str(program)], 2, limit=60))  # one document: only one rank speaks
    assert "MPI ring, 2 ranks" in [row[1] for row in found[0]["detail"]["rows"]]


def test_without_a_gpu_and_without_ranks_both_are_named(capsys):
    assert study("--n", "33", "--json", "--no-chart") == 0
    found = json.loads(capsys.readouterr().out)[0]["detail"]
    assert "MPI (add --mpi)" in found["finding"]
    assert found["rows"][0][1] == contestants.SEQUENTIAL and found["rows"][0][5] == "1.00x"
    assert {row[0] for row in found["rows"]} == {33}


@pytest.mark.parametrize(
    ("words", "sentence"),
    [
        (("--n", "0"), "--n, --d and --heads are at least 1."),
        (("--n", "8", "--ranks", "0"), "--ranks, --threads and --patience are positive."),
        pytest.param(
            ("--n", "4", "--mpi", "--ranks", "9"),
            "9 ranks are more than the 4 rows of the sequence",
            marks=pytest.mark.skipif(without_mpi is not None, reason=str(without_mpi)),
        ),
    ],
)
def test_what_cannot_be_is_refused(words, sentence, capsys):
    assert study(*words) == 2
    assert sentence in capsys.readouterr().err


def test_data_of_another_shape_is_refused(tmp_path, capsys):
    data.load_or_make(tmp_path, 9, 64, 1, seed=0)
    (tmp_path / data.file_name(9, 64, 1)).rename(tmp_path / data.file_name(10, 64, 1))
    assert study("--n", "10", "--data", str(tmp_path)) == 2
    assert "q is float32 (1, 9, 64), but float32 (1, 10, 64) is needed" in capsys.readouterr().err


def test_missing_mpi_is_reported(monkeypatch, capsys):
    monkeypatch.setattr(launch, "available", lambda: "mpi4py is not installed; do so.")
    assert study("--n", "8", "--mpi") == 2
    assert "mpi4py is not installed" in capsys.readouterr().err


def test_options_of_this_study_are_refused_by_others(capsys):
    assert rung("study", "waves", "--heads", "2") == 2
    assert "--heads is an option of `rung study attention` only" in capsys.readouterr().err


def test_a_wrong_result_has_no_time(monkeypatch):
    qkv = data.generate(20, 8, 1, 0)
    right = contestants.truth(qkv, causal=False)
    measured = contestants.sequential(qkv, right * 1.001, causal=False, limit=0.0)
    assert measured.computing is None and "wrong: off by" in measured.reason
    assert contestants.sequential(qkv, right, causal=False, limit=0.0).computing is not None


def test_softmax_times_stand_beside_the_sources():
    linear, tree = attention.LINEAR, attention.TREE
    by = {
        (name, n): Measured(n, name, 1.0, 1.0, seconds)
        for n in (256, 8192)
        for name, seconds in ((linear, 6e-4), (tree, 1e-4 if n == 256 else 2e-4))
    }
    found = attention.softmax(by, [256, 8192])
    assert found.rows == [
        (256, "0.600", "0.100", "6.00x", "5.07x"),
        (8192, "0.600", "0.200", "3.00x", "1.80x"),
    ]
    assert "6.00x at 256, 3.00x at 8192" in found.finding


def test_the_pipelines_gain_is_shown_beside_its_bound():
    def row(chunk, streams, seconds, wall):
        return Pipelined(chunk, streams, seconds, Overlap(wall, 2e-3, 1.8e-3, 0.7e-3))

    found = attention.pipelined(
        [row(48, 1, 4.5e-3, 4.4e-3), row(6, 2, 2.6e-3, 2.5e-3), row(3, 2, 3e-3, 2.9e-3)], "48"
    )
    assert found.rows[0][:4] == ("all at once", 1, "4.500", "1.00x")
    assert found.rows[1] == (6, 2, "2.600", "1.73x", "2.000", "1.800", "0.700", "2.000", "80%")
    assert "Chunks of 6 over 2 streams take 2.600 ms, 1.73 times" in found.finding
    assert found.svg().startswith("<svg")


def ring(one: float) -> dict[tuple[str, int], float]:
    return {(part, r): one / (r if part == "strong" else 1) for part in ("strong", "weak") for r in (1, 4, 16)}


def test_ranks_cuda_and_one_core_share_a_chart_and_forecasts_are_marked() -> None:
    alone = {"sequential C++": 1.0, "vectorised C++, 1 thread": 0.2, "CUDA, tree softmax": 0.02, "CUDA, flash": 0.01}
    found = ranks.report({c: ranks.Kind(ring(0.1 * (2 - c)), alone) for c in (True, False)}, 8192, "MPI")
    assert {row[0] for row in found.rows} == {"causal", "full"}
    labels = [s.label for s in found.series]
    for name in ("causal", "full"):
        assert {f"ring, {name}", f"forecast, {name}", f"CUDA, flash, {name}"} <= set(labels)
    by = {(row[0], row[1], row[2]): row for row in found.rows}
    assert by["causal", "ring", 16][4:6] == ("6.250", "16x") and by["causal", "ring", 64][4] == ""
    assert float(by["full", "ring", 64][6]) > 0
    assert by["causal", "CUDA, flash", ""][5] == "10x"
    assert "Full: " not in found.finding and "16 ranks take 0.06 of one rank's time" in found.finding
    assert "joined by MPI" in found.finding and "forecast" in found.finding
    weak = found.more["weak"]
    assert [row[3] for row in weak.rows if row[0] == "full" and row[4]] == [4096, 8192, 16384]


@pytest.mark.slow
@pytest.mark.parametrize("problem", [None, "mpi4py is not installed; `pip install 'rung-reproduce[mpi]'` brings it."])
def test_ranks_are_measured_over_mpi_and_over_gloo_where_there_is_none(
    problem: str | None, monkeypatch: pytest.MonkeyPatch
) -> None:
    if problem is None and launch.available():
        pytest.skip("no MPI here")
    if problem:
        monkeypatch.setattr(launch, "available", lambda: problem)
    found = ranks.run(Gpu(quick=True), n=128, ranks=(1, 2))
    measured = [row for row in found.rows if row[1] == "ring" and row[4]]
    assert [(row[0], row[2]) for row in measured] == [(k, r) for k in ("causal", "full") for r in (1, 2)]
    assert ("gloo, since mpi4py is not installed" in found.finding) == bool(problem)
