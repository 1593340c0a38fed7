"""Sweeps over Slurm: the script, and a real cluster where `.ci/slurm` has started one."""

from __future__ import annotations

import json
import os
import shutil
import subprocess
import sys
import threading
import time
from pathlib import Path
from typing import Any

import pytest

from rung.errors import RungError
from rung.results import store as results
from rung.results.row import Row
from rung.rungs import catalogue
from rung.rungs.subjects import subject_of
from rung.sweep import sweep as sweeps
from rung_reproduce.sweeps import course, slurm
from suite import PACKAGES
from verbs import rung

RUNG = "matmul/05_register_tiles"
TUNE = ("BM=64,128", "BN=64,128", "BK=8,16", "TM=4", "TN=4")  # 8 configurations
WORDS = ["sweep", RUNG, "--shape", "b4t64", "--dtype", "f32", "--measure", "compiler"]


def _no_cluster() -> str:
    """Why the tests on a real cluster cannot run here, or nothing."""
    if not shutil.which("sinfo"):
        return "Slurm is not installed; .ci/slurm starts a cluster of one node"
    done = subprocess.run(["sinfo", "--noheader"], capture_output=True, text=True, timeout=30, check=False)
    if done.returncode or not done.stdout.strip():
        return "no Slurm controller answers; .ci/slurm starts a cluster of one node"
    return ""


REASON = _no_cluster()
on_a_cluster = pytest.mark.skipif(bool(REASON), reason=REASON)


@pytest.fixture(autouse=True)
def own_places(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("RUNG_RESULTS", str(tmp_path / "results.jsonl"))
    monkeypatch.setenv("RUNG_TUNINGS", str(tmp_path / "tunings.jsonl"))
    monkeypatch.setenv("RUNG_CACHE", str(tmp_path / "cache"))
    monkeypatch.setenv("PYTHONPATH", PACKAGES)


def planned() -> list[sweeps.Tuning]:
    only = {w.partition("=")[0]: [int(v) for v in w.partition("=")[2].split(",")] for w in TUNE}
    return sweeps.configurations(catalogue.find(RUNG), only=only)


def tuned(*words: str) -> list[str]:
    return [*words, *(part for word in TUNE for part in ("--tune", word))]


def row(tuning: sweeps.Tuning, verdict: str = "ok") -> Row:
    return Row(kind="sweep", what=RUNG, shape="b4t64", tuning=tuning, verdict=verdict)


def places(tunings: list[sweeps.Tuning]) -> list[sweeps.Place]:
    return [sweeps.place_of(row(tuning)) for tuning in tunings]


def test_a_dry_run_shows_the_script_and_submits_nothing(capsys: pytest.CaptureFixture[str], tmp_path: Path) -> None:
    words = ("--slurm", "--dry-run", "--tasks", "3", "--gpus", "1", "--exclusive", "--partition", "gpu")
    more = ("--account", "me", "--time", "00:20:00", "--sbatch=--qos=low", "--folder", str(tmp_path / "f"))
    assert rung("course", "layernorm/9", *words, *more) == 0
    script = capsys.readouterr().out
    assert script.startswith("#!/bin/bash\n")
    for line in (
        "--array=0-2", "--gres=gpu:1", "--exclusive", "--partition=gpu", "--account=me", "--time=00:20:00",
        "--requeue", "--open-mode=append", "--qos=low", f"--output={tmp_path}/f/task-%a.log",
    ):  # fmt: skip
        assert f"#SBATCH {line}\n" in script
    assert f"{sys.executable} -m rung course layernorm/9" in script
    assert '--shard "$SLURM_ARRAY_TASK_ID/3"' in script
    assert "--slurm" not in script
    assert not (tmp_path / "f").exists()
    done = subprocess.run(["bash", "-n"], input=script, capture_output=True, text=True, check=False)
    assert (done.returncode, done.stderr) == (0, "")


def test_every_configuration_is_in_exactly_one_shard() -> None:
    every = planned()
    shards = [slurm.shard_of(every, i, 3) for i in range(3)]
    assert sorted(map(str, every)) == sorted(str(t) for shard in shards for t in shard)
    assert [len(s) for s in shards] == [3, 3, 2]


def test_only_the_shards_that_lack_rows_are_submitted_again(tmp_path: Path) -> None:
    every = planned()
    for index in range(3):
        for tuning in slurm.shard_of(every, index, 3)[: 3 if index != 1 else 1]:
            results.append(row(tuning), tmp_path / f"shard-{index}.jsonl")
    assert slurm.missing(tmp_path, places(every), 3) == [1]
    script = slurm.script(WORDS, slurm.Request(tasks=12, gpus=0), tmp_path, [1, 4, 5, 6, 9])
    assert "#SBATCH --array=1,4-6,9\n" in script and "gres" not in script


def test_a_configuration_that_two_attempts_measured_is_gathered_once(tmp_path: Path) -> None:
    every = planned()
    results.append(row(every[0], "failed"), tmp_path / "shard-0.jsonl")
    results.append(row(every[0]), tmp_path / "shard-0.jsonl")
    results.append(row(every[1]), tmp_path / "shard-1.jsonl")
    assert [(r.tuning, r.verdict) for r in slurm.gathered(tmp_path, places(every))] == [
        (every[0], "ok"),
        (every[1], "ok"),
    ]


def test_an_sbatch_that_refuses_is_reported_in_its_own_words(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    fake = tmp_path / "bin" / "sbatch"
    fake.parent.mkdir()
    fake.write_text("#!/bin/sh\necho 'sbatch: error: invalid partition specified: gpu' >&2\nexit 1\n")
    fake.chmod(0o755)
    monkeypatch.setenv("PATH", f"{fake.parent}:{os.environ['PATH']}")
    folder = tmp_path / "folder"
    assert rung("course", "bias/02", "--slurm", "--folder", str(folder)) == 2
    assert capsys.readouterr().err.strip().endswith("invalid partition specified: gpu.")


def test_a_machine_without_slurm_says_so(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setenv("PATH", str(tmp_path))
    assert rung("course", "bias/02", "--slurm", "--folder", str(tmp_path / "f")) == 2
    assert "sbatch was not found on this machine" in capsys.readouterr().err


def local(capsys: pytest.CaptureFixture[str], store: Path) -> list[Any]:
    assert rung(*tuned(*WORDS), "--json", "-o", str(store)) == 0
    return _table(json.loads(capsys.readouterr().out)["rows"])


def _table(rows: list[dict[str, Any]]) -> list[Any]:
    return [(r["tuning"], r.get("verdict", "ok"), r["metrics"].get("registers"), r["metrics"].get("occupancy")) for r in rows]


@on_a_cluster
def test_a_sweep_over_slurm_gives_the_table_of_a_sweep_at_home(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    folder, store = tmp_path / "folder", tmp_path / "gathered.jsonl"
    spread = ("--slurm", "--gpus", "0", "--tasks", "2", "--folder", str(folder))
    assert rung(*tuned("course", *WORDS[1:]), *spread, "--json", "-o", str(store)) == 0
    assert _table(json.loads(capsys.readouterr().out)["rows"]) == local(capsys, tmp_path / "home.jsonl")
    assert len([r for r in results.read(store) if r.kind == "sweep"]) == 8
    jobs = sorted(folder.glob("job-*.sh"))
    assert rung(*tuned("course", *WORDS[1:]), *spread, "--json", "-o", str(store)) == 0  # all is there: nothing is submitted
    assert sorted(folder.glob("job-*.sh")) == jobs
    assert len([r for r in results.read(store) if r.kind == "sweep"]) == 8


def test_the_courses_table_is_one_array_over_all_of_its_kernels(
    capsys: pytest.CaptureFixture[str], tmp_path: Path
) -> None:
    words = ("--slurm", "--dry-run", "--tasks", "5", "--measure", "compiler", "--profile")
    assert rung("course", *words, "--folder", str(tmp_path / "f")) == 0
    script = capsys.readouterr().out
    assert "#SBATCH --array=0-4\n" in script and '--shard "$SLURM_ARRAY_TASK_ID/5"' in script
    assert "-m rung course --measure compiler --seconds 0.2 --profile" in script


@on_a_cluster
def test_the_courses_table_over_slurm_is_that_of_this_machine(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    words = ("course", "--measure", "compiler", "--json")
    spread = ("--slurm", "--gpus", "0", "--tasks", "2", "--folder", str(tmp_path / "f"))
    assert rung(*words, *spread, "-o", str(tmp_path / "gathered.jsonl")) == 0
    remote = json.loads(capsys.readouterr().out)
    assert rung(*words, "-o", str(tmp_path / "home.jsonl")) == 0
    home = json.loads(capsys.readouterr().out)
    assert len(remote["rows"]) == 71 and _table(remote["rows"]) == _table(home["rows"])
    assert remote["calls"]["layernorm"] == 25 and remote["theirs_us"]["layernorm"]["256"] == pytest.approx(180.449)


@on_a_cluster
def test_a_cancelled_and_a_requeued_task_lose_nothing(tmp_path: Path) -> None:
    folder = tmp_path / "folder"
    every, messages = planned(), []
    answer: list[Any] = []

    def work() -> None:
        request = slurm.Request(tasks=2, gpus=0)
        answer.append(slurm.spread(tuned("course", *WORDS[1:]), request, folder, places(every), progress=lambda *t: messages.append(t)))

    thread = threading.Thread(target=work)
    thread.start()
    try:
        for index, action in ((0, ["scontrol", "requeue"]), (1, ["scancel"])):
            _until(lambda i=index: _rows(folder / f"shard-{i}.jsonl") >= 1)
            job = str(messages[0][0]).split()[1].rstrip(",")
            subprocess.run([*action, f"{job}_{index}"], check=False, capture_output=True)
    finally:
        thread.join(timeout=240)
    assert not thread.is_alive()
    rows = answer[0]
    assert [r.tuning for r in rows] == every and all(r.verdict == "ok" for r in rows)
    measured = [r.tuning for p in folder.glob("shard-*.jsonl") for r in results.read(p)]
    assert len(measured) == len(every)  # what was measured before was not measured again


@on_a_cluster
def test_a_task_that_always_fails_is_given_up_with_its_last_words(tmp_path: Path) -> None:
    folder = tmp_path / "folder"
    request = slurm.Request(tasks=1, gpus=0)
    with pytest.raises(RungError, match=r"tasks 0 did not finish in 2 attempts.*there is no operation 'nonsense'"):
        slurm.spread(["course", "nonsense/1"], request, folder, places(planned()), retries=1)


def _rows(path: Path) -> int:
    return len(path.read_bytes().splitlines()) if path.exists() else 0


def _until(remote: Any) -> None:
    patience = time.monotonic() + 120
    while not remote():
        assert time.monotonic() < patience, "the task did not begin"
        time.sleep(0.1)


def test_a_rung_is_swept_at_home_by_the_cores_verb(capsys: pytest.CaptureFixture[str]) -> None:
    assert rung("course", "layernorm/9") == 2
    assert "rung sweep layernorm/9" in capsys.readouterr().err


def test_the_courses_table_can_be_swept_with_the_headers_as_they_are() -> None:
    theirs = {c.title: list(c.theirs) for c in course.TABLE}
    assert theirs.pop("embedding") == list(course.EDGES)
    for title in ("residual, fused", "gelu, fused", "layernorm", "prepare out"):
        assert theirs.pop(title) == list(course.BLOCKS)
    assert not any(theirs.values())
    subjects = [subject_of(c.rung, None, c.shape, c.dtype) for c in course.TABLE]
    every = course.configurations(subjects)
    assert len(every) == 7 * 9 + 8 and len({sweeps.place(s, t) for _, s, t in every}) == len(every)
    assert [sweeps.illegal(s, t, "emulator", "sm_90") for _, s, t in every] == [None] * len(every)
