"""Tokens drawn by a cluster of blocks: every way through the rung, row by row against the reference."""

from __future__ import annotations

import itertools
from typing import Any

import pytest
import test_sample_groups as groups
import torch

from gpuless.compile import nvrtc
from rung.errors import RungError
from rung.models.folders import INNER
from rung.models.gpu import token_sampler
from rung.models.gpu.engine import GpuSteps
from rung.models.load import load
from rung.models.sampling import Sampling
from rung.models.weights import Linear, read_weights
from rung.operation import Tensors, Values
from rung.rungs import catalogue
from rung.rungs.base import Prepared
from rung.rungs.cuda import CudaRung
from written import written

RUNG = catalogue.find("sample/cluster")
SAMPLE = RUNG.operation
PLAIN = torch.tensor([1.0, 0.0, 0.0, 0.0])  # no penalties


def tokens_of(tensors: Tensors, values: Values, block: int = 32, cluster: int = 8) -> Tensors:
    own = {name: t.clone() for name, t in tensors.items()}
    tuning = {"BLOCK": block, "CLUSTER": cluster}
    RUNG.prepare(own, values, groups.REAL, device="emulator", tuning=tuning).run()
    return own


def assert_drawn_alike(tensors: Tensors, values: Values, block: int = 32, cluster: int = 8) -> None:
    wide = {n: t.double() if t.is_floating_point() else t.long() for n, t in tensors.items()}
    expected, found = SAMPLE.reference(wide, values), tokens_of(tensors, values, block, cluster)
    assert found["next"].tolist() == expected["next"].tolist()
    assert torch.equal(found["marks"].long(), expected["marks"])


# A warp has 16 rows of 32 tokens, 8, 2 or one; its maxima bound a top-k of up to 4, 8, 32 or 64.
WAYS = (((32, 4), 0.5), ((32, 8), 6.0), ((128, 8), 0.5), ((512, 4), 6.0))


@pytest.mark.parametrize(
    ("block", "cluster", "spread"),
    [
        pytest.param(*blocks, spread, marks=[] if (blocks, spread) in WAYS else pytest.mark.slow)
        for (blocks, _), spread in itertools.product(WAYS, (0.5, 6.0))
    ],
)
def test_every_method_of_sampling(block: int, cluster: int, spread: float) -> None:
    settings = [
        (t, k, p, m)
        for t in (0.0, 0.7, 1.5)
        for k, p, m in itertools.product((0.0, 1.0, 3.0, 12.0, 60.0, 500.0), (1.0, 0.9, 0.3), (0.0, 0.1))
    ]
    tensors, values = groups.rows(settings, 1999, spread)
    assert_drawn_alike(tensors, values, block, cluster)


@pytest.mark.parametrize("spread", [0.3, 3.0])
def test_gpt2s_vocabulary_at_the_tuning_that_serves(spread: float) -> None:
    settings = [(0.8, 0.0, 1.0, 0.0), (0.8, 0.0, 0.95, 0.0), (0.8, 50.0, 1.0, 0.0), (0.8, 2000.0, 0.95, 0.01)]
    tensors, values = groups.rows(settings, 50257, spread)
    assert_drawn_alike(tensors, values, block=1024, cluster=8)


def test_equal_logits_are_cut_where_the_order_says() -> None:
    settings = [(1.0, 5.0, 1.0, 0.0), (1.0, 0.0, 0.37, 0.0), (1.0, 0.0, 0.9, 0.0), (0.0, 0.0, 1.0, 0.0)] * 8
    tensors, values = groups.rows(settings, 333, 0.0)
    tensors["logits"][:, 170:] = 1.0
    tensors["settings"][:, 4:] = PLAIN
    assert_drawn_alike(tensors, values)


def test_both_zeros_are_one_logit() -> None:
    tensors, values = groups.rows([(1.0, float(k), 1.0, 0.0) for k in (1, 2, 4, 20)] * 12, 40, 0.0)
    tensors["logits"][:, ::2] = -0.0
    tensors["settings"][:, 4:] = PLAIN
    assert_drawn_alike(tensors, values)


def test_logits_far_apart_and_a_temperature_near_zero() -> None:
    settings = [(t, k, p, 0.0) for t in (1e-6, 1.0, 1e6) for k in (0.0, 40.0) for p in (1.0, 0.5)] * 4
    tensors, values = groups.rows(settings, 500, 1e4)
    tensors["settings"][:, 4:] = PLAIN
    assert_drawn_alike(tensors, values)


def test_tokens_that_cannot_be_are_never_drawn() -> None:
    settings = [(1.0, 0.0, 1.0, 0.0), (1.0, 0.0, 0.95, 0.0), (1.0, 0.0, 1.0, 0.01), (1.0, 9.0, 1.0, 0.0)]
    tensors, values = groups.rows(settings * 20, 300, 1.0)
    tensors["settings"][:, 4:] = PLAIN
    allowed = torch.tensor([3, 31, 32, 64, 65, 299])
    hidden = torch.ones(300, dtype=torch.bool).index_fill(0, allowed, False)
    tensors["logits"][:, hidden] = -torch.inf
    found = tokens_of(tensors, values)["next"]
    assert set(found.tolist()) <= set(allowed.tolist()) and len(set(found.tolist())) > 3


def test_logits_that_are_no_numbers_still_give_a_token() -> None:
    settings = [(t, k, p, 0.0) for t in (0.0, 1.0) for k in (0.0, 3.0, 60.0) for p in (1.0, 0.9)]
    tensors, values = groups.rows(settings, 100, 1.0)
    for broken in (torch.nan, -torch.inf):
        tensors["logits"].fill_(broken)
        found = tokens_of(tensors, values)["next"]
        assert found.ge(0).all() and found.lt(100).all()


def test_a_draw_follows_the_probabilities() -> None:
    tensors, values = groups.rows([(1.0, 0.0, 1.0, 0.0)] * 1000, 100, 0.0)
    tensors["settings"][:, 4:] = PLAIN
    probabilities = torch.zeros(100).index_put_((torch.tensor([2, 40, 41, 98]),), torch.tensor([0.5, 0.2, 0.2, 0.1]))
    tensors["logits"].copy_(probabilities.log().expand(2000, 100))
    counts = torch.bincount(tokens_of(tensors, values)["next"], minlength=100) / 2000
    assert (counts - probabilities).abs().max() < 0.05  # four deviations of a half of 2000


@pytest.mark.slow
def test_the_engine_samples_by_the_rung_that_is_named(monkeypatch: pytest.MonkeyPatch) -> None:
    model = load("inner", dtype="float32", device="cpu")
    weights = read_weights(INNER, model.config, lambda w: Linear(w.float().contiguous()), lambda v: v.float())
    used: list[str] = []
    prepare = CudaRung.prepare

    def noted(rung: CudaRung, *args: Any, **options: Any) -> Prepared:
        used.append(rung.name)
        return prepare(rung, *args, **options)

    monkeypatch.setattr(CudaRung, "prepare", noted)
    engine = GpuSteps(model.config, weights, "float32", "emulator", rung="dependent_launch", sample="cluster")
    given = [list(model.tokenizer.encode("The king"))]
    settings: list[dict[str, Any]] = [
        {"temperature": 1.0, "top_p": 1.0},
        {"temperature": 1.2, "top_p": 0.8},
        {"top_k": 30},
    ]
    for how in settings:
        (theirs,) = model.generate(given, max_new_tokens=4, stop_tokens=(), seed=9, **how)
        ours = list(written(engine, given, [4], sampling=Sampling(**how), seed=9))
        assert [token for (token,) in ours] == list(theirs.tokens)
    assert "05_cluster" in used and "02_candidates" not in used


def test_an_unknown_rung_is_reported_with_the_known_ones() -> None:
    tensors = {name: torch.zeros(1, 8, dtype=torch.int32) for name in ("logits", "steps", "next")}
    with pytest.raises(RungError, match=r"no rung 'clutter' \(did you mean .*cluster\?\); it has 01_bisection, "):
        token_sampler.TokenSampler(tensors, 1, 8, "emulator", "clutter")


@pytest.mark.parametrize("cluster", [8])
@pytest.mark.parametrize("block", [512, 1024])
def test_gpt2_is_compiled_for_sm_90_without_spills(block: int, cluster: int) -> None:
    assert isinstance(RUNG, CudaRung)
    build = RUNG.build(SAMPLE.complete(SAMPLE.shapes["gpt2"]), groups.REAL, {"BLOCK": block, "CLUSTER": cluster})
    cubin = nvrtc.compile_cubin(build, "sm_90")
    assert all(r.spill_stores == 0 for r in cubin.resources.values())
