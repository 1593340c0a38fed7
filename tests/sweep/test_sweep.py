"""Sweeps: which configurations, what is kept of them, and what survives a killed process."""

from __future__ import annotations

import json
import os
import resource
import signal
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

import pytest
import torch

from rung.errors import RungError
from rung.results import store as results
from rung.rungs import catalogue, tunings
from rung.sweep import backends, summary
from rung.sweep import sweep as sweeps
from sweep_measures import RUNG, Invented, subject, sweep
from verbs import rung

HERE = Path(__file__).parents[1]
SOURCE = HERE.parent / "src"


@pytest.fixture(autouse=True)
def own_places(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("RUNG_RESULTS", str(tmp_path / "results.jsonl"))
    monkeypatch.setenv("RUNG_TUNINGS", str(tmp_path / "tunings.jsonl"))


def table(swept: sweeps.Sweep) -> list[tuple[Any, ...]]:
    return [(r.tuning, r.verdict, r.reason, r.cold_us) for r in swept.rows]


def test_a_sweep_covers_the_whole_grid_in_the_headers_order(tmp_path: Path) -> None:
    swept = sweep(tmp_path / "rows.jsonl")
    tune = catalogue.find(RUNG).tune
    assert [r.tuning for r in swept.rows] == [
        {"BLOCK": b, "STREAM": s} for b in tune["BLOCK"] for s in tune["STREAM"]
    ]
    assert swept.rows[0].tuning == catalogue.find(RUNG).tuned(None)


@pytest.mark.slow
def test_a_sweep_killed_half_way_and_resumed_gives_the_same_table(tmp_path: Path) -> None:
    unbroken = sweep(tmp_path / "unbroken.jsonl")
    store = tmp_path / "killed.jsonl"
    words = [sys.executable, str(HERE / "sweep_measures.py"), str(store), "0.2"]
    process = subprocess.Popen(words, env={**os.environ})
    patience = time.monotonic() + 60
    while len(store.read_bytes().splitlines() if store.exists() else []) < 5:
        assert process.poll() is None and time.monotonic() < patience
        time.sleep(0.05)
    process.send_signal(signal.SIGKILL)
    assert process.wait() == -signal.SIGKILL
    before = store.read_bytes()
    measured = len(before.splitlines())
    assert 5 <= measured < len(unbroken.rows)
    store.write_bytes(before + b'{"format": "rung-result-1", "kind": "swe')  # the power went, too

    about, measure = subject(), Invented()
    with pytest.warns(UserWarning, match="cut short"):
        resumed = sweeps.sweep(about, sweeps.configurations(about.rung), measure, store=store)
    assert table(resumed) == table(unbroken)
    assert resumed.resumed == measured
    assert len(measure.calls) == len(unbroken.rows) - measured + sweeps.FINALISTS
    assert store.read_bytes().startswith(before)


def test_what_was_measured_is_measured_again_only_when_asked(tmp_path: Path) -> None:
    sweep(tmp_path / "rows.jsonl")
    about, measure = subject(), Invented()
    configurations = sweeps.configurations(about.rung)
    sweeps.sweep(about, configurations, measure, store=tmp_path / "rows.jsonl")
    assert measure.calls == []
    sweeps.sweep(about, configurations, measure, store=tmp_path / "rows.jsonl", again=True)
    assert len(measure.calls) == len(configurations) + sweeps.FINALISTS


def test_another_shape_or_measure_is_not_mistaken_for_the_measured_one(tmp_path: Path) -> None:
    store = tmp_path / "rows.jsonl"
    sweep(store)
    about, measure = subject(shape="b4t64"), Invented()
    sweeps.sweep(about, sweeps.configurations(about.rung), measure, store=store, finals=False)
    assert len(measure.calls) == 14
    again, other = subject(), Invented(name="other")
    sweeps.sweep(again, sweeps.configurations(again.rung), other, store=store, finals=False)
    assert len(other.calls) == 14


def test_illegal_configurations_are_rows_with_their_reason_and_are_never_launched(tmp_path: Path) -> None:
    path = tmp_path / "mine.cu"
    path.write_text(
        '/*---\nidea = "A test."\nneeds = "BLOCK % 32 == 0"\n[tune]\nBLOCK = [64, 48, 2048]\nMORE = [0, 300000]\n'
        '[[launch]]\nkernel = "k"\ngrid = "B"\nblock = "BLOCK"\nshared = "MORE"\n---*/\n'
        "__global__ void k(const float* a, const float* b, float* out) {}\n"
    )
    one = catalogue.rung_from_file(catalogue.operation("residual"), path)
    about = sweeps.Subject(one, "b4t64", one.operation.complete(one.operation.shapes["b4t64"]), subject().dtype)
    measure = Invented()
    swept = sweeps.sweep(about, sweeps.configurations(one), measure, store=tmp_path / "rows.jsonl", finals=False)
    assert measure.calls == [{"BLOCK": 64, "MORE": 0}]
    reasons = {(r.tuning["BLOCK"], r.tuning["MORE"]): (r.verdict, r.reason) for r in swept.rows}
    assert reasons[64, 0] == ("ok", "")
    assert reasons[48, 0][0] == "illegal" and "needs BLOCK % 32 == 0" in reasons[48, 0][1]
    assert reasons[2048, 0][0] == "illegal" and "2048 threads" in reasons[2048, 0][1]
    assert reasons[64, 300000][0] == "illegal" and "shared memory" in reasons[64, 300000][1]


def test_a_random_sweep_is_the_same_for_the_same_seed_and_holds_the_default() -> None:
    one = catalogue.find("matmul/05_register_tiles")
    sampled = sweeps.configurations(one, sample=9, seed=4)
    assert sampled == sweeps.configurations(one, sample=9, seed=4)
    assert sampled != sweeps.configurations(one, sample=9, seed=5)
    assert sampled[0] == one.tuned(None)
    assert len({tuple(t.items()) for t in sampled}) == 9
    only_small = sweeps.configurations(one, sample=9, seed=4, legal=lambda t: t["BM"] == 64)
    assert all(t["BM"] == 64 for t in only_small[1:])


def test_halving_spends_more_on_the_better_half(tmp_path: Path) -> None:
    about, measure = subject(), Invented()
    configurations = sweeps.configurations(about.rung)
    swept = sweeps.sweep(about, configurations, measure, store=tmp_path / "rows.jsonl", halving=True)
    assert len(measure.calls) == 14 + 7 + 4
    best = summary.best_of(swept)
    assert best is not None and best[0].tuning == {"BLOCK": 256, "STREAM": 0}
    assert best[0].options["round"] == 2
    assert {r.options["round"] for r in swept.rows} == {0, 1, 2}


def test_a_configuration_that_fails_is_a_row_and_the_sweep_goes_on(tmp_path: Path) -> None:
    about = subject()
    broken = {"BLOCK": 64, "STREAM": 0}
    measure = Invented(broken=broken)
    swept = sweeps.sweep(about, sweeps.configurations(about.rung), measure, store=tmp_path / "rows.jsonl")
    failed = [r for r in swept.rows if r.verdict != "ok"]
    assert [(r.tuning, r.reason) for r in failed] == [(broken, "wrong result")]
    assert len(swept.rows) == 14


def test_a_configuration_that_takes_the_gpu_along_is_written_down_before_the_process_ends(
    tmp_path: Path,
) -> None:
    about = subject()

    class Deadly(Invented):
        def __call__(self, subject: Any, batch: Any, effort: float) -> Any:
            if batch[0]["BLOCK"] == 96:
                raise sweeps.ContextLost(batch[0], "illegal memory access")
            return super().__call__(subject, batch, effort)

    store = tmp_path / "rows.jsonl"
    with pytest.raises(sweeps.ContextLost):
        sweeps.sweep(about, sweeps.configurations(about.rung), Deadly(), store=store)
    rows = list(results.read(store))
    assert rows[-1].tuning == {"BLOCK": 96, "STREAM": 1} and rows[-1].verdict == "failed"
    later = sweeps.configurations(about.rung, only={"BLOCK": [96], "STREAM": [1]})
    swept = sweeps.sweep(about, later, Deadly(), store=store, finals=False)  # known, so not launched again
    assert swept.rows[0].reason == "illegal memory access"


def test_a_finding_names_the_best_value_the_loss_at_the_worst_and_the_limit(tmp_path: Path) -> None:
    about = subject()

    class WithOccupancy(Invented):
        def __call__(self, subject: Any, batch: Any, effort: float) -> Any:
            for tuning, outcome in zip(batch, super().__call__(subject, batch, effort), strict=True):
                outcome.figures |= {
                    "registers": 70, "threads": tuning["BLOCK"], "occupancy": 0.25,
                }  # fmt: skip
                outcome.detail["limiter"] = "registers"
                yield outcome

    swept = sweeps.sweep(about, sweeps.configurations(about.rung), WithOccupancy(), store=tmp_path / "rows.jsonl")
    block, stream = summary.findings(swept)
    assert (block.best, block.worst) == (256, 512)
    assert block.loss == pytest.approx(0.8)
    assert "256 is best; 512 takes 80% longer" in block.sentence
    assert "512 threads, 70 registers each) registers limit occupancy to 25%" in block.sentence
    assert stream.best == 0 and "registers" not in stream.sentence


def record(rung: Any, values: Any, tuning: sweeps.Tuning, gpu: str = "G") -> None:
    tunings.record(
        rung, dtype="f32", values=values, tuning=tuning, cold_us=3.0, default_us=None, machine={"gpu": gpu}
    )  # fmt: skip


def test_the_winner_becomes_the_tuning_for_its_class_of_shapes(
    tmp_path: Path,
) -> None:
    swept = sweep(tmp_path / "rows.jsonl")
    won = summary.best_of(swept)
    assert won is not None
    one = swept.subject.rung
    record(one, won[0].values, won[0].tuning, gpu="NVIDIA H200")
    values = one.operation.complete({"B": 7, "T": 900, "C": 700})

    def best(**changed: Any) -> dict[str, int] | None:
        given = {"values": values, "dtype": "f32", "gpu": "NVIDIA H200", **changed}
        return tunings.best(one, given["values"], given["dtype"], given["gpu"], device="emulator")

    assert best() == {"BLOCK": 256, "STREAM": 0}
    assert best(gpu="NVIDIA A40") is None
    assert best(dtype="bf16") is None
    assert best(values=one.operation.complete({"B": 1, "T": 900, "C": 700})) is None
    text = one.path.read_text() if one.path else ""
    changed = tmp_path / "09_split.cu"
    changed.write_text(text + "\n__device__ int another;\n")  # of an earlier text: still a better guess than the defaults
    other = catalogue.rung_from_file(one.operation, changed)
    assert tunings.best(other, values, "f32", "NVIDIA H200", device="emulator") == best()
    changed.write_text(text.replace("STREAM", "STREAMED"))  # tunables of other names
    other = catalogue.rung_from_file(one.operation, changed)
    assert tunings.best(other, values, "f32", "NVIDIA H200", device="emulator") is None


def test_a_tuning_that_a_neighbouring_shape_does_not_allow_is_not_used(tmp_path: Path) -> None:
    one = catalogue.find("bias/02_vector")
    values = one.operation.complete({"B": 4, "T": 64, "OC": 3072})
    record(one, values, {"BLOCK": 64, "ROWS": 2})
    assert tunings.best(one, values, "f32", "G", device="emulator") == {"BLOCK": 64, "ROWS": 2}
    ragged = one.operation.complete({"B": 4, "T": 64, "OC": 3071})
    assert tunings.best(one, ragged, "f32", "G", device="emulator") is None


def test_of_a_class_the_nearest_shape_counts_and_of_a_shape_the_newest() -> None:
    one = catalogue.find("bias/02_vector")

    def tuned(block: int, **dims: int) -> None:
        record(one, one.operation.complete(dims), {"BLOCK": block, "ROWS": 2})

    def best(**dims: int) -> dict[str, int] | None:
        return tunings.best(one, one.operation.complete(dims), "f32", "G", device="emulator")

    tuned(64, B=4, T=64, OC=2560)
    tuned(128, B=4, T=64, OC=3072)  # of the same class, and no word on the other
    assert best(B=4, T=64, OC=2560) == {"BLOCK": 64, "ROWS": 2}
    assert best(B=4, T=40, OC=2560) == {"BLOCK": 64, "ROWS": 2}  # two dims of three
    assert best(B=4, T=64, OC=2816) == {"BLOCK": 128, "ROWS": 2}  # as near to both
    tuned(256, B=4, T=64, OC=2560)
    assert best(B=4, T=64, OC=2560) == {"BLOCK": 256, "ROWS": 2}
    assert len(tunings.listed()) == 2


def test_a_shapes_own_tuning_comes_before_a_neighbours_of_a_newer_text(tmp_path: Path) -> None:
    one = catalogue.find("bias/02_vector")
    changed = tmp_path / "02_vector.cu"
    assert one.path is not None
    changed.write_text(one.path.read_text() + "\n__device__ int another;\n")
    later = catalogue.rung_from_file(one.operation, changed)
    large, huge, between = (one.operation.complete({"B": 4, "T": 64, "OC": n}) for n in (2560, 3072, 2816))
    record(one, huge, {"BLOCK": 64, "ROWS": 2})
    record(later, large, {"BLOCK": 128, "ROWS": 2})
    found = [tunings.best(later, v, "f32", "G", device="emulator") for v in (huge, large, between)]
    assert found == [{"BLOCK": n, "ROWS": 2} for n in (64, 128, 128)]


def test_a_win_within_half_a_percent_leaves_the_default(tmp_path: Path) -> None:
    about = subject()

    class Flat(Invented):
        def __call__(self, subject: Any, batch: Any, effort: float) -> Any:
            for tuning in batch:
                ratio = 0.997 if tuning["BLOCK"] == 64 else 1.0
                yield sweeps.Outcome("ok", "", {"cold_us": 10 * ratio, "ratio": ratio})

    swept = sweeps.sweep(about, sweeps.configurations(about.rung), Flat(), store=tmp_path / "rows.jsonl")
    best = summary.best_of(swept)
    assert best is not None and best[0].tuning == about.rung.tuned(None)


def test_without_a_gpu_the_compiler_tells_registers_and_occupancy_and_no_time(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    words = ("sweep", "bias/02", "--measure", "compiler", "--tune", "ROWS=1,8", "--tune", "BLOCK=64")
    assert rung(*words, "--json", "-o", str(tmp_path / "rows.jsonl")) == 0
    shown = capsys.readouterr()
    answer = json.loads(shown.out)
    assert answer["best"] is None and answer["measure"] == "compiler"
    assert [r["tuning"]["ROWS"] for r in answer["rows"]] == [1, 8]
    assert all(r["metrics"]["registers"] > 0 and r["metrics"]["threads"] == 64 and "cold_us" not in r["metrics"] for r in answer["rows"])
    assert answer["rows"][0]["metrics"]["registers"] < answer["rows"][1]["metrics"]["registers"]
    assert "no time is taken" in shown.err
    assert rung("sweep", "--found") == 0
    assert "no tunings" in capsys.readouterr().err


def test_emulated_a_configuration_is_right_or_wrong(tmp_path: Path) -> None:
    about = subject("softmax/02_tree", "b4t64")
    configurations = sweeps.configurations(about.rung, only={"BLOCK": [64, 128]})
    swept = sweeps.sweep(about, configurations, backends.Emulated(), store=tmp_path / "rows.jsonl")
    assert [r.verdict for r in swept.rows] == ["ok", "ok"]
    assert "right at 64, 128" in summary.findings(swept)[0].sentence


@pytest.mark.parametrize(
    ("words", "message"),
    [
        (("nonsense/1",), "there is no operation 'nonsense'"),
        (("layernorm",), "is a ladder; name one rung"),
        (("layernorm/9", "--shape", "b9"), "has no shape 'b9'"),
        (("layernorm/9", "--shape", "B=1,T=2"), "needs the dimension C"),
        (("layernorm/9", "--tune", "BLOCK=100"), "BLOCK = 100 is not in the header"),
        (("layernorm/9", "--tune", "BLICK=64"), "has no tunable 'BLICK'"),
        (("layernorm/9", "--tune", "BLOCK"), "is not NAME=NUMBER"),
        (("layernorm/9", "--dtype", "f8"), "dtype 'f8' is not known"),
        (("layernorm/9", "--measure", "guess"), "--measure guess is not known"),
        (("layernorm/torch",), "has no tunables"),
        (("layernorm/9", "-o", "/dev/zero"), "/dev/zero is not a file"),
        ((), "OP/RUNG"),
    ],
)
def test_a_mistake_is_answered_in_one_sentence(
    words: tuple[str, ...], message: str, capsys: pytest.CaptureFixture[str]
) -> None:
    assert rung("sweep", *words) == 2
    error = capsys.readouterr().err.strip()
    assert message in error and error.splitlines()[-1].startswith("rung: ") and "Traceback" not in error


def test_a_file_that_is_not_ours_is_refused_before_anything_is_measured(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    path = tmp_path / "shopping.jsonl"
    path.write_text('{"milk": 2}\n')
    assert rung("sweep", "bias/02", "--measure", "compiler", "-o", str(path)) == 2
    assert "is not a file of rung's results" in capsys.readouterr().err
    assert path.read_text() == '{"milk": 2}\n'


def test_a_full_disk_ends_the_sweep_in_one_sentence_and_keeps_whole_rows(tmp_path: Path) -> None:
    store = tmp_path / "rows.jsonl"
    before = resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(resource.RLIMIT_FSIZE, (5000, before[1]))  # files of this process end here
    try:
        with pytest.raises(RungError, match=r"rows\.jsonl cannot be written"):
            sweep(store)
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, before)
    stored = list(results.read(store))
    assert 1 <= len(stored) < 14 and store.read_bytes().endswith(b"\n")
    assert sweep(store).resumed == len(stored)


@pytest.mark.skipif(torch.cuda.is_available(), reason="here is a GPU")
def test_asking_for_times_without_a_gpu_says_what_needs_none(capsys: pytest.CaptureFixture[str]) -> None:
    assert rung("sweep", "layernorm/9", "--measure", "time") == 2
    assert "--measure compiler" in capsys.readouterr().err


@pytest.mark.gpu
def test_on_a_gpu_the_winner_is_timed_against_the_default_and_stored(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    words = ("sweep", "layernorm/05_tree", "--tune", "BLOCK=256,4,64", "--seconds", "0.05", "--json")
    assert rung(*words, "-o", str(tmp_path / "rows.jsonl")) == 0
    answer = json.loads(capsys.readouterr().out)
    times = {r["tuning"]["BLOCK"]: r["metrics"]["cold_us"] for r in answer["rows"]}
    assert times[4] > 1.2 * times[256]
    assert answer["best"]["BLOCK"] in (64, 256)
    one = catalogue.find("layernorm/05_tree")
    values = one.operation.complete(one.operation.shapes["b8t1024"])
    assert tunings.best(one, values, "f32") == answer["best"]
    assert rung(*words, "-o", str(tmp_path / "rows.jsonl")) == 0
    assert json.loads(capsys.readouterr().out)["resumed"] == 6


def test_an_unknown_store_of_tunings_is_simply_empty() -> None:
    one = catalogue.find(RUNG)
    values = one.operation.complete(one.operation.shapes["b8t1024"])
    assert tunings.best(one, values, "f32", "a GPU that nobody has") is None


def test_too_many_configurations_want_a_sample(tmp_path: Path) -> None:
    path = tmp_path / "wide.py"
    path.write_text(
        '"""A test."""\nTUNE = {{"A": [{}], "B": [{}]}}\n\n\ndef run(a, b, out):\n    out.copy_(a + b)\n'.format(
            ", ".join(map(str, range(200))), ", ".join(map(str, range(200)))
        )
    )
    one = catalogue.rung_from_file(catalogue.operation("residual"), path)
    with pytest.raises(RungError, match="40,000 configurations; sample some with --random"):
        sweeps.configurations(one)
    assert len(sweeps.configurations(one, sample=5)) == 5


def test_configurations_race_the_default_in_their_batch_and_are_distinguished(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    from rung.bench import race as bench

    about = subject()
    batches: list[list[sweeps.Tuning]] = []

    def race(chosen: Any, **given: Any) -> list[bench.Timed]:
        tunings_ = [given["tunings"][r.full_name] for r in chosen]
        assert len({r.full_name for r in chosen}) == len(chosen)
        batches.append(tunings_)
        rows = []
        for one, tuning in zip(chosen, tunings_, strict=True):
            row = bench.Timed("layernorm", one.full_name, "cuda", "f32", "b8t1024", {}, tuning)
            row.cold_us = 10.0 + tuning["BLOCK"] / 64
            if tuning["BLOCK"] == 512:
                row.verdict, row.reason, row.cold_us = "failed", "wrong", None
            rows.append(row)
        return rows

    monkeypatch.setattr(bench, "bench", race)
    monkeypatch.setattr(backends, "_alive", lambda: True)
    monkeypatch.setattr(torch.cuda, "empty_cache", lambda: None)
    measure = backends.Timed()
    default = about.rung.tuned(None)
    batch = [{"BLOCK": 64, "STREAM": 1}, {"BLOCK": 512, "STREAM": 1}, default]
    outcomes = list(measure(about, batch, 0.1))
    assert batches == [[default, batch[0], batch[1]]]
    assert [o.verdict for o in outcomes] == ["ok", "failed", "ok"]
    assert outcomes[0].figures["ratio"] == pytest.approx(11 / 12)
    assert outcomes[0].figures["registers"] > 0 and outcomes[0].figures["threads"] == 64
    assert outcomes[2].figures["ratio"] == 1.0


def test_when_the_gpus_context_is_lost_the_first_that_failed_is_the_culprit(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    from rung.bench import race as bench

    about = subject()
    batch = [{"BLOCK": b, "STREAM": 0} for b in (64, 96, 192)]

    def race(chosen: Any, **given: Any) -> list[bench.Timed]:
        rows = [bench.Timed("layernorm", r.full_name, "cuda", "f32", "", {}, "", {}) for r in chosen]
        for row in rows[2:]:
            row.verdict, row.reason = "failed", "illegal memory access"
        return rows

    monkeypatch.setattr(bench, "bench", race)
    monkeypatch.setattr(backends, "_alive", lambda: False)
    with pytest.raises(sweeps.ContextLost) as lost:
        list(backends.Timed()(about, batch, 0.1))
    assert lost.value.tuning == batch[1] and lost.value.reason == "illegal memory access"
