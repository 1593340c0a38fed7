"""llama.cpp as a peer on the CPU: GPT-2's weights as a GGUF file, and the rates that its `llama-bench` reports.

llama-bench is built from llama.cpp's sources (`cmake -B build -DGGML_NATIVE=ON`, `cmake --build build -t llama-bench`);
the source package of llama-cpp-python has them in `vendor/llama.cpp`. The file is written with the package `gguf`.
"""

from __future__ import annotations

import json
import subprocess
from pathlib import Path
from typing import Any

# The format of llama.cpp that is nearest to each of rung's.
FORMATS = {"float32": "F32", "bfloat16": "BF16", "int8": "Q8_0"}
_LAYER = {
    "ln_1": "attn_norm",
    "attn.c_attn": "attn_qkv",
    "attn.c_proj": "attn_output",
    "ln_2": "ffn_norm",
    "mlp.c_fc": "ffn_up",
    "mlp.c_proj": "ffn_down",
}


def write(model: Any, kind: str, path: Path) -> None:
    """The weights of a transformers.GPT2LMHeadModel; matrices in the format `kind`, all else in float32."""
    import gguf
    from gguf.quants import quantize

    config = model.config
    writer = gguf.GGUFWriter(path, "gpt2")
    writer.add_context_length(config.n_positions)
    writer.add_embedding_length(config.n_embd)
    writer.add_block_count(config.n_layer)
    writer.add_feed_forward_length(4 * config.n_embd)
    writer.add_head_count(config.n_head)
    writer.add_layer_norm_eps(config.layer_norm_epsilon)
    writer.add_vocab_size(config.vocab_size)
    writer.add_tokenizer_model("no_vocab")
    to = gguf.GGMLQuantizationType[kind]

    def add(name: str, tensor: Any, to: Any = gguf.GGMLQuantizationType.F32) -> None:
        data = tensor.detach().float().contiguous().numpy()
        if to == gguf.GGMLQuantizationType.F32:
            writer.add_tensor(name, data)
        else:
            writer.add_tensor(name, quantize(data, to), raw_dtype=to)

    body = model.transformer
    add("token_embd.weight", body.wte.weight, to)
    add("position_embd.weight", body.wpe.weight)
    for name, tensor in body.ln_f.named_parameters():
        add(f"output_norm.{name}", tensor)
    for i, block in enumerate(body.h):
        for ours, theirs in _LAYER.items():
            module = block.get_submodule(ours)
            matrix = module.weight.dim() == 2
            add(f"blk.{i}.{theirs}.weight", module.weight.T if matrix else module.weight, *[to] * matrix)
            add(f"blk.{i}.{theirs}.bias", module.bias)
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()


def seconds(llama_bench: Path, model: Path, threads: int, prompt: int, new: int) -> float:
    """Of reading a prompt, or of writing tokens one by one: one measurement, after one that is not counted."""
    command = [str(llama_bench), "-m", str(model), "-t", str(threads), "-r", "1", "-o", "json"]
    output = subprocess.run(
        [*command, "-p", str(prompt), "-n", str(new)], check=True, capture_output=True, text=True
    ).stdout
    (found,) = json.loads(output)
    return float(found["avg_ns"]) / 1e9
