"""The step in torch, a function for each phase of phases.cuh: what a phase receives, and what it sends.

All take the operands `t` and sizes `v` of the operation, and vectors as rows. The operation's reference consists of
them; tests also compare what kernels leave between phases with them.
"""

from __future__ import annotations

from collections.abc import Callable

from rung.lazy import F, torch
from rung.operation import Tensors, Values

ACTIVATIONS: tuple[Callable[[torch.Tensor], torch.Tensor], ...] = (
    lambda x: F.gelu(x, approximate="tanh"),
    lambda x: F.gelu(x),
    lambda x: F.relu(x),
)


def qkv(t: Tensors, v: Values, layer: int, x: torch.Tensor) -> torch.Tensor:
    """QKV: norm, rows of three matrices, bias. Sends queries, keys and values of all heads: (B, 3 * C)."""
    return _linear(_norm(x, t, "ln1", layer, v), t, "qkv", layer)


def attention(v: Values, layer: int, q: torch.Tensor, keys: torch.Tensor, values: torch.Tensor) -> torch.Tensor:
    """ATTENTION: a query (NH, HS), and keys and values (NH, T, HS) up to its own. Sends the heads' outputs: (C,)."""
    p = ((keys @ q[..., None])[..., 0] * _scale(v, layer)).softmax(-1)
    return (p[:, None] @ values).flatten()


def projection(t: Tensors, layer: int, y: torch.Tensor, x: torch.Tensor) -> torch.Tensor:
    """PROJ: rows times the heads' outputs, bias, residual. Sends the stream: (B, C)."""
    return x + _linear(y, t, "proj", layer)


def fc(t: Tensors, v: Values, layer: int, x: torch.Tensor) -> torch.Tensor:
    """FC: norm, rows, bias, activation. Sends the hidden units: (B, F)."""
    return ACTIVATIONS[int(v["act"])](_linear(_norm(x, t, "ln2", layer, v), t, "fc", layer))


def fc2(t: Tensors, layer: int, h: torch.Tensor, x: torch.Tensor) -> torch.Tensor:
    """FC2: rows times the hidden units, bias, residual. Sends the stream: (B, C)."""
    return x + _linear(h, t, "fc2", layer)


def head(t: Tensors, v: Values, x: torch.Tensor) -> torch.Tensor:
    """HEAD: norm, the rows of the vocabulary: (B, V). Their largest is the next token."""
    return F.layer_norm(x, x.shape[-1:], t["lnf_w"], t["lnf_b"], float(v["eps"])) @ t["head_w"].T


def _linear(x: torch.Tensor, t: Tensors, name: str, layer: int) -> torch.Tensor:
    return x @ t[f"{name}_w"][layer].T + t[f"{name}_b"][layer]


def _norm(x: torch.Tensor, t: Tensors, name: str, layer: int, v: Values) -> torch.Tensor:
    return F.layer_norm(x, x.shape[-1:], t[f"{name}_w"][layer], t[f"{name}_b"][layer], float(v["eps"]))


def _scale(v: Values, layer: int) -> float:
    return float(v["scale"]) / (layer + 1 if v["by_layer"] else 1)


def places(t: Tensors, v: Values) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor]:
    """Each row's place in the caches (text and position), and whether the position is inside."""
    rows = torch.arange(int(v["B"]), device=t["tokens"].device)
    firsts = t["texts"].long() if "texts" in t else rows
    caches = t["caches"].long()[firsts] if "caches" in t else firsts
    at = t["lengths"].long()[firsts] + rows - firsts
    return caches, at.clamp(max=int(v["MAXT"]) - 1), at < int(v["MAXT"])


def step(t: Tensors, v: Values, k_cache: torch.Tensor, v_cache: torch.Tensor) -> Tensors:
    """The logits, the caches with the new keys and values, and what each phase of the last layer sends; `x` is the
    stream that it receives."""
    caches, at, inside = places(t, v)
    rows, NH, HS = len(at), int(v["NH"]), int(v["HS"])
    sent: Tensors = {"after_mlp": t["wte"][t["tokens"]] + t["wpe"][at]}
    kept = caches[inside], slice(None), at[inside]
    seen = [(c, slice(None), slice(end + 1)) for c, end in zip(caches.tolist(), at.tolist(), strict=True)]
    for layer in range(int(v["L"])):
        x = sent["after_mlp"]
        new = qkv(t, v, layer, x)
        q, k, value = new.view(rows, 3, NH, HS).unbind(1)
        k_cache[layer][kept], v_cache[layer][kept] = k[inside], value[inside]
        y = torch.stack([attention(v, layer, q[b], k_cache[layer][s], v_cache[layer][s]) for b, s in enumerate(seen)])
        after = projection(t, layer, y, x)
        hidden = fc(t, v, layer, after)
        sent = {"x": x, "qkv": new, "attention": y, "after_attention": after, "hidden": hidden}
        sent["after_mlp"] = fc2(t, layer, hidden, after)
    return sent | {"logits": head(t, v, sent["after_mlp"]), "k_cache": k_cache, "v_cache": v_cache}


def recomputed(t: Tensors, v: Values, b: int) -> torch.Tensor:
    """The logits of sequence b from all its tokens, without caches: (V,)."""
    NH, HS, past = int(v["NH"]), int(v["HS"]), int(t["lengths"][b])
    tokens = torch.cat([t["history"][b, :past], t["tokens"][b : b + 1]])
    x = t["wte"][tokens] + t["wpe"][: past + 1]  # (T, C)
    for layer in range(int(v["L"])):
        q, k, value = qkv(t, v, layer, x).view(-1, 3, NH, HS).permute(1, 2, 0, 3).unbind(0)
        y = F.scaled_dot_product_attention(q, k, value, is_causal=True, scale=_scale(v, layer))
        x = projection(t, layer, y.transpose(0, 1).reshape(x.shape), x)
        x = fc2(t, layer, fc(t, v, layer, x), x)
    return head(t, v, x[-1])


def torch_decode(
    tokens: torch.Tensor,
    lengths: torch.Tensor,
    k_cache: torch.Tensor,
    v_cache: torch.Tensor,
    wte: torch.Tensor,
    wpe: torch.Tensor,
    head_w: torch.Tensor,
    ln1_w: torch.Tensor,
    ln1_b: torch.Tensor,
    qkv_w: torch.Tensor,
    qkv_b: torch.Tensor,
    proj_w: torch.Tensor,
    proj_b: torch.Tensor,
    ln2_w: torch.Tensor,
    ln2_b: torch.Tensor,
    fc_w: torch.Tensor,
    fc_b: torch.Tensor,
    fc2_w: torch.Tensor,
    fc2_b: torch.Tensor,
    lnf_w: torch.Tensor,
    lnf_b: torch.Tensor,
    L: int,
    NH: int,
    MAXT: int,
    eps: float,
    scale: float,
    act: int,
    by_layer: int,
) -> Tensors:
    B, C = len(tokens), wte.shape[1]
    rows = torch.arange(B, device=tokens.device)
    tokens, at = tokens.long(), lengths.long()
    x = wte[tokens] + wpe[at]
    mask = (torch.arange(MAXT, device=tokens.device) <= at[:, None])[:, None, None]  # (B, 1, 1, MAXT)
    for layer in range(L):
        qkv = F.linear(F.layer_norm(x, (C,), ln1_w[layer], ln1_b[layer], eps), qkv_w[layer], qkv_b[layer])
        q, k, v = qkv.view(B, 3, NH, C // NH).unbind(1)
        k_cache[layer, rows, :, at], v_cache[layer, rows, :, at] = k, v
        y = F.scaled_dot_product_attention(
            q[:, :, None],
            k_cache[layer],
            v_cache[layer],
            attn_mask=mask,
            scale=scale / (layer + 1 if by_layer else 1),
        )
        x = x + F.linear(y.reshape(B, C), proj_w[layer], proj_b[layer])
        h = F.linear(F.layer_norm(x, (C,), ln2_w[layer], ln2_b[layer], eps), fc_w[layer], fc_b[layer])
        x = x + F.linear(ACTIVATIONS[act](h), fc2_w[layer], fc2_b[layer])
    logits = F.linear(F.layer_norm(x, (C,), lnf_w, lnf_b, eps), head_w).float()
    return {"logits": logits, "next": logits.argmax(1).int(), "k_cache": k_cache, "v_cache": v_cache}
