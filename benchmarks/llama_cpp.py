"""llama.cpp as a peer on the CPU: a model's weights as a GGUF file, and the times of its `llama-batched-bench`.

It is built from llama.cpp's sources (`cmake -B build -DGGML_NATIVE=ON`, `cmake --build build -t llama-batched-bench`);
the source package of llama-cpp-python has them in `vendor/llama.cpp`. The file is written with the package `gguf`.
"""

from __future__ import annotations

import json
import re
import resource
import subprocess
from pathlib import Path
from typing import Any

# The format of llama.cpp that is nearest to each of rung's.
FORMATS = {"float32": "F32", "bfloat16": "BF16", "int8": "Q8_0"}
_GPT2 = {
    "wte": "token_embd", "wpe": "position_embd", "ln_f": "output_norm", "ln_1": "attn_norm", "attn.c_attn": "attn_qkv",
    "attn.c_proj": "attn_output", "ln_2": "ffn_norm", "mlp.c_fc": "ffn_up", "mlp.c_proj": "ffn_down",
}  # fmt: skip
_LLAMA = {
    "embed_tokens": "token_embd", "norm": "output_norm", "input_layernorm": "attn_norm",
    "post_attention_layernorm": "ffn_norm", **{f"self_attn.{x}_proj": f"attn_{x}" for x in "qkv"},
    "self_attn.o_proj": "attn_output", **{f"mlp.{x}_proj": f"ffn_{x}" for x in ("gate", "up", "down")},
}  # fmt: skip


def write(model: Any, kind: str, path: Path) -> None:
    """The weights of a GPT2LMHeadModel or a tied LlamaForCausalLM, for speed: llama.cpp expects another order of the
    rows of Llama's queries and keys. Matrices in the format `kind`, all else in float32."""
    import gguf
    from gguf.quants import quantize

    c = model.config
    names = _GPT2 if c.model_type == "gpt2" else _LLAMA
    writer = gguf.GGUFWriter(path, c.model_type)
    writer.add_context_length(c.max_position_embeddings)
    writer.add_embedding_length(c.hidden_size)
    writer.add_block_count(c.num_hidden_layers)
    writer.add_head_count(c.num_attention_heads)
    writer.add_vocab_size(c.vocab_size)
    writer.add_tokenizer_model("no_vocab")
    if names is _GPT2:
        writer.add_feed_forward_length(4 * c.n_embd)
        writer.add_layer_norm_eps(c.layer_norm_epsilon)
    else:
        writer.add_feed_forward_length(c.intermediate_size)
        writer.add_head_count_kv(c.num_key_value_heads)
        writer.add_layer_norm_rms_eps(c.rms_norm_eps)
        writer.add_rope_freq_base(c.rope_parameters["rope_theta"])
    for name, tensor in model.base_model.named_parameters():
        module, _, part = name.rpartition(".")
        layered = re.fullmatch(r"(?:h|layers)\.(\d+)\.(.+)", module)
        place = f"blk.{layered[1]}.{names[layered[2]]}.{part}" if layered else f"{names[module]}.{part}"
        transposed = ".c_" in module and tensor.dim() == 2  # Conv1D keeps (inputs, outputs)
        data = (tensor.T if transposed else tensor).detach().float().contiguous().numpy()
        if tensor.dim() == 2 and module != "wpe":
            to = gguf.GGMLQuantizationType[kind]
            writer.add_tensor(place, quantize(data, to), raw_dtype=to)
        else:
            writer.add_tensor(place, data)
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()


def seconds(program: Path, model: Path, threads: int, prompt: int, new: int, texts: int, *, cpu: bool) -> float:
    """Of reading prompts and writing new tokens after them, if any: wall time as the program reports it, or `cpu`, the
    process's CPU time less that of a run that does next to nothing."""

    def run(prompt: int, new: int) -> tuple[float, float]:
        command = [str(program), "-m", str(model), "-t", str(threads), "-tb", str(threads), "--output-format", "jsonl"]
        sizes = {"-npp": prompt, "-ntg": new, "-npl": texts, "-c": max(512, texts * (prompt + new + 64))}
        words = [str(word) for pair in sizes.items() for word in pair]
        before = resource.getrusage(resource.RUSAGE_CHILDREN)
        output = subprocess.run([*command, *words], check=True, capture_output=True, text=True).stdout
        after = resource.getrusage(resource.RUSAGE_CHILDREN)
        used = after.ru_utime + after.ru_stime - before.ru_utime - before.ru_stime
        lines = [line for line in output.splitlines() if line.startswith("{")]
        if not lines and not cpu:  # the program sometimes ends before its log is written
            return run(prompt, new)
        found = json.loads(lines[0]) if lines else {"t_pp": 0.0, "t_tg": 0.0}
        return found["t_pp"] + (found["t_tg"] if new > 1 else 0.0), used

    # The run for comparison has two steps, one for its prompt: with as many more nothing but loading is taken off.
    wall, used = run(prompt, new + 2 if new and cpu else max(1, new))
    return used - run(1, 1)[1] if cpu else wall
