"""The ring and the split model over torch.distributed: gloo between processes here, NCCL between GPUs."""

import json
import os
import subprocess
import sys
import time

import numpy as np
import pytest
import torch

from rung.errors import RungError
from rung.models.family import read_config
from rung.models.folders import INNER
from rung.models.plans import make_plan
from rung.models.weights import Linear, read_weights, shard
from rung_reproduce.parallel import data, launch, nccl, ring, tensor_parallel
from rung_reproduce.parallel.ring import cuts
from suite import PACKAGES

pytestmark = pytest.mark.slow

SIZES = (1, 7, 64, 257)


@pytest.fixture(autouse=True)
def program(tmp_path, monkeypatch):
    """Writes a module that torchrun can start."""
    paths = [str(tmp_path), PACKAGES, os.environ.get("PYTHONPATH", "")]
    monkeypatch.setenv("PYTHONPATH", os.pathsep.join(filter(None, paths)))

    def write(text):
        (tmp_path / "program_of_the_test.py").write_text(text)
        return "program_of_the_test"

    return write


RING = """
import sys, numpy as np, torch
from rung_reproduce.parallel import data, nccl, ring
from rung_reproduce.parallel.group import joined

with joined("cpu", 30) as group, torch.inference_mode():
    for n in {sizes}:
        for causal in (True, False):
            qkv = torch.from_numpy(data.generate(n, 16, 2, seed=n))
            rows = ring.zigzag(n, group.size)
            mine = qkv[:, :, torch.from_numpy(rows[group.rank])]
            out, lse = nccl.ring_attention(group, mine, rows, causal=causal)
            np.savez(f"{folder}/{{n}}_{{causal}}_{{group.rank}}.npz", out=out.numpy(), lse=lse.numpy())
"""


def test_the_ring_over_processes_gives_what_float64_gives(program, tmp_path):

    ranks = 3
    launch.torchrun(program(RING.format(sizes=SIZES, folder=tmp_path)), [], ranks, limit=60)
    for n in SIZES:
        for causal in (True, False):
            right, right_lse = data.attention(data.generate(n, 16, 2, seed=n), causal=causal)
            for rank, rows in enumerate(ring.zigzag(n, ranks)):
                with np.load(tmp_path / f"{n}_{causal}_{rank}.npz") as file:
                    np.testing.assert_allclose(file["out"], right[:, rows], rtol=1.3e-6, atol=1e-5)
                    np.testing.assert_allclose(file["lse"], right_lse[:, rows], rtol=1.3e-6, atol=1e-5)


def test_gpt2_over_two_processes_agrees_with_one():
    text = launch.torchrun(
        "rung_reproduce.parallel.tensor_parallel",
        ["inner", "--device", "cpu", "--rows", "2", "--tokens", "12"],
        2,
        limit=90,
    )
    row = json.loads(text[text.index("{") :])
    assert row["processes"] == 2 and row["same_greedy_tokens"]
    assert 0 < row["error"] < 1e-5  # not zero: sums of halves are rounded otherwise than the whole's


DYING = """
import os, signal, time
import torch
import torch.distributed as dist
from rung_reproduce.parallel.group import joined

with joined("cpu", 4) as group:
    group.meet()
    if group.rank == 1:
        {death}
    group.meet()
"""


@pytest.mark.parametrize(
    ("death", "message"),
    [
        ("os.kill(os.getpid(), signal.SIGKILL)", "process 0 of 2|signal 9|closed by peer|SIGKILL"),
        ("raise ValueError('no more')", "process 1 of 2: ValueError.*no more"),
    ],
    ids=["killed", "raises"],
)
def test_a_lost_process_ends_the_job_with_one_sentence(program, death, message):
    start = time.monotonic()
    with pytest.raises(RungError, match=message) as caught:
        launch.torchrun(program(DYING.format(death=death)), [], 2, limit=60)
    assert "\n" not in str(caught.value)
    assert time.monotonic() - start < 45


@pytest.mark.skipif(torch.cuda.device_count() >= 2, reason="there are GPUs enough")
def test_too_few_gpus_are_refused_in_one_sentence():
    with pytest.raises(RungError, match=r"2 processes need as many GPUs, but there are [01]; start fewer"):
        launch.torchrun("rung_reproduce.parallel.nccl", ["64", "--device", "cuda"], 2, limit=60)


def test_a_module_of_several_processes_says_how_it_is_started():
    command = [sys.executable, "-m", "rung_reproduce.parallel.nccl", "64", "--device", "cpu"]
    done = subprocess.run(command, capture_output=True, text=True)
    assert done.returncode == 2
    assert done.stderr.startswith("rung: start this with torchrun") and done.stderr.count("\n") == 1


@pytest.mark.parametrize("ranks", [2, 3, 4])
def test_the_parts_of_a_layer_make_up_the_whole(ranks):
    config = read_config(INNER / "config.json")
    weights = read_weights(INNER, config, lambda w: Linear(w.contiguous()), lambda t: t)
    whole = weights.layers[0]
    parts = [shard(weights, rank, ranks, cuts).layers[0] for rank in range(ranks)]
    assert (torch.cat([p.fc.weight for p in parts]) == whole.fc.weight).all()
    assert (torch.cat([p.mlp_proj.weight for p in parts], 1) == whole.mlp_proj.weight).all()
    assert (torch.cat([p.attn_proj.weight for p in parts], 1) == whole.attn_proj.weight).all()
    thirds = [torch.cat([p.qkv.weight.view(3, -1, config.C)[i] for p in parts]) for i in range(3)]
    assert (torch.cat(thirds) == whole.qkv.weight).all()
    assert (torch.cat([p.qkv.bias.view(3, -1)[2] for p in parts]) == whole.qkv.bias.view(3, -1)[2]).all()


def test_more_processes_than_heads_are_refused():
    config = read_config(INNER / "config.json")
    weights = read_weights(INNER, config, lambda w: Linear(w.contiguous()), lambda t: t)
    plan = tensor_parallel.ShardPlan(make_plan("cpu", "float32", "torch", {}), 0, config.NH + 1)
    with pytest.raises(RungError, match="more than the model's"):
        tensor_parallel.shard(weights, config, plan)


def test_merging_halves_of_the_keys_gives_the_whole():
    generator = torch.Generator().manual_seed(5)
    q, k, v = torch.randn(3, 2, 40, 8, generator=generator)
    into = torch.zeros(2, 40, 8), torch.full((2, 40), -torch.inf)
    for part in (slice(0, 13), slice(13, 40)):
        nccl.merge(into, nccl.attend(q, k[:, part], v[:, part], causal=False))
    out, lse = nccl.attend(q, k, v, causal=False)
    torch.testing.assert_close(into[0], out)
    torch.testing.assert_close(into[1], lse)


@pytest.mark.parametrize(("n", "ranks"), [(1, 3), (7, 3), (64, 4), (257, 5)])
def test_front_halves_are_those_of_the_placement(n, ranks):
    for front, rows in zip(nccl.front_halves(n, ranks), ring.zigzag(n, ranks), strict=True):
        edge = n * ranks // (2 * ranks)
        assert (rows[:front] < edge).all() and (rows[front:] >= edge).all()
