"""LoRA adapters as peft saves them, beside peft's formula: W + alpha / r B A, by transformers' model of the sum."""

from __future__ import annotations

import json
import shutil
from pathlib import Path
from typing import Any

import pytest
import torch
from safetensors.torch import load_file, save_file
from transformers import AutoModelForCausalLM

import gpt2_models
import llama_models
import rung
from rung.errors import RungError

MODULES = {"gpt2": ("attn.c_attn", "mlp.c_proj"), "llama": ("self_attn.q_proj", "mlp.gate_proj", "mlp.down_proj")}


def adapter_of(kind: str, home: Path, rank: int = 4, **settings: Any) -> tuple[Path, Any]:
    """A random adapter of a random model, and transformers' model with it."""
    base = gpt2_models.saved() if kind == "gpt2" else llama_models.saved(kind)
    model = AutoModelForCausalLM.from_pretrained(base, dtype=torch.float32).eval()
    fields = {
        "peft_type": "LORA", "r": rank, "lora_alpha": 8, "base_model_name_or_path": str(base),
        "fan_in_fan_out": kind == "gpt2", "alpha_pattern": {}, **settings,
    }  # fmt: skip
    torch.manual_seed(4)
    tensors = {}
    for name, module in model.named_modules():
        if name.endswith(MODULES[kind]):
            weight = module.weight.data.t() if kind == "gpt2" else module.weight.data  # (outputs, inputs)
            a, b = torch.randn(rank, weight.shape[1]) * 0.2, torch.randn(weight.shape[0], rank) * 0.2
            tensors |= {f"base_model.model.{name}.lora_{x}.weight": t for x, t in (("A", a), ("B", b))}
            alpha = next((n for p, n in fields["alpha_pattern"].items() if name.endswith(p)), fields["lora_alpha"])
            weight += alpha / (rank**0.5 if settings.get("use_rslora") else rank) * (b @ a)
    home.mkdir(exist_ok=True)
    save_file(tensors, home / "adapter_model.safetensors")
    (home / "adapter_config.json").write_text(json.dumps(fields))
    return home, model


@pytest.mark.parametrize(
    ("kind", "settings"), [("gpt2", {}), ("llama", {"alpha_pattern": {"q_proj": 3}}), ("llama", {"use_rslora": True})]
)
def test_an_adapters_folder_is_the_model_with_it(kind: str, settings: dict[str, Any], tmp_path: Path) -> None:
    adapter, right = adapter_of(kind, tmp_path / "adapter", **settings)
    model, ids = rung.load(adapter, dtype="float32", device="cpu"), gpt2_models.some_ids(20)
    with torch.no_grad():
        expected = right(torch.tensor([ids])).logits[0]
    assert float((model.logits(ids) - expected).abs().max() / expected.abs().max()) < 1e-5
    assert model.generate("Once", max_new_tokens=3, temperature=0).tokens  # with the base model's tokenizer


@pytest.mark.parametrize("fault", ["itself", "kind", "extra", "half", "place", "cut"])
def test_what_is_no_plain_adapter_is_one_sentence(fault: str, tmp_path: Path) -> None:
    settings = {"itself": {"base_model_name_or_path": str(tmp_path / "adapter")}, "kind": {"peft_type": "IA3"}}
    adapter, _ = adapter_of("llama", tmp_path / "adapter", **settings.get(fault, {}))
    name = "base_model.model.model.layers.0.self_attn.k_proj"
    tensors = {
        "extra": {f"{name}.lora_magnitude_vector": torch.ones(32)}, "half": {f"{name}.lora_A.weight": torch.ones(4, 64)},
        "place": {f"{name}s.lora_{x}.weight": torch.ones(4, 4) for x in "AB"},
    }.get(fault)  # fmt: skip
    if tensors:
        save_file(tensors, adapter / "adapter_model.safetensors")
    if fault == "cut":
        (adapter / "adapter_config.json").write_text("{")
    with pytest.raises(RungError):
        rung.load(adapter, device="cpu")


def test_an_adapters_folder_follows_its_files(tmp_path: Path) -> None:
    """What is put beside the base model, or changed in the adapter, is seen; messages name the user's folders."""
    base, adapter = tmp_path / "base", tmp_path / "adapter"
    shutil.copytree(llama_models.saved("llama"), base)
    tokenizer = (base / "tokenizer.json").read_bytes()
    (base / "tokenizer.json").unlink()
    adapter_of("llama", adapter, base_model_name_or_path=str(base))
    model = rung.load(adapter, dtype="float32", device="cpu")
    with pytest.raises(RungError) as refused:
        model.generate("Once", max_new_tokens=1)
    assert str(base) in str(refused.value)
    (base / "tokenizer.json").write_bytes(tokenizer)
    assert rung.load(adapter, dtype="float32", device="cpu").generate("Once", max_new_tokens=1).tokens
    before = model.logits([1, 2, 3])
    tensors = load_file(adapter / "adapter_model.safetensors")
    save_file({name: 3 * tensor for name, tensor in tensors.items()}, adapter / "adapter_model.safetensors")
    assert not torch.equal(rung.load(adapter, dtype="float32", device="cpu").logits([1, 2, 3]), before)


@pytest.mark.parametrize("fault", ["absent", "empty", "rank", "text"])
def test_an_adapter_without_matrices_or_rank_is_one_sentence(fault: str, tmp_path: Path) -> None:
    adapter, _ = adapter_of("llama", tmp_path / "adapter")
    whole, settings = adapter / "adapter_model.safetensors", adapter / "adapter_config.json"
    if fault in ("absent", "empty"):
        whole.unlink()
        if fault == "empty":
            torch.save({}, whole.with_suffix(".bin"))
    else:
        settings.write_text(json.dumps({**json.loads(settings.read_text()), "r": 0 if fault == "rank" else "x"}))
    with pytest.raises(RungError) as refused:
        rung.load(adapter, dtype="float32", device="cpu")
    assert str(adapter) in str(refused.value)
