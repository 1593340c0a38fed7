"""Several tokens per graph launch: the GPU runs ahead, and the host reads tokens from pinned memory meanwhile.

A recorded step ends with a kernel that makes its token the next step's input, ends sequences at their stop tokens,
and writes the token and then a counter into the host's own memory.
"""
# STEPS such steps are one graph, and enough of them are queued that the GPU always has work; the host only reads the
# counter. Checked as an operation, the rung takes one of these steps.

from __future__ import annotations

import torch

from rung.rungs import recording

EXPECT = (
    "The time between two tokens, some 10 us of graph launch and the host's own time, is shared by STEPS tokens or "
    "completely hidden."
)
FOUND = (
    "On an H200 a tie with rung 6 in f32, 247 -> 245 us per step of gpt2, and 201 -> 197 us (1.02x) in bf16; 8.45x "
    "torch's speed in f32. The bench takes one step, rung 6's kernels, and replays both rungs from graphs: the "
    "host's time, which this rung saves, is not in these figures, so they do not test the expectation."
)
PROVENANCE = "ours"
DTYPES = ("f32", "f16", "bf16")
NEEDS = (
    "C % (32 // sizeof_real) == 0 and F % (32 // sizeof_real) == 0",
    "HS * sizeof_real % 16 == 0 and 32 % (HS * sizeof_real // 16) == 0",
    "B <= 8 and (B + 2) * round_up(C, 512) * 4 <= 200000 and B * round_up(F, 1024) * 4 <= 200000",
)
TUNE = {"STEPS": (8, 16, 4, 1)}
SCALARS = ("B", "L", "C", "NH", "F", "V", "MAXT", "eps", "scale", "act", "by_layer")


def run(
    tokens, lengths, wte, wpe, ln1_w, ln1_b, qkv_w, qkv_b, proj_w, proj_b, ln2_w, ln2_b, fc_w, fc_b, fc2_w, fc2_b,
    lnf_w, lnf_b, head_w, k_cache, v_cache, logits, next,
    B, L, C, NH, F, V, MAXT, eps, scale, act, by_layer, dtype, STEPS,
):  # fmt: skip
    given = dict(locals())
    tensors = {name: value for name, value in given.items() if isinstance(value, torch.Tensor)}
    recording.run("decode/06_dependent_launch", tensors, {name: given[name] for name in SCALARS}, dtype)
