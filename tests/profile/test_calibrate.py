"""Constants of predicted times, read from probes: those recorded on an H100, and those that the machine simulates."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
import torch

import gpuless
from emulation import needs_compiler
from gpuless import module, timing
from gpuless.compile import nvrtc
from gpuless.facts import gpus
from gpuless.launch import Build, LaunchConfig
from rung.profile import calibration
from verbs import rung

RECORDED = Path(__file__).parents[2] / "results" / "h100" / "probe.jsonl"


def answered(capsys: pytest.CaptureFixture[str], *words: str) -> dict[str, Any]:
    assert rung(*words, "--json") == 0
    found: dict[str, Any] = json.loads(capsys.readouterr().out)
    return found


def test_probes_of_an_h100_give_the_tables_constants(capsys: pytest.CaptureFixture[str]) -> None:
    found = answered(capsys, "calibrate", "--from", str(RECORDED))
    assert len(found["constants"]) > 15 and found["file"] is None
    off = {one["name"]: one["measured"] / one["table"] for one in found["constants"]}
    assert all(0.92 < ratio < 1.08 for ratio in off.values()), off


@needs_compiler
def test_predictions_read_what_was_calibrated(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    rows = [json.loads(line) for line in RECORDED.read_text().splitlines()]
    for row in rows:
        row["machine"]["gpu"] = "NVIDIA L4"
        if row["what"] == "probe/stream from DRAM":
            row["metrics"] = {"bytes a second": 140e9}  # half of the data sheet's
    file = tmp_path / "probe.jsonl"
    file.write_text("\n".join(map(json.dumps, rows)))
    asked = ("count", "copy/4", "--shape", "N=8388608", "--time", "l4")
    (before,) = answered(capsys, *asked)["results"]
    monkeypatch.setattr(timing, "calibrated_file", lambda gpu: tmp_path / f"{gpu}.toml")
    assert answered(capsys, "calibrate", "--from", str(file))["file"] == str(tmp_path / "NVIDIA L4.toml")
    (after,) = answered(capsys, *asked)["results"]
    assert (before["constants"], after["constants"]) == ("published", "calibrated")
    assert 1.6 < after["us"] / before["us"] < 2.2


def test_what_is_measured_is_kept_and_dated(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("RUNG_RESULTS", str(tmp_path / "store.jsonl"))
    monkeypatch.setattr(calibration, "present", lambda: gpus.find("l4"))
    monkeypatch.setattr(calibration, "measured", lambda of: [("load, first cache", 45.0, "clocks")])
    found = answered(capsys, "calibrate", "-o", str(tmp_path / "row.toml"))
    (kept,) = map(json.loads, (tmp_path / "store.jsonl").read_text().splitlines())
    assert found["when"] == kept["time"][:10] and found["when"] in (tmp_path / "row.toml").read_text()
    assert kept["metrics"] == {"clocks": 45.0}


def test_rows_of_two_gpus_are_refused(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    first, second = (json.loads(line) for line in RECORDED.read_text().splitlines()[:2])
    second["machine"]["gpu"] = "NVIDIA L4"
    file = tmp_path / "probe.jsonl"
    file.write_text(json.dumps(first) + "\n" + json.dumps(second))
    assert rung("calibrate", "--from", str(file)) == 2 and "NVIDIA L4" in capsys.readouterr().err


@needs_compiler
def test_the_probes_compile_for_all_that_have_tensor_cores_of_their_kind() -> None:
    for arch in ("sm_80", "sm_89", "sm_90a", "sm_120a"):
        kernels = (*calibration.KERNELS, *(calibration.ASYNCHRONOUS if arch == "sm_90a" else ()))
        nvrtc.compile_cubin(Build(calibration.SOURCE.read_text(), "probes.cu", kernels, (), ()), arch)


@needs_compiler
@pytest.mark.parametrize(("gpu", "ffma", "dfma"), [("h100", 1, 2), ("a100", 2, 4), ("l4", 1, 64)])
def test_the_model_plays_the_probes_of_arithmetic_as_its_table_says(gpu: str, ffma: float, dfma: float) -> None:
    source, count = calibration.SOURCE.read_text(), 20
    found = module.load(Build(source, "probes.cu", calibration.KERNELS, (), ()))
    out = torch.zeros(1024)
    with gpuless.current().predicted(gpu) as launches:
        for name in ("ffma_many", "dfma_many"):
            given = [("pointer", out), ("i32", count)]
            found.launch(name, LaunchConfig((1, 1, 1), (512, 1, 1)), given)  # type: ignore[arg-type]
    for one, clocks in zip(launches, (ffma, dfma), strict=True):
        assert one.clocks == pytest.approx(count * 64 * 4 * clocks, rel=0.15, abs=1500)
