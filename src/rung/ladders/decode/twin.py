"""The step in numpy or torch, a function for each phase of phases.cuh: what a phase receives, and what it sends.

All take the operands `t` and sizes `v` of the operation, and vectors as rows. The operation's reference consists of
them; tests also compare what kernels leave between phases with them.
"""

from __future__ import annotations

from collections.abc import Callable

from rung.arrays import Array, arange, erf, gelu, hide, namespace, normalised, softmax
from rung.lazy import F, torch
from rung.operation import Tensors, Values

ACTIVATIONS: tuple[Callable[[Array], Array], ...] = (
    gelu,
    lambda x: 0.5 * x * (1.0 + erf(x * 0.5**0.5)),
    lambda x: x.clip(0),
)


def qkv(t: Tensors, v: Values, layer: int, x: Array) -> Array:
    """QKV: norm, rows of three matrices, bias. Sends queries, keys and values of all heads: (B, 3 * C)."""
    return _linear(_norm(x, t, "ln1", layer, v), t, "qkv", layer)


def attention(v: Values, layer: int, q: Array, keys: Array, values: Array) -> Array:
    """ATTENTION: a query (NH, HS), and keys and values (NH, T, HS) up to its own. Sends the heads' outputs: (C,)."""
    p = softmax((keys @ q[..., None])[..., 0] * _scale(v, layer))
    return (p[:, None] @ values).reshape(-1)


def projection(t: Tensors, layer: int, y: Array, x: Array) -> Array:
    """PROJ: rows times the heads' outputs, bias, residual. Sends the stream: (B, C)."""
    return x + _linear(y, t, "proj", layer)


def fc(t: Tensors, v: Values, layer: int, x: Array) -> Array:
    """FC: norm, rows, bias, activation. Sends the hidden units: (B, F)."""
    return ACTIVATIONS[int(v["act"])](_linear(_norm(x, t, "ln2", layer, v), t, "fc", layer))


def fc2(t: Tensors, layer: int, h: Array, x: Array) -> Array:
    """FC2: rows times the hidden units, bias, residual. Sends the stream: (B, C)."""
    return x + _linear(h, t, "fc2", layer)


def head(t: Tensors, v: Values, x: Array) -> Array:
    """HEAD: norm, the rows of the vocabulary: (B, V). Their largest is the next token."""
    return (normalised(x, v["eps"]) * t["lnf_w"] + t["lnf_b"]) @ t["head_w"].T


def _linear(x: Array, t: Tensors, name: str, layer: int) -> Array:
    return x @ t[f"{name}_w"][layer].T + t[f"{name}_b"][layer]


def _norm(x: Array, t: Tensors, name: str, layer: int, v: Values) -> Array:
    return normalised(x, v["eps"]) * t[f"{name}_w"][layer] + t[f"{name}_b"][layer]


def _scale(v: Values, layer: int) -> float:
    return float(v["scale"]) / (layer + 1 if v["by_layer"] else 1)


def places(t: Tensors, v: Values) -> tuple[Array, Array, Array]:
    """Each row's place in the caches (text and position), and whether the position is inside."""
    rows = arange(int(v["B"]), t["tokens"])
    firsts = t.get("texts", rows)
    caches = t["caches"][firsts] if "caches" in t else firsts
    at = t["lengths"][firsts] + rows - firsts
    return caches, at.clip(None, int(v["MAXT"]) - 1), at < int(v["MAXT"])


def step(t: Tensors, v: Values, k_cache: Array, v_cache: Array) -> Tensors:
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
        q, k, value = (new.reshape(rows, 3, NH, HS)[:, part] for part in range(3))
        k_cache[layer][kept], v_cache[layer][kept] = k[inside], value[inside]
        heads = [attention(v, layer, q[b], k_cache[layer][s], v_cache[layer][s]) for b, s in enumerate(seen)]
        y = namespace(x).stack(heads)
        after = projection(t, layer, y, x)
        hidden = fc(t, v, layer, after)
        sent = {"x": x, "qkv": new, "attention": y, "after_attention": after, "hidden": hidden}
        sent["after_mlp"] = fc2(t, layer, hidden, after)
    return sent | {"logits": head(t, v, sent["after_mlp"]), "k_cache": k_cache, "v_cache": v_cache}


def recomputed(t: Tensors, v: Values, b: int) -> Array:
    """The logits of sequence b from all its tokens, without caches: (V,)."""
    NH, HS, past = int(v["NH"]), int(v["HS"]), int(t["lengths"][b])
    tokens = namespace(t["wte"]).concatenate([t["history"][b, :past], t["tokens"][b : b + 1]])
    position = arange(past + 1, tokens)
    x = t["wte"][tokens] + t["wpe"][: past + 1]  # (T, C)
    for layer in range(int(v["L"])):
        packed = qkv(t, v, layer, x).reshape(-1, 3, NH, HS)
        q, k, value = (packed[:, part].swapaxes(0, 1) for part in range(3))  # (NH, T, HS)
        scores = hide(q @ k.swapaxes(1, 2) * _scale(v, layer), position > position[:, None])
        x = projection(t, layer, (softmax(scores) @ value).swapaxes(0, 1).reshape(x.shape), x)
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
        h = F.relu(h) if act == 2 else F.gelu(h, approximate="none" if act else "tanh")
        x = x + F.linear(h, fc2_w[layer], fc2_b[layer])
    logits = F.linear(F.layer_norm(x, (C,), lnf_w, lnf_b, eps), head_w).float()
    return {"logits": logits, "next": logits.argmax(1).int(), "k_cache": k_cache, "v_cache": v_cache}
