"""Activations by TransformerLens' names, held to transformers' hidden states and attentions."""

import math
from pathlib import Path

import pytest
import torch
import torch.nn.functional as F

import rung
from gpt2_models import reference, saved, some_ids
from rung import RungError
from rung.models.activations import names


def close(a: torch.Tensor, b: torch.Tensor) -> None:
    torch.testing.assert_close(a, b.detach(), rtol=1e-4, atol=1e-4)


def test_hidden_states_are_transformers() -> None:
    ids = [some_ids(20), some_ids(20, seed=1)]
    theirs = reference(saved())(torch.tensor(ids), output_hidden_states=True).hidden_states
    ours = rung.load(saved(), dtype="float32", device="cpu").hidden_states(ids)
    assert len(ours) == len(theirs) == 4
    for own, other in zip(ours, theirs, strict=True):
        close(own, other)
    close(rung.load(saved(), dtype="float32", device="cpu").hidden_states(ids[0], [-1, 0])[1], theirs[0][:1])


def test_every_name_is_there_and_the_parts_make_the_whole() -> None:
    folder, ids = saved(), some_ids(17)
    model = rung.load(folder, dtype="float32", device="cpu")
    found = model.inside(ids, "*")
    assert list(found) and set(found) == set(names(model.config))
    eager = reference(folder)
    eager.set_attn_implementation("eager")
    patterns = eager(torch.tensor([ids]), output_attentions=True).attentions
    eager.set_attn_implementation("sdpa")
    blocks = reference(folder).transformer.h
    close(found["hook_embed"] + found["hook_pos_embed"], found["blocks.0.hook_resid_pre"])
    for i, block in enumerate(blocks):
        of = {
            n: found[f"blocks.{i}.{n}"] for n in ("hook_resid_pre", "hook_attn_out", "hook_resid_mid", "hook_mlp_out")
        }
        close(found[f"blocks.{i}.attn.hook_pattern"], patterns[i])
        close(found[f"blocks.{i}.ln1.hook_normalized"], block.ln_1(of["hook_resid_pre"]))
        q, k, v = (found[f"blocks.{i}.attn.hook_{n}"].transpose(1, 2) for n in "qkv")
        close(found[f"blocks.{i}.attn.hook_z"].transpose(1, 2), F.scaled_dot_product_attention(q, k, v, is_causal=True))
        close(found[f"blocks.{i}.attn.hook_pattern"][0, 0, -1].sum(), torch.tensor(1.0))
        close(of["hook_resid_pre"] + of["hook_attn_out"], of["hook_resid_mid"])
        close(found[f"blocks.{i}.mlp.hook_post"], F.gelu(found[f"blocks.{i}.mlp.hook_pre"], approximate="tanh"))
        close(of["hook_resid_mid"] + of["hook_mlp_out"], found[f"blocks.{i}.hook_resid_post"])
    assert q.shape[-1] == 64 // 4 and math.isfinite(float(found["ln_final.hook_normalized"].sum()))


def test_only_requested_tensors_are_stored_in_the_file(tmp_path: Path) -> None:
    from safetensors.torch import load_file

    model = rung.load(saved(), dtype="float32", device="cpu")
    found = model.inside(some_ids(9), ["blocks.1.attn.hook_pattern", "blocks.*.hook_mlp_out"], out=tmp_path / "in.st")
    assert sorted(found) == ["blocks.0.hook_mlp_out", "blocks.1.attn.hook_pattern", "blocks.1.hook_mlp_out",
                             "blocks.2.hook_mlp_out"]  # fmt: skip
    loaded = load_file(tmp_path / "in.st")
    assert all(torch.equal(loaded[name], found[name]) for name in found)


def test_an_embedding_is_a_mean_of_hidden_states() -> None:
    model = rung.load(saved(), dtype="float32", device="cpu")
    states = model.hidden_states(model.tokenizer.encode("a dragon"), [2])[0][0]
    close(model.embed("a dragon", layer=2), states.mean(0))
    close(model.embed(["a dragon", "the pig"], layer=2, pooling="last")[0], states[-1])


@pytest.mark.parametrize(
    ("call", "message"),
    [
        (lambda m: m.inside([1, 2], "blocks.0.hook_resid"), "no activation is called"),
        (lambda m: m.hidden_states([1, 2], [4]), "there is no layer 4"),
        (lambda m: m.embed("a", pooling="max"), "pooling is 'max'"),
        (lambda m: m.inside([]), "takes 1 to 64 tokens"),
        (lambda m: m.inside([1, 2], out="/no/such/folder/x"), "cannot be written|No such file"),
    ],
)
def test_mistakes_are_reported(call, message: str) -> None:
    with pytest.raises(RungError, match=message):
        call(rung.load(saved(), dtype="float32", device="cpu"))
