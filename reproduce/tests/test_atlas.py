"""The atlas of profiles, without a GPU.

reproduce/tests/data/ncu_atlas.csv was written by hand after the documentation of ncu's command line (`--csv --page raw
--print-units base --print-metric-instances details`); no machine with an accelerator had a part in it.
"""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any

import pytest

from rung.errors import RungError
from rung.profile import batches, counters, ncu
from rung.results import machine, store
from rung.results.row import Row
from rung.rungs.base import Subject
from rung_reproduce import atlas, sources

TABLE = (Path(__file__).parent / "data" / "ncu_atlas.csv").read_text()
THREE = ("softmax/05_warp", "softmax/04_two_stage", "attention/02_five_kernels")


def subjects() -> list[tuple[Subject, None]]:
    return [(atlas.subject(name, "f32", "b4t64"), None) for name in THREE]


def quiet(_: str) -> None:
    pass


@pytest.fixture(autouse=True)
def own_store(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setattr(ncu, "find", lambda: "ncu")
    monkeypatch.setenv("RUNG_RESULTS", str(tmp_path / "rows.jsonl"))
    return tmp_path / "rows.jsonl"


def test_markers_tell_which_kernels_are_of_which_rung() -> None:
    parts = counters.split(ncu.parse(TABLE), 4)
    assert [[k.kernel for k in part] for part in parts] == [["softmax"], [], ["permute", "query_key"], []]


def test_a_field_may_be_longer_than_python_s_limit() -> None:
    many = "; ".join(f"FADD{i}: {i}" for i in range(20_000))
    text = f'"ID","Kernel Name","Block Size","Grid Size","{counters.OPCODES}"\n"","","","",""\n"0","k","1","1","9 ({many})"\n'
    (launch,) = ncu.parse(text)
    assert len(many) > 200_000 and launch.parts[counters.OPCODES]["FADD19999"] == 19_999


def test_instructions_by_opcode_and_what_follows_from_the_counters() -> None:
    (softmax,) = counters.report(subjects()[0][0], counters.split(ncu.parse(TABLE), 1)[0]).kernels
    assert softmax.opcodes == {"FADD": 36_720, "FFMA": 3_072, "BRA": 6_144, "MUFU.EX2": 6_144}
    assert softmax.figures["no_eligible"] == 60.0 and softmax.figures["stall_barrier"] == 11.3
    assert softmax.figures["bytes_per_s"] == pytest.approx(1e6 / 5e-6)
    assert softmax.figures["global_share"] == 75.0
    assert counters.report(subjects()[0][0], counters.split(ncu.parse(TABLE), 1)[0]).flops == 1_210


def test_a_library_s_largest_kernel_tells_and_opcodes_reach_the_sources_table() -> None:
    row = counters.as_result(*subjects()[0], counters.report(subjects()[0][0], counters.split(ncu.parse(TABLE), 1)[0]))
    figures = [f for e in sources.experiments() if e.title == "FADD instructions" for f in e.figures]
    (fadd,) = [f for f in figures if f.what == "softmax, one warp per block"]
    assert (fadd.value, fadd.beside([Row.of_json(row.as_json())])) == (36_720, 36_720)


def test_every_row_is_stored_at_once_and_a_rung_that_failed_among_others_is_run_alone(
    monkeypatch: pytest.MonkeyPatch, own_store: Path
) -> None:
    profiled: list[int] = []

    def launched(chosen: Sequence[Any], timeout: float = 0) -> list[ncu.Launch]:
        profiled.append(len(chosen))
        if len(chosen) == 1:
            raise RungError("softmax/04_two_stage is wrong at this shape: too far off.")
        return ncu.parse(TABLE)

    monkeypatch.setattr(counters, "launched", launched)
    rows = list(batches.collect(subjects(), 100, quiet, own_store))
    assert profiled == [3, 1] and [r.what for r in store.read(own_store)] == list(THREE)
    assert [r.verdict for r in rows] == ["ok", "failed", "ok"] and "wrong at this shape" in rows[1].reason
    assert [k["kernel"] for k in rows[2].detail["kernels"]] == ["permute", "query_key"]


def test_what_has_a_row_of_this_code_is_not_profiled_again_and_time_ends_it(
    monkeypatch: pytest.MonkeyPatch, own_store: Path
) -> None:
    gpu = {"gpu": "NVIDIA H200"}
    monkeypatch.setattr(machine, "facts", lambda: gpu)
    monkeypatch.setattr(counters, "launched", lambda chosen, timeout=0: ncu.parse(TABLE))
    assert list(batches.collect(subjects(), 10, quiet, own_store)) == []
    assert len(list(batches.collect(subjects()[:1], 100, quiet, own_store))) == 1
    assert [s.rung.full_name for s, _ in atlas.missing(subjects(), own_store)] == list(THREE[1:])


def test_the_atlas_holds_every_rung_of_which_a_source_has_a_counter_once() -> None:
    planned = atlas.planned()
    named = [(s.rung.full_name, s.dtype.name, s.shape, tuple((t or {}).items())) for s, t in planned]
    assert len(set(named)) == len(named) > 60
    for place in sources.references("profile"):
        assert (place.what, place.dtype, place.shape, tuple(place.tuning.items())) in named
    for subject, tuning in planned:
        assert subject.rung.refusal(subject.values, subject.dtype, tuning) is None


def test_metrics_that_ncu_does_not_find_are_left_out_and_remembered(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(ncu, "_UNKNOWN", set())
    script = tmp_path / "ncu"
    script.write_text(
        "#!/bin/sh\n"
        'while [ "$1" != --log-file ]; do shift; done; log=$2; wanted=$4\n'
        "case $wanted in\n"
        "*sm__gone.sum*) echo '==ERROR== Failed to find metric regex:^sm__gone\\.(sum|min|max|avg)$' > $log; exit 9;;\n"
        "*sm__old*) echo '==ERROR== Failed to find metric sm__old' > $log; exit 9;;\n"
        f"esac\ncat {Path(__file__).parent}/data/ncu_atlas.csv > $log\necho $wanted >> {tmp_path}/asked\n"
    )
    script.chmod(0o755)
    monkeypatch.setattr(ncu, "find", lambda: str(script))
    metrics = ["gpu__time_duration.sum", "sm__gone.sum", "sm__old", "sm__gone_too.sum"]
    assert len(ncu.run(["true"], metrics)) == 6
    assert {"sm__gone.sum", "sm__old"} == ncu._UNKNOWN
    assert len(ncu.run(["true"], metrics)) == 6
    assert (tmp_path / "asked").read_text().split() == ["gpu__time_duration.sum,sm__gone_too.sum"] * 2
