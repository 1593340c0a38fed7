"""The whole step, argmax included, is one CUDA graph: the host launches once per token.

The graph records pointers, not values: positions and lengths are read from device memory, and one recording is used
for every token.
"""
# The kernels are those of the rung before.

from __future__ import annotations

import torch

from rung.rungs import recording

EXPECT = (
    "Sixty launches from Python become one and the GPU no longer waits for the host: kernels follow each other "
    "after 0.6 us, and a step of gpt2 takes about what its kernels take."
)
FOUND = (
    "On an H200 342 us per step of gpt2 in f32 and 254 us in bf16. The expected gain cannot be seen here: the bench "
    "replays every rung from a graph, including the one before."
)
PROVENANCE = "ours; transformers' compiled static cache hides its launches in the same way"
DTYPES = ("f32", "f16", "bf16")
NEEDS = (
    "C % (32 // sizeof_real) == 0 and F % (32 // sizeof_real) == 0",
    "HS * sizeof_real % 16 == 0 and 32 % (HS * sizeof_real // 16) == 0",
    "B <= 8 and (B + 2) * round_up(C, 512) * 4 <= 200000 and B * round_up(F, 1024) * 4 <= 200000",
)
SCALARS = ("B", "L", "C", "NH", "F", "V", "MAXT", "eps", "scale", "act", "by_layer")


def run(
    tokens, lengths, wte, wpe, ln1_w, ln1_b, qkv_w, qkv_b, proj_w, proj_b, ln2_w, ln2_b, fc_w, fc_b, fc2_w, fc2_b,
    lnf_w, lnf_b, head_w, k_cache, v_cache, logits, next,
    B, L, C, NH, F, V, MAXT, eps, scale, act, by_layer, dtype,
):  # fmt: skip
    given = dict(locals())
    tensors = {name: value for name, value in given.items() if isinstance(value, torch.Tensor)}
    recording.run("decode/04_one_row", tensors, {name: given[name] for name in SCALARS}, dtype)
