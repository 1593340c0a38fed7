"""Sessions of many rows whose keys and values are kept in 8 bits: what prompts leave there, and texts that move."""

from __future__ import annotations

import itertools
from typing import Any

import pytest
import torch
from test_batching import together

import gpt2_models as models
import llama_models
from rung.errors import RungError
from rung.models import backends
from rung.models.batching.engine import BatchEngine
from rung.models.batching.text import Request
from rung.models.gpu import session_table
from rung.models.gpu.engine import GpuSteps
from rung.models.gpu.row_transfer import RowTransfer, record
from rung.models.gpu.session import Session, Work, dims
from rung.models.gpu.slots import GpuBackend
from rung.models.load import Model, load
from rung.models.operations import find
from rung.models.options import Options, Prompt
from rung.models.sampling import Sampling
from rung.models.weights import Linear, read_weights
from rung_reproduce.direct import read_into

SHAPE = {"n_embd": 64, "n_head": 2, "n_layer": 2, "vocab_size": 400, "n_positions": 32}
GREEDY = Sampling(temperature=0)


@pytest.fixture(scope="module")
def model() -> Model:
    return models.ours(models.saved(**SHAPE))


@pytest.fixture(scope="module")
def weights(model: Model) -> Any:
    return read_weights(model.folder, model.config, lambda w: Linear(w.float().clone()), lambda v: v.float().clone())


def engine(model: Model, weights: Any, dtype: str = "bfloat16", **how: Any) -> GpuSteps:
    return GpuSteps(model.config, weights, dtype, "emulator", graph=False, **how)


def session(engine: GpuSteps, rung: str, rows: int, capacity: int = 32) -> Session:
    return Session(
        engine.config, engine.operands, engine.real, "emulator", rows, capacity, Work(find("decode", rung), {}, False)
    )


def assert_quantised(numbers: torch.Tensor, whole: torch.Tensor, scale: torch.Tensor) -> None:
    """Each number within half a unit of its key's, of which the largest is 127."""
    numbers = numbers.float()
    assert torch.allclose(scale, numbers.abs().amax(-1) / 127, rtol=1e-5, atol=0)
    assert ((whole * scale[..., None] - numbers).abs() <= 0.501 * scale[..., None]).all()


@pytest.mark.parametrize("dtype", ["bfloat16", "float16", "int8"])
def test_many_rows_keep_eight_bits_where_that_is_requested(model: Model, weights: Any, dtype: str) -> None:
    of = {cache: engine(model, weights, dtype, cache=cache) for cache in (None, "int8")}
    names = {(cache, rows): of[cache].rung(dims(model.config, rows, 32)).name for cache in of for rows in (32, 33, 256)}
    eight = {at for at, name in names.items() if name == "09_eight_bit_cache"}
    assert eight == {("int8", 33), ("int8", 256)}


def test_what_cannot_keep_eight_bits_is_refused_in_one_sentence(model: Model) -> None:
    for how, reason in (
        ({"device": "cpu"}, "only on a GPU"),
        ({"device": "emulator"}, "needs the plan best"),
        ({"device": "emulator", "plan": "best", "dtype": "float32"}, "in 16 bits"),
    ):
        with pytest.raises(RungError, match=reason):
            load(model.folder, cache="int8", **how)  # type: ignore[arg-type]
    with pytest.raises(RungError, match="not known"):
        load(model.folder, cache="int4", device="emulator")


def test_more_texts_fit_where_their_keys_and_values_are_in_eight_bits(
    model: Model, monkeypatch: pytest.MonkeyPatch
) -> None:
    slots = {}
    for cache in (None, "int8"):
        transformer = load(model.folder, device="emulator", plan="best", dtype="bfloat16", cache=cache).transformer
        engine = transformer.service.engine
        assert isinstance(engine, GpuSteps)
        for texts in (20, 60):
            room = texts * backends.slot_bytes(transformer) / backends.SHARE
            monkeypatch.setattr(backends, "_free", lambda _, room=room: int(room) + 9)
            slots[cache, texts] = backends._gpu_slots(transformer, engine)
    assert slots == {(None, 20): 16, (None, 60): 32, ("int8", 20): 16, ("int8", 60): 64}


def test_a_whole_batch_is_read_into_eight_bits_and_goes_on_as_in_sixteen(model: Model, weights: Any) -> None:
    one = engine(model, weights)
    wide, narrow = session(one, "library_products", 3), session(one, "eight_bit_cache", 3)
    assert not {"k_cache", "v_cache"} & narrow.tensors.keys()
    prompts = [models.some_ids(n, 400, seed=n) for n in (5, 17, 1)]
    for of in (wide, narrow):
        of.open()
        read_into(one, of, prompts)
    for row, prompt in enumerate(prompts):
        for name in ("k_cache", "v_cache"):
            whole, scale = (narrow.tensors[f"{name}_{n}"][:, row, :, : len(prompt)] for n in "qs")
            assert_quantised(wide.tensors[name][:, row, :, : len(prompt)], whole, scale)
    for _ in range(4):
        assert torch.equal(wide.tensors["tokens"], narrow.tensors["tokens"])
        for of in (wide, narrow):
            of.decode.run()
        a, b = (of.tensors["logits"] for of in (wide, narrow))
        assert float((a - b).norm() / a.norm()) < 0.01
        narrow.tensors["next"].copy_(wide.tensors["next"])  # both write the same text
        for of in (wide, narrow):
            of.publish()


LLAMA = {"hidden_size": 128, "num_attention_heads": 2, "num_key_value_heads": 1, "max_position_embeddings": 64}


@pytest.mark.slow
@pytest.mark.parametrize("kind", ["llama", "qwen3", "mistral"])
def test_a_llamas_batch_goes_on_in_eight_bits_as_in_sixteen(kind: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("rung.models.gpu.engine.MOST_IN_SIXTEEN_BITS", 2)
    more = {"qwen3": {"head_dim": 64}, "mistral": {"sliding_window": 9}}.get(kind, {})
    folder = llama_models.saved(kind, **LLAMA, **more)
    of = {}
    prompts = [models.some_ids(n, 400, seed=n) for n in (5, 17, 1)]
    for cache in (None, "int8"):
        one = load(folder, device="emulator", plan="best", dtype="bfloat16", cache=cache).transformer.service.engine
        assert isinstance(one, GpuSteps)
        assert "k_cache_q" not in one.open(2).tensors
        of[cache] = one.open(3)
        assert ("k_cache_q" in of[cache].tensors) == (cache == "int8")
        read_into(one, of[cache], prompts)
    wide, narrow = of[None], of["int8"]
    for step in range(4):
        for session in of.values():
            session.decode.run()
        a, b = (session.tensors["logits"] for session in (wide, narrow))
        assert float((a - b).norm() / a.norm()) < 0.02
        for row, prompt in enumerate(prompts):
            for name in ("k_cache", "v_cache"):
                whole, scale = (narrow.tensors[f"{name}_{n}"][0, row, :, : len(prompt) + step + 1] for n in "qs")
                assert_quantised(wide.tensors[name][0, row, :, : len(prompt) + step + 1], whole, scale)
        narrow.tensors["next"].copy_(wide.tensors["next"])  # both write the same text
        for session in of.values():
            session.publish()


def test_heads_for_which_no_rung_keeps_eight_bits_are_refused() -> None:
    folder = llama_models.saved("llama")  # heads of 16
    with pytest.raises(RungError, match="heads of 16"):
        load(folder, device="emulator", plan="best", dtype="bfloat16", cache="int8")


def test_texts_that_move_are_quantised_copied_and_widened(model: Model, weights: Any) -> None:
    one = engine(model, weights)
    first, second, third = (
        session(one, "library_products", 3),
        session(one, "eight_bit_cache", 2),
        session(one, "eight_bit_cache", 5, capacity=24),
    )
    last = session(one, "library_products", 4)
    lengths, generator = (20, 7), torch.Generator().manual_seed(1)
    for of in (first, second, third, last):
        of.open()
    for name in ("k_cache", "v_cache"):
        first.tensors[name].copy_(torch.randn(first.tensors[name].shape, generator=generator))
    first.tensors["k_cache"][0, 2, 1, 3] = 0
    places = {first: (2, 0), second: (1, 0), third: (4, 2), last: (0, 3)}
    transfers = {of: RowTransfer(of) for of in places}
    way = [first, second, third, last]
    for a, b in itertools.pairwise(way):
        records = [record(f, t, n, 99, 0, ()) for f, t, n in zip(places[a], places[b], lengths, strict=True)]
        transfers[b].move(transfers[a].state, records)
    for text, n in enumerate(lengths):
        at = {of: (slice(None), places[of][text], slice(None), slice(n)) for of in way}
        for name in ("k_cache", "v_cache"):
            (q, s), (q3, s3) = ([of.tensors[f"{name}_{p}"][at[of]] for p in "qs"] for of in (second, third))
            assert_quantised(first.tensors[name][at[first]], q, s)
            assert torch.equal(q, q3) and torch.equal(s, s3)
            assert torch.equal(last.tensors[name][at[last]], (q * s[..., None]).to(torch.bfloat16))
    assert last.tensors["lengths"].tolist() == [20, 0, 0, 7]


@pytest.mark.slow
def test_texts_go_on_where_the_load_moves_them(model: Model, weights: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(session_table, "ROWS", (1, 4))
    found = {}
    for many in ("library_products", "eight_bit_cache"):
        one = engine(model, weights)
        monkeypatch.setattr(
            one, "rung", lambda values, many=many: find("decode", many if values["B"] > 1 else "library_products")
        )
        backend = GpuBackend(model.transformer, one, 4, exact=False)
        requests = [
            Request(Prompt("", tuple(models.some_ids(n, 400, seed=n))), Options(GREEDY, max_new_tokens=new), seed=0, sample=0)
            for n, new in ((5, 12), (3, 4), (9, 3))
        ]  # fmt: skip
        found[many] = [c.tokens for c in together(BatchEngine(lambda one=backend: one, None), requests)]
        assert {len(bank.rows) for bank in backend._sessions.opened.values()} == {1, 4}
    assert [len(tokens) for tokens in found["eight_bit_cache"]] == [12, 4, 3]
    assert [tokens[0] for tokens in found["eight_bit_cache"]] == [tokens[0] for tokens in found["library_products"]]
