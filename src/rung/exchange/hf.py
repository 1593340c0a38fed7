"""rung inside transformers: `attn_implementation="rung"`, `custom_generate=rung.generate`, GELU by a rung.

`rung.transformers.register()` makes the name "rung" known to transformers; `rung.generate` needs no registration.
"""

from __future__ import annotations

import tempfile
import weakref
from pathlib import Path
from typing import Any

import torch
import torch.nn.functional as F

from rung import ops
from rung.errors import RungError
from rung.models.load import Model, load

# Processors of generation_config are rebuilt from it; any other processor or criterion would be silently ignored.
PROCESSORS = {"TemperatureLogitsWarper", "TopKLogitsWarper", "TopPLogitsWarper", "MinPLogitsWarper",
              "RepetitionPenaltyLogitsProcessor"}  # fmt: skip
CRITERIA = {"MaxLengthCriteria", "EosTokenCriteria"}


def register(name: str = "rung", *, rung: str = "best") -> None:
    """Register an attention of this name with transformers: `model.set_attn_implementation(name)`. `rung` selects one
    of the ladder: "best", a number, a name. Calls that the ladder does not support (with a mask, a cache, dropout, or
    keys shared by several heads) go to torch's own attention.
    """
    from transformers import AttentionInterface
    from transformers.masking_utils import AttentionMaskInterface, sdpa_mask

    def attention(
        module: torch.nn.Module,
        query: torch.Tensor,
        key: torch.Tensor,
        value: torch.Tensor,
        attention_mask: torch.Tensor | None,
        scaling: float | None = None,
        dropout: float = 0.0,
        is_causal: bool | None = None,
        **_: Any,
    ) -> tuple[torch.Tensor, None]:
        B, heads, T, _size = query.shape
        causal = bool(getattr(module, "is_causal", True) if is_causal is None else is_causal)
        trained = torch.is_grad_enabled() and query.requires_grad
        if attention_mask is None and key.shape == query.shape and not dropout and not trained:
            more = {} if scaling is None else {"scale": scaling}
            out = ops.attention(q=query, k=key, v=value, causal=int(causal), rung=rung, **more)
            return out.view(B, T, heads, -1), None
        groups = heads // key.shape[1]
        if groups > 1:
            key, value = (t.repeat_interleave(groups, 1) for t in (key, value))
        causal = causal and attention_mask is None and T > 1
        out = F.scaled_dot_product_attention(
            query, key, value, attn_mask=attention_mask, dropout_p=dropout, is_causal=causal, scale=scaling
        )
        return out.transpose(1, 2).contiguous(), None

    AttentionInterface.register(name, attention)
    AttentionMaskInterface.register(name, sdpa_mask)


def kernelize(model: torch.nn.Module, *, rung: str = "best") -> torch.nn.Module:
    """Replace the model's NewGELU layers with a rung, through the package `kernels`."""
    import kernels
    from transformers.activations import NewGELUActivation

    if getattr(NewGELUActivation, "kernel_layer_name", None) is None:  # required by newer versions of transformers
        kernels.replace_kernel_forward_from_hub(NewGELUActivation, "NewGELU")

    class NewGELU(torch.nn.Module):
        """transformers' hub layer of this name; `kernels` allows only methods in it."""

        def forward(self, input: torch.Tensor) -> torch.Tensor:
            """GELU in its tanh form."""
            if torch.is_grad_enabled() and input.requires_grad:
                return F.gelu(input, approximate="tanh")
            return torch.as_tensor(ops.gelu(input, rung=rung))

    class Repository:
        """What `kernels` calls to load a layer, which is already loaded here."""

        layer_name = "NewGELU"

        def load(self) -> type[torch.nn.Module]:
            return NewGELU

    device = next(model.parameters()).device.type
    with kernels.use_kernel_mapping({"NewGELU": {device: Repository()}}, inherit_mapping=False):
        kernelized: torch.nn.Module = kernels.kernelize(model, mode=kernels.Mode.INFERENCE, device=device)
    return kernelized


# ---- whole texts -----------------------------------------------------------------------------------------------------

_loaded: weakref.WeakKeyDictionary[Any, tuple[tuple[Any, ...], Model]] = weakref.WeakKeyDictionary()


def model_of(model: Any) -> Model:
    """rung's model with the weights of a GPT-2 of transformers; made again when they have changed."""
    state = (str(model.device), str(model.dtype), *((p.data_ptr(), p._version) for p in model.parameters()))
    if model not in _loaded or _loaded[model][0] != state:
        if getattr(model.config, "model_type", "") != "gpt2":
            raise RungError(f"rung runs GPT-2, not {getattr(model.config, 'model_type', type(model).__name__)}.")
        with tempfile.TemporaryDirectory(prefix="rung-") as folder:
            model.save_pretrained(Path(folder))
            _loaded[model] = (state, load(folder, device=model.device.type, dtype=model.dtype))
    return _loaded[model][1]


def generate(
    model: Any,
    input_ids: torch.Tensor,
    logits_processor: Any = (),
    stopping_criteria: Any = (),
    generation_config: Any = None,
    **given: Any,
) -> torch.Tensor:
    """For transformers: `model.generate(..., custom_generate=rung.generate)` writes with rung's engine.

    In float32 greedy text equals transformers' token by token; sampled text follows the same distribution and torch's
    seed. Beams, and processors or criteria that generation_config does not hold, are refused.
    """
    config = generation_config
    unknown = [type(p).__name__ for p in logits_processor if type(p).__name__ not in PROCESSORS]
    unknown += [type(c).__name__ for c in stopping_criteria if type(c).__name__ not in CRITERIA]
    if unknown or (config.num_beams or 1) > 1:
        raise RungError(f"rung.generate does not take {unknown[0] if unknown else 'beams'}; leave custom_generate out.")
    if getattr(config, "return_dict_in_generate", False) or getattr(config, "output_scores", False):
        raise RungError("rung.generate returns only tokens; leave return_dict_in_generate and output_scores out.")
    rows = input_ids.tolist()
    attention_mask = given.get("attention_mask")  # not a parameter: transformers would pass it twice
    if attention_mask is not None:  # padded prompts are passed without their padding
        rows = [ids[seen.bool()].tolist() for ids, seen in zip(input_ids, attention_mask, strict=True)]
    ends = config.eos_token_id
    ends = [] if ends is None else ends if isinstance(ends, list) else [ends]
    found = model_of(model).generate(
        rows,
        max_new_tokens=config.max_length - input_ids.shape[1],
        temperature=float(1.0 if config.temperature is None else config.temperature) if config.do_sample else 0.0,
        top_k=(config.top_k or None) if config.do_sample else None,
        top_p=float(config.top_p or 1.0) if config.do_sample else 1.0,
        min_p=float(config.min_p or 0.0) if config.do_sample else 0.0,
        repetition_penalty=float(config.repetition_penalty or 1.0),
        stop_tokens=ends,
        seed=int(torch.randint(2**31, ())),
    )
    written = [c.tokens + (ends[:1] if c.finish_reason == "stop" else []) for c in found]
    pad = config.pad_token_id if config.pad_token_id is not None else (ends or [0])[0]
    longest = max(map(len, written))
    new = torch.tensor([w + [int(pad)] * (longest - len(w)) for w in written], device=input_ids.device)
    return torch.cat([input_ids, new.to(input_ids.dtype)], 1)
