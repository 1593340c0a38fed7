"""Tokens drawn from groups of 32: every way through the rung, row by row against the reference."""

from __future__ import annotations

import itertools

import pytest
import torch

from gpuless.compile import nvrtc
from rung.arrays import dtype_of
from rung.dtypes import dtype as named
from rung.models.folders import INNER
from rung.models.gpu.engine import GpuSteps
from rung.models.load import load
from rung.models.sampling import Sampling
from rung.models.weights import Linear, read_weights
from rung.operation import Tensors, Values
from rung.rungs import catalogue
from rung.rungs.cuda import CudaRung
from written import written

RUNG = catalogue.find("sample/groups")
SAMPLE = RUNG.operation
REAL = named("f32")
PENALTIES = [(1.0, 0.0, 0.0), (1.3, 0.5, 0.25)]


def rows(settings: list[tuple[float, float, float, float]], V: int, spread: float) -> tuple[Tensors, Values]:
    """A row of logits for each way (temperature, top-k, top-p, min-p), without penalties and with them."""
    both = [(*method, *penalty, 0.0) for method, penalty in itertools.product(settings, PENALTIES)]
    values = SAMPLE.complete({"B": len(both), "V": V})
    tensors = SAMPLE.inputs(values, REAL, 5, empty=lambda _, shape, kind: torch.zeros(shape, dtype=dtype_of(kind, torch)))
    tensors["settings"].copy_(torch.tensor(both))
    tensors["logits"].copy_(torch.randn(len(both), V, generator=torch.Generator().manual_seed(2)) * spread)
    return tensors, values


def tokens_of(tensors: Tensors, values: Values, tuning: dict[str, int]) -> Tensors:
    own = {name: t.clone() for name, t in tensors.items()}
    RUNG.prepare(own, values, REAL, device="emulator", tuning=tuning).run()
    return own


def assert_drawn_alike(tensors: Tensors, values: Values, tuning: dict[str, int]) -> None:
    wide = {n: t.double() if t.is_floating_point() else t.long() for n, t in tensors.items()}
    expected, found = SAMPLE.reference(wide, values), tokens_of(tensors, values, tuning)
    assert found["next"].tolist() == expected["next"].tolist()
    assert torch.equal(found["marks"].long(), expected["marks"])


@pytest.mark.slow
@pytest.mark.parametrize("spread", [0.5, 6.0])
@pytest.mark.parametrize("groups", [2, 20, 256])
@pytest.mark.parametrize("block", [32, 64, 512])
def test_every_method_of_sampling(block: int, groups: int, spread: float) -> None:
    settings = [
        (t, k, p, m)
        for t in (0.0, 0.7, 1.5)
        for k, p, m in itertools.product((0.0, 1.0, 12.0, 60.0, 500.0), (1.0, 0.9, 0.3), (0.0, 0.1))
    ]
    tensors, values = rows(settings, 1999, spread)
    assert_drawn_alike(tensors, values, {"BLOCK": block, "GROUPS": groups})


def test_equal_logits_are_cut_where_the_order_says() -> None:
    tensors, values = rows([(1.0, 5.0, 1.0, 0.0), (1.0, 0.0, 0.37, 0.0), (0.0, 0.0, 1.0, 0.0)] * 8, 333, 0.0)
    tensors["logits"][:, 170:] = 1.0
    tensors["settings"][:, 4:] = torch.tensor([1.0, 0.0, 0.0, 0.0])
    assert_drawn_alike(tensors, values, {"BLOCK": 64, "GROUPS": 16})


def test_tokens_that_cannot_be_are_never_drawn() -> None:
    tensors, values = rows([(1.0, 0.0, 1.0, 0.0), (1.0, 0.0, 0.95, 0.0), (1.0, 0.0, 1.0, 0.01)] * 20, 300, 1.0)
    tensors["settings"][:, 4:] = torch.tensor([1.0, 0.0, 0.0, 0.0])
    allowed = torch.tensor([3, 31, 32, 64, 65, 299])  # whole groups of 32 hold nothing else
    hidden = torch.ones(300, dtype=torch.bool).index_fill(0, allowed, False)
    tensors["logits"][:, hidden] = -torch.inf
    found = tokens_of(tensors, values, {"BLOCK": 64, "GROUPS": 16})["next"]
    assert set(found.tolist()) <= set(allowed.tolist()) and len(set(found.tolist())) > 3


def test_a_draw_follows_the_probabilities() -> None:
    tensors, values = rows([(1.0, 0.0, 1.0, 0.0)] * 1000, 100, 0.0)
    tensors["settings"][:, 4:] = torch.tensor([1.0, 0.0, 0.0, 0.0])
    probabilities = torch.zeros(100).index_put_((torch.tensor([2, 40, 41, 98]),), torch.tensor([0.5, 0.2, 0.2, 0.1]))
    tensors["logits"].copy_(probabilities.log().expand(2000, 100))
    counts = torch.bincount(tokens_of(tensors, values, {"BLOCK": 32})["next"], minlength=100) / 2000
    assert (counts - probabilities).abs().max() < 0.05  # four deviations of a half of 2000


@pytest.mark.slow
def test_the_engine_samples_through_groups_what_the_cpu_samples() -> None:
    model = load("inner", dtype="float32", device="cpu")
    weights = read_weights(INNER, model.config, lambda w: Linear(w.float().contiguous()), lambda v: v.float())
    engine = GpuSteps(model.config, weights, "float32", "emulator", rung="dependent_launch", sample="groups")
    given = [list(model.tokenizer.encode("The king"))]
    for how in ({"temperature": 1.0}, {"temperature": 1.2, "top_p": 0.8}, {"temperature": 0.9, "top_k": 30}):
        (theirs,) = model.generate(given, max_new_tokens=4, stop_tokens=(), seed=9, **how)  # type: ignore[call-overload]
        ours = list(written(engine, given, [4], sampling=Sampling(**how), seed=9))  # type: ignore[arg-type]
        assert [token for (token,) in ours] == list(theirs.tokens)


def test_gpt2_is_compiled_for_sm_90_without_spills() -> None:
    assert isinstance(RUNG, CudaRung)
    values = SAMPLE.complete(SAMPLE.shapes["gpt2"])
    cubin = nvrtc.compile_cubin(RUNG.build(values, REAL), "sm_90")
    assert all(r.spill_stores == 0 for r in cubin.resources.values())
