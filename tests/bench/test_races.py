"""What `rung bench all` times, what is compiled ahead of it, and the tunings that come with rung."""

from __future__ import annotations

from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
import torch

from rung import lines
from rung.bench import plan
from rung.errors import RungError
from rung.rungs import catalogue, tunings
from rung.rungs.compile_ahead import Compilers, finish
from rung.rungs.cuda import CudaRung


def test_every_ladder_is_raced_at_shapes_and_in_formats_that_it_has() -> None:
    races = plan.of_all(None, None, 1.0)
    assert {r.operation for r in races} == set(catalogue.operations())
    for race in races:
        assert race.shape in catalogue.operation(race.operation).shapes, race
        assert all(race.dtype in r.dtypes for r in race.running), race
    assert len({(r.operation, r.shape, r.dtype) for r in races}) == len(races)


def test_every_rung_is_raced() -> None:
    raced = {r.full_name for race in plan.of_all(None, None, 1.0) for r in race.running}
    assert raced == {r.full_name for n in catalogue.operations() for r in catalogue.rungs(n)}


@pytest.mark.parametrize("turn", ["first", "again, elsewhere"])  # whose processes an older server makes
def test_kernels_are_compiled_in_other_processes_and_failures_are_counted(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, turn: str
) -> None:
    monkeypatch.setenv("RUNG_CACHE", str(tmp_path))
    shape = {"B": 2, "T": 8, "C": 64}
    with Compilers(1) as compilers:
        good = compilers.submit("layernorm/01_naive", shape, "f32", None)
        bad = compilers.submit("layernorm/01_naive", shape, "int3", None)
        assert finish([good, bad]) == 1
        assert good.exception() is None
        assert isinstance(bad.exception(), RungError)
    assert list(tmp_path.rglob("*.cubin")), "nothing came into the cache"


def test_the_rungs_still_take_the_tunings_that_come_with_rung() -> None:
    rows = list(lines.read(tunings.MEASURED, tunings.FORMAT, "tunings", "rung sweep"))
    assert rows
    for row in rows:
        rung = catalogue.find(row["rung"])
        assert all(value in rung.tune[name] for name, value in row["tuning"].items())
        assert row["class"] == tunings.shape_class(rung, row["values"])


def record(row: dict[str, Any]) -> None:
    given = {name: row[name] for name in ("dtype", "values", "tuning", "cold_us", "machine")}
    tunings.record(catalogue.find(row["rung"]), **given, default_us=None)


def test_a_tuning_of_an_earlier_text_serves_while_the_rung_takes_its_values(tmp_path: Path) -> None:
    path, row = tmp_path / "tunings.jsonl", next(iter(lines.read(tunings.MEASURED, tunings.FORMAT, "tunings", "rung sweep")))
    rung = catalogue.find(row["rung"])
    (name, *_), earlier = row["tuning"], {**row, "own_text": "0" * 16}

    def served(*entries: dict[str, Any]) -> dict[str, int] | None:
        path.unlink(missing_ok=True)
        for one in entries:
            lines.append(path, one)
        return tunings.best(rung, row["values"], row["dtype"], row["machine"]["gpu"], path=path, device="emulator")

    assert served(earlier) == row["tuning"] and [r["stale"] for r in tunings.listed(path)] == [True]
    assert served({**earlier, "tuning": {**row["tuning"], name: -1}}) is None
    assert served({**earlier, "tuning": {**row["tuning"], "GONE": 1}}) is None


def test_a_users_tuning_comes_before_one_that_came_with_rung(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("RUNG_TUNINGS", str(tmp_path / "tunings.jsonl"))
    row = next(r for r in lines.read(tunings.MEASURED, tunings.FORMAT, "tunings", "rung sweep") if r["rung"].startswith("layernorm/"))
    rung = catalogue.find(row["rung"])
    assert isinstance(rung, CudaRung)

    def known() -> dict[str, int] | None:
        return tunings.best(rung, row["values"], row["dtype"], row["machine"]["gpu"], device="emulator")

    assert known() == row["tuning"]
    own = {**row, "tuning": {**row["tuning"], "BLOCK": 96}}
    record(own)
    assert known() == own["tuning"]


@pytest.mark.parametrize(
    ("name", "capability", "sms", "known"),
    [
        ("NVIDIA H200", (9, 0), 132, True),
        ("NVIDIA H100 80GB HBM3", (9, 0), 132, True),
        ("NVIDIA H100 PCIe", (9, 0), 114, False),
        ("NVIDIA A100", (8, 0), 108, False),
    ],
)
def test_a_gpu_that_differs_in_memory_alone_is_served_by_its_siblings_tunings(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path, name: str, capability: tuple[int, int], sms: int, known: bool
) -> None:
    monkeypatch.setenv("RUNG_TUNINGS", str(tmp_path / "tunings.jsonl"))
    monkeypatch.setattr(torch.cuda, "is_available", lambda: True)
    monkeypatch.setattr(torch.cuda, "current_device", lambda: 0)
    monkeypatch.setattr(torch.cuda, "get_device_name", lambda: name)
    here = SimpleNamespace(major=capability[0], minor=capability[1], multi_processor_count=sms)
    monkeypatch.setattr(torch.cuda, "get_device_properties", lambda device: here)
    rows = [r for r in lines.read(tunings.MEASURED, tunings.FORMAT, "tunings", "rung sweep") if r["rung"].startswith("decode/14_pacing")]
    for row in rows:
        rung = catalogue.find(row["rung"])
        found = tunings.best(rung, row["values"], row["dtype"], device="emulator")
        assert found == (row["tuning"] if known else None)
    own = {**rows[0], "tuning": {**rows[0]["tuning"], "RING": 120}, "machine": {"gpu": name}}
    record(own)
    rung = catalogue.find(own["rung"])
    assert tunings.best(rung, own["values"], own["dtype"], device="emulator") == own["tuning"]
