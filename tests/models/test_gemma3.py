"""Gemma 3 against transformers, on a CPU, on the emulator and on a GPU."""

from __future__ import annotations

import json
import random
from pathlib import Path
from typing import Any

import pytest
import torch
from safetensors.torch import save_file

import gpuless
import llama_models as models
import rung
from llama_models import assert_transformers, ids_of
from rung.errors import RungError
from rung.models import family
from rung.models.gpu import step_pass
from rung.models.operations import step_rungs
from rung.models.plan import TorchPlan
from rung.models.weights import in_file, read_weights, weights_of

emulated = pytest.mark.skipif(gpuless.available() is not None, reason="the emulator needs g++")
no_gpu = pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a CUDA device")
SLIDING, FULL = "sliding_attention", "full_attention"
DEVICES = [
    pytest.param("emulator", "best", marks=emulated),
    pytest.param("emulator", "fused", marks=emulated),
    pytest.param("emulator", "naive", marks=emulated),
    *(pytest.param("cuda", plan, marks=[pytest.mark.gpu, no_gpu]) for plan in ("best", "fused")),
]


def drawn(number: int) -> dict[str, Any]:
    """The fields of a random model: any order of layers, any window, bases of rotation of their own."""
    draw = random.Random(number)
    groups, shared = draw.choice(((1, 4), (2, 2), (1, 3), (2, 1)))
    layers = draw.choice((2, 3, 4))
    return {
        "num_key_value_heads": groups, "num_attention_heads": groups * shared,
        "head_dim": draw.choice((8, 16, 32, 64)), "hidden_size": groups * shared * draw.choice((9, 16, 25)),
        "intermediate_size": draw.choice((40, 67, 128)), "num_hidden_layers": layers,
        "sliding_window": draw.choice((1, 3, 8, 20)), "query_pre_attn_scalar": draw.choice((16, 24, 100)),
        "layer_types": [draw.choice((SLIDING, FULL)) for _ in range(layers)],
        "rope_parameters": {
            SLIDING: {"rope_type": "default", "rope_theta": draw.choice((1e4, 500.0))},
            FULL: draw.choice(({"rope_type": "default", "rope_theta": 1e6}, {**models.LINEAR, "rope_theta": 1e6})),
        },
        "tie_word_embeddings": draw.random() < 0.7, "rms_norm_eps": draw.choice((1e-6, 1e-3)),
    }  # fmt: skip


def saved(number: int) -> Path:
    return models.saved("gemma3_text", **drawn(number))


@pytest.mark.parametrize("number", [pytest.param(n, marks=() if n < 6 else pytest.mark.slow) for n in range(30)])
def test_random_models_are_transformers(number: int) -> None:
    folder = saved(number)
    assert_transformers(rung.load(folder, dtype="float32", device="cpu"), folder, ids_of(40, number), 12)


@pytest.mark.parametrize(("device", "plan"), DEVICES)
def test_plans_of_rungs_and_recorded_passes_are_transformers(device: str, plan: str) -> None:
    fields = {"head_dim": 16, "num_hidden_layers": 2, "layer_types": [SLIDING, FULL]}
    folder = models.saved("gemma3_text", **{**drawn(1), **fields})
    model = rung.load(folder, dtype="float32", device=device, plan=plan)
    assert_transformers(model, folder, ids_of(40, 1), 4)


@emulated
@pytest.mark.parametrize("rows", [2, 17])
def test_the_rungs_of_a_gpu_write_few_texts_and_many(rows: int, monkeypatch: pytest.MonkeyPatch) -> None:
    # The emulator's own table leaves products to torch.
    monkeypatch.setattr(step_pass, "step_rungs", lambda device, dtype, rows: step_rungs("cuda", dtype, rows))
    fields = {"head_dim": 32, "hidden_size": 64, "intermediate_size": 128, "sliding_window": 3}
    fields |= {"num_hidden_layers": 2, "layer_types": [SLIDING, FULL]}
    folder, ids = models.saved("gemma3_text", **{**drawn(1), **fields}), ids_of(20, 3)
    prompts = [ids[: 4 + i % 9] for i in range(rows)]
    model = rung.load(folder, device="emulator", plan="best", dtype="bfloat16")
    for prompt, text in zip(prompts, model.generate(prompts, max_new_tokens=3, temperature=0), strict=True):
        logits = models.reference_logits(folder, [*prompt, *text.tokens])[len(prompt) - 1 : -1]
        lost = logits.amax(1) - logits.gather(1, torch.tensor(text.tokens)[:, None])[:, 0]
        assert float(lost.max()) < 0.1 * float(logits.std())


@pytest.mark.parametrize("dtype", ["bfloat16", "int8"])
def test_other_formats_stay_close(dtype: str) -> None:
    folder, ids = saved(3), ids_of(40, 3)
    right = models.reference_logits(folder, ids)
    found = rung.load(folder, dtype=dtype, device="cpu").logits(ids)
    assert (found - right).norm() / right.norm() < 5e-2


def test_what_is_inside_is_transformers() -> None:
    folder, ids = saved(2), ids_of(17, 5)
    model = rung.load(folder, dtype="float32", device="cpu")
    with torch.no_grad():
        right = models.reference(folder)(torch.tensor([ids]), output_hidden_states=True, output_attentions=True)
    for ours, theirs in zip(model.hidden_states(ids), right.hidden_states, strict=True):
        assert (ours - theirs).norm() / theirs.norm() < 1e-5
    assert_close = torch.testing.assert_close
    assert_close(model.inside(ids, "*")["blocks.1.attn.hook_pattern"], right.attentions[1], rtol=1e-4, atol=1e-5)


def test_norms_are_kept_above_one_and_weights_survive_a_file(tmp_path: Path) -> None:
    folder = saved(0)
    config = family.read_config(folder / "config.json")
    weights = weights_of(config, "cpu", seed=1)
    tensors = in_file(weights)
    assert abs(float(tensors["layers.0.input_layernorm.weight"].mean())) < 0.2
    save_file(tensors, tmp_path / "model.safetensors")
    plan = TorchPlan(torch.device("cpu"), torch.float32, torch.float32)
    again = read_weights(tmp_path, config, plan.matrix, plan.vector)
    torch.testing.assert_close(again.layers[0].ln_1.weight, weights.layers[0].ln_1.weight)


def test_a_period_names_the_layers_without_a_window(tmp_path: Path) -> None:
    fields = {**json.loads((saved(0) / "config.json").read_text()), "num_hidden_layers": 7}
    fields |= {"layer_types": None, "rope_parameters": None, "rope_theta": 1e6, "rope_local_base_freq": 5e3}
    config = family.parse_config(fields, "here")
    assert [config.attention(i).window is None for i in range(7)] == [i == 5 for i in range(7)]
    every_second = family.parse_config({**fields, "sliding_window_pattern": 2}, "here")
    assert [every_second.attention(i).window is None for i in range(7)] == [i % 2 == 1 for i in range(7)]
    assert (config.rope.base, config.local.base) == (1e6, 5e3)  # type: ignore[attr-defined, union-attr]


@pytest.mark.parametrize(
    ("fields", "named"),
    [
        ({"final_logit_softcapping": 30.0}, "final_logit_softcapping"),
        ({"hidden_activation": "gelu"}, "hidden_activation"),
        ({"use_bidirectional_attention": True}, "use_bidirectional_attention"),
        ({"layer_types": [SLIDING]}, "layer_types"),
        ({"layer_types": ["chunked_attention"] * 3}, "layer_types"),
        ({"query_pre_attn_scalar": 0}, "query_pre_attn_scalar"),
        ({"rope_parameters": [1]}, "rope_parameters"),
        ({"head_dim": 7}, "head_dim"),
    ],
)
def test_options_that_it_lacks_are_refused_by_name(fields: dict[str, Any], named: str) -> None:
    with pytest.raises(RungError, match=named):
        family.parse_config({**models.TINY, "model_type": "gemma3_text", **fields}, "config.json")


def test_known_sizes_have_the_published_number_of_weights() -> None:
    for name, millions in {"gemma-3-270m": 268.1, "gemma-3-1b": 999.9}.items():
        weights = 0
        for spec in family.config_of(name).family.tensors(family.config_of(name)):
            count = torch.Size(spec.stored(family.config_of(name))).numel()
            weights += 0 if spec.same_as else count * (family.config_of(name).layers if spec.layered else 1)
        assert weights / 1e6 == pytest.approx(millions, rel=1e-3)


@pytest.mark.parametrize("dtype", ["float32", "bfloat16", "int8"])
def test_the_compiled_step_writes_a_text_alone_as_in_company(dtype: str) -> None:
    """On a CPU all texts advance in one step, and no bit of a text depends on the others."""
    model = rung.load(saved(2), dtype=dtype, device="cpu")
    if model.transformer.service.native is None:
        pytest.skip("needs a C++ compiler")
    prompts = [ids_of(n, n) for n in (3, 30, 12, 7)]
    how: Any = {"max_new_tokens": 12, "temperature": 0, "stop_tokens": [], "logprobs": True}
    together = model.generate(prompts, **how)
    for prompt, found in zip(prompts, together, strict=True):
        (alone,) = model.generate([prompt], **how)
        assert alone.tokens == found.tokens and alone.logprobs == found.logprobs
