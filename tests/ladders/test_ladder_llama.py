"""The references of Llama's operations against transformers' own modules."""

import pytest
import torch
import torch.nn.functional as F
from transformers.models.llama.configuration_llama import LlamaConfig
from transformers.models.llama.modeling_llama import LlamaMLP, LlamaRMSNorm, apply_rotary_pos_emb, repeat_kv

from rung.rungs import catalogue


def reference(name: str, tensors: dict[str, torch.Tensor], **values: float) -> dict[str, torch.Tensor]:
    operation = catalogue.operation(name)
    return operation.reference(tensors, operation.complete(values))


def drawn(*shape: int) -> torch.Tensor:
    return torch.randn(*shape, dtype=torch.float64, generator=torch.Generator().manual_seed(sum(shape)))


def test_rmsnorm_is_llamas_also_of_a_sum_with_the_residual() -> None:
    x, residual, norm = drawn(2, 3, 37), 0.3 * drawn(2, 3, 37), LlamaRMSNorm(37, eps=1e-3)
    norm.weight.data = drawn(37).float()
    values = {"B": 2, "T": 3, "C": 37, "eps": 1e-3}
    weight = norm.weight.detach().double()
    torch.testing.assert_close(
        reference("rmsnorm", {"x": x, "weight": weight}, **values)["out"], norm(x).double(), rtol=1e-5, atol=1e-6
    )
    found = reference("rmsnorm_residual", {"x": x, "residual": residual, "weight": weight}, **values)
    torch.testing.assert_close(found["out"], norm(x + residual).double(), rtol=1e-5, atol=1e-6)
    torch.testing.assert_close(found["sum"], x + residual)


@pytest.mark.parametrize("past", [0, 5])
def test_rope_turns_halves_as_transformers_does_and_neighbours_alike(past: int) -> None:
    x, angles = drawn(2, 4, 3, 8), drawn(4, 4)
    full = torch.cat((angles, angles), 1)[None]
    expected = apply_rotary_pos_emb(x.transpose(1, 2), x.transpose(1, 2), full.cos(), full.sin())[0].transpose(1, 2)
    tables, values = {"cosines": angles.cos(), "sines": angles.sin()}, {"B": 2, "T": 4, "NH": 3, "HS": 8}
    torch.testing.assert_close(reference("rope", {"x": x, **tables}, **values)["out"], expected)
    neighbours = x.unflatten(3, (2, 4)).transpose(3, 4).flatten(3)
    found = reference("rope", {"x": neighbours, **tables}, **values, interleaved=1)["out"]
    torch.testing.assert_close(found.unflatten(3, (4, 2)).transpose(3, 4).flatten(3), expected)

    later = {name: F.pad(table, (0, 0, past, 1)) for name, table in tables.items()}
    caches = {name: drawn(2, 1, past + 5, 8) for name in ("k_cache", "v_cache")}
    qkv = torch.cat((x[:, :, :1], x[:, :, 1:2], x[:, :, 2:]), 2).flatten(2)
    given = {"qkv": qkv, **later, **caches, "past": torch.full((2,), past, dtype=torch.int32)}
    kept = reference("rope_append", given, B=2, T=4, NH=1, NKV=1, HS=8, S=past + 5)
    torch.testing.assert_close(kept["q"], expected[:, :, :1])
    torch.testing.assert_close(kept["k_cache"][:, 0, past : past + 4], expected[:, :, 1])
    torch.testing.assert_close(kept["v_cache"][:, 0, past : past + 4], x[:, :, 2])
    for name, cache in caches.items():
        torch.testing.assert_close(kept[name][:, :, :past], cache[:, :, :past])
        torch.testing.assert_close(kept[name][:, :, past + 4 :], cache[:, :, past + 4 :])


def test_swiglu_and_its_product_are_llamas_mlp() -> None:
    config = LlamaConfig(hidden_size=12, intermediate_size=20, num_attention_heads=2)
    mlp, x = LlamaMLP(config).double(), drawn(2, 3, 12)
    gate, up = mlp.gate_proj(x), mlp.up_proj(x)
    both = torch.stack((mlp.gate_proj.weight, mlp.up_proj.weight), 1).flatten(0, 1)
    for found in (
        reference("swiglu", {"gate": gate, "up": up}, B=2, T=3, C=20)["out"],
        reference("matmul_swiglu", {"x": x, "weight": both}, B=2, T=3, C=12, OC=20)["out"],
    ):
        torch.testing.assert_close(mlp.down_proj(found), mlp(x))


@pytest.mark.parametrize("window", [None, 3])
def test_grouped_attention_is_that_of_repeated_keys_for_prompts_and_steps(window: int | None) -> None:
    q, k, v = drawn(2, 6, 7, 8), drawn(2, 2, 7, 8), drawn(2, 2, 7, 9)[..., :8]
    seen = torch.ones(7, 7, dtype=torch.bool).tril()
    seen = seen if window is None else seen.triu(1 - window)
    expected = F.scaled_dot_product_attention(q, repeat_kv(k, 3), repeat_kv(v, 3), attn_mask=seen)
    values = {"NH": 6, "NKV": 2, "HS": 8, "B": 2, **({} if window is None else {"window": window})}
    found = reference("grouped_attention", {"q": q, "k": k, "v": v}, T=7, **values)["out"]
    torch.testing.assert_close(found, expected.transpose(1, 2).flatten(2))
    given = {"q": q[:, :, 4:6], "k": k, "v": v, "past": torch.full((2,), 4, dtype=torch.int32)}
    found = reference("grouped_cached_attention", given, T=2, S=7, **values)["out"]
    torch.testing.assert_close(found, expected[:, :, 4:6].transpose(1, 2).flatten(2))
