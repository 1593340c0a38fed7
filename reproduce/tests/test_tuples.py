"""`rung course --tuples`: six block sizes over the whole model, each tuple in a folder of its own."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
import torch

import gpt2_models as models
import gpuless
from rung.errors import RungError
from rung.models.family import read_config
from rung.models.weights import Linear, read_weights
from rung_reproduce.sweeps import tuples
from rung_reproduce.sweeps.slurm import Request
from verbs import rung

SIZES = "32,128,5,64,16,32"


@pytest.mark.skipif(gpuless.available() is not None, reason="the emulator needs g++")
def test_each_tuple_has_a_folder_with_its_configuration_and_its_times(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    folder = models.saved(n_layer=1)
    config = read_config(folder / "config.json")
    weights = read_weights(folder, config, lambda w: Linear(w.float().contiguous()), lambda v: v.float())
    monkeypatch.setattr(tuples, "TOKENS", 5)
    monkeypatch.setattr(tuples, "BATCH", 1)
    device = "cuda" if torch.cuda.is_available() else "emulator"
    jobs = [tuples.parsed(SIZES), tuples.parsed("32,128,5,48,16,32")]
    right, wrong = tuples.run(config, weights, jobs, tmp_path, device)
    assert right["verdict"] == "ok" and right["tuple"] == "R32_G128_E5_L64_P16_F32"
    assert json.loads((tmp_path / str(right["tuple"]) / "conf.json").read_text())["layernorm"] == 64
    assert json.loads((tmp_path / str(right["tuple"]) / "profile.json").read_text())["kl_nats"] < 1e-3
    assert wrong["verdict"] == "failed" and "BLOCK" in str(wrong["reason"]), "a tree needs a power of two"
    assert ("forward_us" in right) == (device == "cuda")


def test_a_job_over_slurm_has_its_own_script_with_its_own_tuple(tmp_path: Path) -> None:
    job = tuples.parsed(SIZES)
    text = tuples.script(job, tmp_path / job.name, Request(partition="gpu", time="00:10:00"), {"PYTHONPATH": "/a b"})
    assert f"#SBATCH --output={tmp_path}/{job.name}/verify_output_{job.name}.out" in text
    assert "#SBATCH --partition=gpu" in text and "export PYTHONPATH='/a b'" in text
    assert text.rstrip().endswith(f"rung course --tuples {SIZES} --folder {tmp_path}")


def test_the_scripts_of_all_tuples_are_shown_and_a_short_tuple_is_refused(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    code = rung("course", "--tuples", SIZES, "--tuples", "4,4,3,4,4,4", "--dry-run", "--folder", str(tmp_path))
    output = capsys.readouterr().out
    assert code == 0 and output.count("#!/bin/bash") == 2 and "R4_G4_E3_L4_P4_F4" in output
    with pytest.raises(RungError, match="6 numbers"):
        tuples.parsed("1,2,3")
