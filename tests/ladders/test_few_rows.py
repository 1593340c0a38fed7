"""The step for few rows: texts of their own, and neighbouring tokens of one text, step after step."""

from __future__ import annotations

import pytest
import torch

import gpuless
from rung.arrays import dtype_of
from rung.dtypes import dtype as named
from rung.models.family import config_of
from rung.models.gpt2.rungs import decode_rungs
from rung.models.gpu.session import dims
from rung.operation import Tensors, Values
from rung.rungs import catalogue
from rung.rungs.base import Prepared

BOUNDS = {("few_rows", "bf16"): 1e-2, ("few_rows_int8", "bf16"): 1e-2, ("few_rows", "f32"): 1e-5}


def prepared(name: str, dtype: str, B: int) -> tuple[Prepared, Tensors, Values]:
    rung = catalogue.find(f"decode/{name}")
    values = rung.operation.complete({"B": B, "L": 2, "C": 64, "NH": 2, "F": 128, "V": 67, "MAXT": 12})
    bound = [o for o in rung.operation.operands if o.name in rung.binds]
    names = [*(o.name for o in bound), *(o.instead for o in bound if o.instead)]
    real = named(dtype)
    tensors = rung.operation.inputs(
        values, real, 3, names=names, empty=lambda _, shape, kind: torch.zeros(shape, dtype=dtype_of(kind, torch))
    )
    of_rung = {o.name: tensors[o.name] for o in bound}
    run = rung.prepare(of_rung, values, real, device="emulator", tuning={})
    return run, tensors, values


def wide(tensors: Tensors) -> Tensors:
    return {n: t.double() if t.is_floating_point() else t.long() for n, t in tensors.items()}


@pytest.mark.slow
@pytest.mark.parametrize(("name", "dtype"), BOUNDS)
def test_tokens_of_one_text_in_one_step_are_those_of_single_steps(name: str, dtype: str) -> None:
    """Three tokens of one text and two texts of one token: one step gives the reference's token-by-token results."""
    run, t, values = prepared(name, dtype, 5)
    t["texts"].copy_(torch.tensor([0, 1, 1, 1, 4]))
    t["caches"].copy_(torch.tensor([3, 0, 9, 9, 1]))
    t["lengths"].copy_(torch.tensor([5, 2, 99, 99, 11]))  # of a text's first row alone
    rung = catalogue.find(f"decode/{name}")
    alone = wide({n: tensor.clone() for n, tensor in t.items() if n not in ("texts", "caches")})
    caches = {key: alone[key].clone() for key in ("k_cache", "v_cache")}
    expected = {}
    for row, at, length in ((0, 3, 5), (1, 0, 2), (2, 0, 3), (3, 0, 4), (4, 1, 11)):
        one = {**alone, "tokens": alone["tokens"][row : row + 1], "lengths": torch.tensor([length])}
        one |= {key: cached[:, at : at + 1] for key, cached in caches.items()}
        found = rung.operation.reference(one, {**values, "B": 1})
        for key, cached in caches.items():
            cached[:, at] = found[key][:, 0]
        expected[row] = found["logits"][0]
    run.run()
    bound = BOUNDS[name, dtype]
    for row, logits in expected.items():
        assert float((t["logits"][row].double() - logits).norm() / logits.norm()) < bound, row
    for key, cached in caches.items():
        assert float((t[key].double() - cached).norm() / cached.norm()) < bound
    assert t["next"].tolist() == t["logits"].argmax(1).tolist()


def test_rows_beyond_the_cache_harm_nobody_and_steps_follow_one_another() -> None:
    run, t, values = prepared("few_rows", "f32", 3)
    t["texts"].copy_(torch.tensor([0, 1, 1]))
    t["caches"].copy_(torch.tensor([2, 0, 0]))
    t["lengths"].copy_(torch.tensor([4, 11, 0]))  # the third row would lie at 12 of 12
    for _ in range(3):
        before = t["k_cache"].clone()
        expected = catalogue.find("decode/few_rows").operation.reference(wide(t), values)
        with gpuless.under(order="shuffled", seed=5):
            run.run()
        moved = (t["k_cache"] != before).any(-1).nonzero()[:, [1, 3]].unique(dim=0).tolist()
        assert moved in ([[0, 11], [2, int(t["lengths"][0])]], [[2, int(t["lengths"][0])]])  # the same token again
        assert float((t["logits"].double() - expected["logits"]).norm() / expected["logits"].norm()) < 1e-5
        t["lengths"][0] += 1
        t["tokens"].copy_(t["next"])


@pytest.mark.slow
def test_no_access_races() -> None:
    run, t, _ = prepared("few_rows", "bf16", 2)
    with gpuless.under(order="shuffled", seed=7, check_races=True):
        run.run()
        run.run()
    assert t["next"].tolist() == t["logits"].argmax(1).tolist()


def test_which_texts_the_step_of_few_rows_serves() -> None:
    untuned = lambda _: False  # noqa: E731
    for dtype, few in (("bfloat16", "few_rows"), ("int8", "few_rows_int8")):
        first = decode_rungs(2, 1600, dtype, untuned)[:2]
        assert first == (("operations", few) if dtype == "bfloat16" else (few, "pacing_int8"))
        assert few not in decode_rungs(8, 1600, dtype, untuned)
        assert all(decode_rungs(rows, 768, dtype, untuned)[0] == few for rows in (2, 4, 8))
        assert few not in decode_rungs(1, 1600, dtype, lambda _: True)
    first = [decode_rungs(rows, 768, "float32", untuned)[0] for rows in (2, 3, 8)]
    assert [name == "few_rows" for name in first] == [False, True, True]


@pytest.mark.parametrize(("name", "dtype"), BOUNDS)
def test_eight_rows_of_gpt2_and_a_few_of_a_large_model_fit_a_large_gpu(
    name: str, dtype: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("rung.rungs.base.device_facts", lambda device: (90, 132))
    rung, real = catalogue.find(f"decode/{name}"), named(dtype)
    for rows, model in ((8, "gpt2"), (2 if dtype == "f32" else 4, "gpt2-large")):
        values = rung.operation.complete(dims(config_of(model), rows, 1024))
        assert rung.refusal(values, real) is None, rung.refusal(values, real)
