"""The step for one text in torch, a function for each phase of phases.cuh: what a phase receives, and what it sends.

All take the operands `t` and sizes `v` of the operation; vectors have one dimension. Tests compare what kernels leave
between phases with these.
"""

from __future__ import annotations

from rung.lazy import F, torch
from rung.operation import Tensors, Values

GELU_TANH, GELU_ERF, RELU = range(3)


def embed(t: Tensors, v: Values) -> torch.Tensor:
    """The residual stream that the first phase receives: (C,)."""
    return t["wte"][int(t["tokens"][0])] + t["wpe"][int(t["lengths"][0])]


def qkv(t: Tensors, v: Values, layer: int, x: torch.Tensor) -> torch.Tensor:
    """QKV: norm, rows of three matrices, bias. Sends query, key and value of all heads: (3 * C,)."""
    n = F.layer_norm(x, x.shape, t["ln1_w"][layer], t["ln1_b"][layer], float(v["eps"]))
    return t["qkv_w"][layer] @ n + t["qkv_b"][layer]


def attention(t: Tensors, v: Values, layer: int, new: torch.Tensor) -> torch.Tensor:
    """ATTENTION: the query and the keys up to and with the new one, head by head. Sends the heads' outputs: (C,)."""
    q, k, value = new.view(3, int(v["NH"]), int(v["HS"]))
    past = slice(int(t["lengths"][0]))  # nothing beyond it is read
    keys = torch.cat([t["k_cache"][layer, 0, :, past], k[:, None]], 1)  # (NH, T, HS)
    values = torch.cat([t["v_cache"][layer, 0, :, past], value[:, None]], 1)
    scale = float(v["scale"]) / (layer + 1 if v["by_layer"] else 1)
    p = (torch.einsum("htd,hd->ht", keys, q) * scale).softmax(1)
    return torch.einsum("ht,htd->hd", p, values).flatten()


def projection(t: Tensors, v: Values, layer: int, y: torch.Tensor, x: torch.Tensor) -> torch.Tensor:
    """PROJ: rows times the heads' outputs, bias, residual. Sends the stream: (C,)."""
    return x + t["proj_w"][layer] @ y + t["proj_b"][layer]


def fc(t: Tensors, v: Values, layer: int, x: torch.Tensor) -> torch.Tensor:
    """FC: norm, rows, bias, activation. Sends the hidden units: (F,)."""
    n = F.layer_norm(x, x.shape, t["ln2_w"][layer], t["ln2_b"][layer], float(v["eps"]))
    h = t["fc_w"][layer] @ n + t["fc_b"][layer]
    return h.relu() if v["act"] == RELU else F.gelu(h, approximate="tanh" if v["act"] == GELU_TANH else "none")


def fc2(t: Tensors, v: Values, layer: int, h: torch.Tensor, x: torch.Tensor) -> torch.Tensor:
    """FC2: rows times the hidden units, bias, residual. Sends the stream: (C,)."""
    return x + t["fc2_w"][layer] @ h + t["fc2_b"][layer]


def head(t: Tensors, v: Values, x: torch.Tensor) -> torch.Tensor:
    """HEAD: norm, the rows of the vocabulary: (V,). Their largest is the next token."""
    return t["head_w"] @ F.layer_norm(x, x.shape, t["lnf_w"], t["lnf_b"], float(v["eps"]))


def step(t: Tensors, v: Values) -> Tensors:
    """What each phase of the last layer sends, and the logits; `x` is the stream that this layer receives."""
    sent: Tensors = {"after_mlp": embed(t, v)}
    for layer in range(int(v["L"])):
        x = sent["after_mlp"]
        new = qkv(t, v, layer, x)
        y = attention(t, v, layer, new)
        after = projection(t, v, layer, y, x)
        hidden = fc(t, v, layer, after)
        sent = {"x": x, "qkv": new, "attention": y, "after_attention": after, "hidden": hidden}
        sent["after_mlp"] = fc2(t, v, layer, hidden, after)
    return sent | {"logits": head(t, v, sent["after_mlp"])}
