"""Texts in blocks over processes and over a Ray cluster: what one process gives, also when a process or a node is lost."""

from __future__ import annotations

import json
import os
import signal
import sys
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import pytest

import gpt2_models as models
import rung
from rung.cli import main
from rung.errors import RungError
from rung.models.batching import blocks
from rung.models.batching.blocks import Job, over_gpus, over_ray

SMALL = {"n_embd": 16, "n_head": 1, "n_layer": 1}
SOURCE = str(Path(__file__).parents[2] / "src")


def job(verb: str = "score", **options: Any) -> Job:
    how = {"model": str(models.saved(**SMALL)), "dtype": "float32", "device": "cpu", "threads": 1}
    return Job(how, verb, options)


def texts(count: int) -> list[str]:
    return [f"Once upon {i}" for i in range(count)]


def by_one(job_: Job, some: list[str]) -> list[blocks.Records]:
    return list(job_.run(rung.load(**job_.model), some))


@pytest.mark.slow
def test_processes_give_what_one_gives_though_one_is_killed(monkeypatch: pytest.MonkeyPatch) -> None:
    pools: list[Any] = []
    made = blocks.WorkerPool
    monkeypatch.setattr(blocks, "WorkerPool", lambda *a, **how: pools.append(made(*a, **how)) or pools[-1])
    job_, some = job(per_token=True), texts(60)
    found = []
    for records in over_gpus(job_, some, 2, block=5):
        found.append(records)
        if len(found) == 12:
            os.kill(pools[0].workers[0].process.pid, signal.SIGKILL)
    assert found == by_one(job_, some)


@pytest.mark.slow
def test_a_model_that_cannot_be_loaded_says_why() -> None:
    with pytest.raises(RungError, match="no folder /nowhere"):
        list(over_gpus(Job({"model": "/nowhere"}, "score", {}), ["a"], 1))


@pytest.mark.soak
def test_a_cluster_gives_what_one_process_gives_though_a_node_is_lost(monkeypatch: pytest.MonkeyPatch) -> None:
    ray = pytest.importorskip("ray")
    from ray.cluster_utils import Cluster

    job_, some = job(), texts(10_000)
    node = {"num_cpus": 1, "object_store_memory": 100 << 20}
    # A node that does not answer is lost after seconds; Ray's own patience is half a minute.
    patience = {"period_ms": 500, "timeout_ms": 5000, "failure_threshold": 3, "initial_delay_ms": 0}
    head = {**node, "include_dashboard": False}
    head["_system_config"] = {f"health_check_{name}": value for name, value in patience.items()}
    aside = ThreadPoolExecutor(1)
    cluster = Cluster(initialize_head=True, head_node_args=head)
    try:
        lost = cluster.add_node(**node)
        ray.init(address=cluster.address, log_to_driver=False, logging_level="ERROR")
        assert ray.cluster_resources()["CPU"] == 2
        expected = aside.submit(by_one, job_, some)  # while the actors begin
        found = []
        for records in over_ray(job_, some, cluster.address, block=250):
            found.append(records)
            if len(found) == len(some) // 2:
                cluster.remove_node(lost, allow_graceful=False)
        assert len(found) == len(some) and found == expected.result()
        sampled = job("generate", max_new_tokens=4, temperature=1.0, num_samples=2, seed=3)
        assert list(over_ray(sampled, some[:5], cluster.address)) == json.loads(json.dumps(by_one(sampled, some[:5])))
    finally:
        aside.shutdown()
        ray.shutdown()
        cluster.shutdown()


def test_without_a_cluster_or_ray_the_reason_is_reported(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "ray", None)
    with pytest.raises(RungError, match=r"rung\[ray\]"):
        list(over_ray(job(), ["a"], "auto"))


def test_gpus_of_this_machine_and_a_cluster_exclude_each_other(capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit) as ended:
        main(["score", "a.txt", "--gpus", "2", "--ray"])
    assert ended.value.code == 2 and "leave one of them out" in capsys.readouterr().err


def test_generate_goes_on_where_its_output_ends(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    prompts, whole, part = tmp_path / "prompts.txt", tmp_path / "whole.jsonl", tmp_path / "part.jsonl"
    prompts.write_text("\n".join(texts(5)))
    words = ["--prompts", str(prompts), "-m", str(models.saved(**SMALL)), "--dtype", "float32", "-n", "5", "--seed", "4"]

    def generate(output: Path) -> str:
        with pytest.raises(SystemExit) as ended:
            main(["generate", *words, "--num-samples", "2", "-o", str(output)])
        assert not ended.value.code and capsys.readouterr().out == ""
        return output.read_text()

    expected = generate(whole)
    assert [json.loads(line)["index"] for line in expected.splitlines()] == list(range(10))
    part.write_text("".join(expected.splitlines(keepends=True)[:3]) + expected.splitlines()[3][:20])
    assert generate(part) == expected == generate(part)
