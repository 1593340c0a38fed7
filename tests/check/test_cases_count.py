"""Every part of a formula counts: leaving one out or changing it moves some case's result tenfold out of tolerance."""

from __future__ import annotations

import functools
from collections.abc import Callable

import pytest
import torch

from rung.arrays import dtype_of
from rung.check.compare import Measured
from rung.dtypes import dtype as dtype_named
from rung.operation import Operation, Tensors, Values
from rung.rungs import catalogue

Mutant = Callable[[Operation, Tensors, Values], Tensors]
LEAVE_OUT = {"layernorm": {"residual", "sum"}, "decode": {"history"}}
# An operation whose rungs bind different operands is looked at once for each set of them.
BINDS = {
    "matmul_low": ("x", "weight"),
    "matmul_low int8": ("x_q", "w_q", "x_scale", "w_scale"),
    "matmul_low quantised here": ("x", "w_q", "w_scale"),
    "matmul_low e4m3": ("x_f8", "w_f8", "x_scale", "w_scale"),
    "matmul_low two of four": ("x", "w_kept", "w_places"),
    "matmul_low int8 weights": ("x", "w_i8", "w_scale"),
    "matmul_low e4m3 weights": ("x", "w_f8", "w_scale"),
}
TENFOLD = 10.0


def tensors(change: Callable[[Tensors, Values], None]) -> Mutant:
    """The reference of changed operands."""

    def mutant(of: Operation, t: Tensors, v: Values) -> Tensors:
        t = {name: tensor.clone() for name, tensor in t.items() if of.operand(name).view_of is None}
        change(t, v)
        for operand in of.operands:
            if operand.view_of in t and operand.view is not None:
                t[operand.name] = operand.view(t[operand.view_of], v)
        return of.reference(t, v)

    return mutant


def scalars(**changed: float | str | Callable[[Values], float]) -> Mutant:
    """The reference with other scalars."""

    def mutant(of: Operation, t: Tensors, v: Values) -> Tensors:
        return of.reference(t, {**v, **{n: c(v) if callable(c) else c for n, c in changed.items()}})

    return mutant


def without(name: str) -> Mutant:
    return tensors(lambda t, v: t[name].zero_())


def clamped(name: str, at: float) -> Mutant:
    return tensors(lambda t, v: t[name].clamp_(-at, at))


def cut(name: str, length: int, dim: int = -1) -> Mutant:
    """What lies beyond is not read."""

    def change(t: Tensors, v: Values) -> None:
        if t[name].shape[dim] > length:
            t[name].narrow(dim, length, t[name].shape[dim] - length).zero_()

    return tensors(change)


def rolled(name: str, dim: int = -1) -> Mutant:
    return tensors(lambda t, v: t[name].copy_(t[name].roll(1, dim)))


def wrapped(name: str, below: int) -> Mutant:
    """An index kept in too few bits."""
    return tensors(lambda t, v: t[name].copy_(t[name] % below))


def replaced(name: str, get: Callable[[Tensors, Values], torch.Tensor]) -> Mutant:
    return lambda of, t, v: {**of.reference(t, v), name: get(t, v)}


def other_batch(name: str, count: int = 2) -> Mutant:
    """From the third batch on, the second's numbers."""

    def change(t: Tensors, v: Values) -> None:
        if t[name].shape[0] > count:
            t[name][count:] = t[name][count - 1]

    return tensors(change)


def beyond(name: str, elements: int = 1 << 16) -> Mutant:
    """Elements whose number needs more than 16 bits are taken from the beginning."""

    def change(t: Tensors, v: Values) -> None:
        flat = t[name].view(-1)
        if len(flat) > elements:
            flat[elements:] = flat[: len(flat) - elements].clone() if len(flat) < 2 * elements else 0

    return tensors(change)


CLAMPS = (200.0, 600.0, 20000.0)


def ends(*names: str) -> dict[str, Mutant]:
    return {f"{n} clamped at {at:g}": clamped(n, at) for n in names for at in CLAMPS}


# ---- formulas of their own ---------------------------------------------------------------------------------------


def _exp_without(maximum: Callable[[torch.Tensor], torch.Tensor | float]) -> Callable[[torch.Tensor], torch.Tensor]:
    def softmax(scores: torch.Tensor) -> torch.Tensor:
        e = torch.exp(scores.float() - maximum(scores.float()))
        return (e / e.sum(-1, keepdim=True)).double()

    return softmax


MAXIMA: dict[str, Callable[[torch.Tensor], torch.Tensor | float]] = {
    "no maximum": lambda s: 0.0,
    "maximum of the first eight": lambda s: s[..., :8].amax(-1, keepdim=True),
    "maximum that starts at 0": lambda s: s.amax(-1, keepdim=True).clamp(min=0.0),
    "maximum without the last": lambda s: s[..., : max(1, s.shape[-1] - 1)].amax(-1, keepdim=True),
}
STARTS: dict[str, Callable[[torch.Tensor], torch.Tensor | float]] = {
    f"maximum that starts at {at:g}": lambda s, at=at: s.amax(-1, keepdim=True).clamp(min=at)
    for at in (-300.0, -1000.0)
}


def _softmax_within(low: float, high: float) -> Callable[[torch.Tensor], torch.Tensor]:
    """Of scores that are clamped; those that the mask hides stay hidden."""
    return lambda s: torch.where(s == -torch.inf, s, s.clamp(low, high)).softmax(-1).nan_to_num(0.0)


CLAMPED = {
    **{f"scores up to {at:g}": _softmax_within(-1e30, at) for at in (88.0, 150.0, 1000.0)},
    **{f"scores from {at:g}": _softmax_within(at, 1e30) for at in (-150.0, -1000.0)},
    **{name: _exp_without(m) for name, m in STARTS.items()},
}


def _softmax_with(softmax: Callable[[torch.Tensor], torch.Tensor], shift: int = 0) -> Mutant:
    def mutant(of: Operation, t: Tensors, v: Values) -> Tensors:
        T, S = int(v["T"]), int(v["S"])
        scores = t["x"] * v["scale"]
        if v["causal"]:
            hidden = torch.ones(T, S, dtype=torch.bool).triu(1 + S - T + shift)
            scores = scores.masked_fill(hidden, -torch.inf)
        return {"out": softmax(scores)}

    return mutant


def _attention_with(softmax: Callable[[torch.Tensor], torch.Tensor], shift: int = 0, wider: int = 0) -> Mutant:
    def mutant(of: Operation, t: Tensors, v: Values) -> Tensors:
        T = int(v["T"])
        scores = t["q"] @ t["k"].transpose(2, 3) * v["scale"]
        query, key = torch.arange(T)[:, None], torch.arange(T)
        seen = torch.ones(T, T, dtype=torch.bool)
        if "window" in v:
            seen = (key <= query + shift) & (key > query - v["window"] - wider)
        elif v["causal"]:
            seen = key <= query + shift
        p = softmax(scores.masked_fill(~seen, -torch.inf))
        out = (p @ t["v"]).transpose(1, 2).flatten(2)
        return {**of.reference(t, v), "out": out}

    return mutant


def _cached_with(softmax: Callable[[torch.Tensor], torch.Tensor]) -> Mutant:
    def mutant(of: Operation, t: Tensors, v: Values) -> Tensors:
        query = t["past"][:, None, None, None] + torch.arange(int(v["T"]))[:, None]
        key = torch.arange(int(v["S"]))
        seen = (key <= query) & ((key > query - v["window"]) | (key < v["globals"]))
        scores = (t["q"] @ t["k"].transpose(2, 3) * v["scale"]).masked_fill(~seen, -torch.inf)
        return {**of.reference(t, v), "out": (softmax(scores) @ t["v"]).transpose(1, 2).flatten(2)}

    return mutant


def _plain(scores: torch.Tensor) -> torch.Tensor:
    return scores.softmax(-1).nan_to_num(0.0)


def _logprob_with(maximum: Callable[[torch.Tensor], torch.Tensor | float]) -> Mutant:
    def mutant(of: Operation, t: Tensors, v: Values) -> Tensors:
        logits = (t["x"] @ t["weight"].T).float()
        shift = maximum(logits)
        lse = (logits - shift).exp().sum(-1, keepdim=True).log() + shift
        picked = (logits - lse).double().gather(-1, t["targets"][..., None])[..., 0]
        return {**of.reference(t, v), "logprob": picked}

    return mutant


def _layernorm(change: str) -> Mutant:
    def mutant(of: Operation, t: Tensors, v: Values) -> Tensors:
        x, C = t["x"], t["x"].shape[-1]
        mean = x.mean(-1, keepdim=True)
        centred = x - (0 if change == "no mean" else mean)
        variance = (x - mean).square().mean(-1, keepdim=True)
        if change == "N-1":
            variance = variance * C / max(1, C - 1)
        rstd = (variance + v["eps"]).rsqrt()
        if change == "eps outside the root":
            rstd = 1 / (variance.sqrt() + v["eps"])
        if change == "mean of the first 1024":
            centred = x - x[..., :1024].mean(-1, keepdim=True)
        y = centred * rstd
        weight, bias = ("weight", "bias") if "ln_weight" not in t else ("ln_weight", "ln_bias")
        y = y * t[weight] + t[bias]
        if "ln_weight" in t:
            return {"out": y @ t["weight"].T + t["bias"]}
        return {**of.reference(t, v), "out": y}

    return mutant


def _training(change: str, shift: int = 0) -> Mutant:
    def mutant(of: Operation, t: Tensors, v: Values) -> Tensors:
        heads, packed = of.reference.__globals__["heads"], of.reference.__globals__["packed"]
        NH, T, scale = int(v["NH"]), int(v["T"]), float(v["scale"])
        q, k, value = (heads(t["qkv"], i, NH) for i in range(3))
        hidden = torch.ones(T, T, dtype=torch.bool).triu(1 + shift)
        p = _plain((q @ k.transpose(2, 3) * scale).masked_fill(hidden, -torch.inf))
        do = heads(t["dout"].repeat(1, 1, 3), 0, NH)
        dp = do @ value.transpose(2, 3)
        rows = 0 if change == "no row sums" else (p * dp).sum(3, keepdim=True)
        ds = p * (dp - rows) * (1 if change == "no scale in the gradient" else scale)
        if change == "only the diagonal's row sums":
            ds = p * (dp - (p * dp).diagonal(dim1=2, dim2=3)[..., None]) * scale
        return {"out": packed(p @ value), "dqkv": packed(ds @ k, ds.transpose(2, 3) @ q, p.transpose(2, 3) @ do)}

    return mutant


def _attention_low_with(softmax: Callable[[torch.Tensor], torch.Tensor], shift: int = 0) -> Mutant:
    def mutant(of: Operation, t: Tensors, v: Values) -> Tensors:
        T, numbers = int(v["T"]), of.reference.__globals__["numbers"]
        q, k, value = (numbers(t[f"{n}_f8"], t[f"{n}_scale"]) for n in "qkv")
        hidden = torch.ones(T, T, dtype=torch.bool).triu(1 + shift)
        p = softmax((q @ k.transpose(2, 3) * v["scale"]).masked_fill(hidden, -torch.inf))
        return {"out": (p @ value).transpose(1, 2).flatten(2)}

    return mutant


def _mlp(change: str) -> Mutant:
    def mutant(of: Operation, t: Tensors, v: Values) -> Tensors:
        x, F = t["x"], torch.nn.functional
        normed = (
            x if change == "no layernorm" else F.layer_norm(x, x.shape[-1:], t["ln_weight"], t["ln_bias"], v["eps"])
        )
        u = normed @ t["w1"].T + t["b1"]
        hidden = {"no GELU": u, "ReLU": u.relu(), "sigmoid": u * torch.sigmoid(1.702 * u)}.get(change)
        hidden = F.gelu(u, approximate="tanh") if hidden is None else hidden
        kept = {"no residual": 0, "the normalised rows as residual": normed}.get(change, x)
        return {"out": kept + hidden @ t["w2"].T + t["b2"]}

    return mutant


def _before_gelu(t: Tensors) -> torch.Tensor:
    x = t["x"] if "weight" not in t else t["x"] @ t["weight"].T
    return x + t["bias"] if "bias" in t else x


def _gelu(cubic: float = 0.044715, root: float = 0.7978845608028654, half: float = 0.5, clamp: float = 1e30) -> Mutant:
    def mutant(of: Operation, t: Tensors, v: Values) -> Tensors:
        u = _before_gelu(t)
        inner = (root * (u + cubic * u**3)).clamp(-clamp, clamp)
        return {"out": half * u * (1 + torch.tanh(inner))}

    return mutant


def _erf(of: Operation, t: Tensors, v: Values) -> Tensors:
    u = _before_gelu(t)
    return {"out": torch.nn.functional.gelu(u)}


NORMS = {
    **{c: _layernorm(c) for c in ("no mean", "N-1", "eps outside the root")},
    "no eps": scalars(eps=0.0),
    "eps fixed": scalars(eps=1e-5),
    "another eps": scalars(eps=1e-6),
    "twice eps": scalars(eps=lambda v: 2 * v["eps"]),
}


RMS = {
    "no eps": scalars(eps=0.0),
    "twice eps": scalars(eps=lambda v: 2 * v["eps"]),
    "mean taken off": tensors(lambda t, v: t["x"].sub_(t["x"].mean(-1, keepdim=True))),
}


def _norm_weight(name: str) -> dict[str, Mutant]:
    return {f"no {name}": tensors(lambda t, v: t[name].fill_(1)), f"{name} moved": rolled(name)}


def _gated(change: Callable[[torch.Tensor, torch.Tensor], torch.Tensor]) -> Mutant:
    """Another function of the gate and its factor, given or a product's."""

    def mutant(of: Operation, t: Tensors, v: Values) -> Tensors:
        if "gate" in t:
            return {"out": change(t["gate"], t["up"])}
        both = t["x"] @ t["weight"].T
        return {"out": change(both[..., 0::2], both[..., 1::2])}

    return mutant


SWIGLUS = {
    "gate and factor exchanged": _gated(lambda gate, up: up * torch.sigmoid(up) * gate),
    "no sigmoid": _gated(lambda gate, up: gate * up),
    "no factor": _gated(lambda gate, up: gate * torch.sigmoid(gate)),
    "sigmoid of GELU": _gated(lambda gate, up: gate * torch.sigmoid(1.702 * gate) * up),
    "gates up to 3": _gated(lambda gate, up: gate.clamp(max=3) * torch.sigmoid(gate.clamp(max=3)) * up),
}
TURNS = {
    "no turn": tensors(lambda t, v: (t["cosines"].fill_(1), t["sines"].zero_())),
    "turned back": tensors(lambda t, v: t["sines"].neg_()),
    "the next pair's angle": tensors(lambda t, v: [t[n].copy_(t[n].roll(1, 1)) for n in ("cosines", "sines")]),
    "the other layout": scalars(interleaved=lambda v: 1 - v["interleaved"]),
}
APPENDED = {
    **TURNS,
    **_norm_weight("q_weight"),
    **_norm_weight("k_weight"),
    "no eps": scalars(eps=0.0),
    "twice eps": scalars(eps=lambda v: 2 * v["eps"]),
    "past of the first text": tensors(lambda t, v: t["past"].fill_(int(t["past"][0]))),
    "a step too early": tensors(lambda t, v: t["past"].sub_(1).clamp_(min=0)),
    "third text": other_batch("qkv"),
}


def _grouped(keys: str, values: str) -> dict[str, Mutant]:
    return {
        "the next group's keys": rolled(keys, 1),
        "the next group's values": rolled(values, 1),
        "scale fixed": scalars(scale=0.125),
        "scale from HS": scalars(scale=lambda v: float(v["HS"]) ** -0.5),
        "no window": scalars(window=1 << 20),
        "window one more": scalars(window=lambda v: v["window"] + 1),
        "window one less": scalars(window=lambda v: max(1, v["window"] - 1)),
        "first key left out": tensors(lambda t, v: t[keys][:, :, 0].zero_()),
    }


def cut_last(name: str) -> Mutant:
    return tensors(lambda t, v: t[name][..., -1].zero_())


SCALED = {
    "no scale of weights": tensors(lambda t, v: t["w_scale"].fill_(1.0)),
    "the neighbour's scale": rolled("w_scale"),
}
PRODUCTS = {
    "no bias": without("bias"),
    "bias moved": rolled("bias"),
    "first 1600 columns": cut("x", 1600),
    "last column left out": cut_last("x"),
    "second batch for the third": other_batch("x"),
}
GELUS = {
    "cubic 0.44715": _gelu(cubic=0.44715),
    "cubic 0.0447": _gelu(cubic=0.0447),
    "no cubic": _gelu(cubic=0.0),
    "root of 2/pi as 0.8": _gelu(root=0.8),
    "erf": _erf,
}
SCALES = {
    "scale fixed": scalars(scale=0.125),
    "no scale": scalars(scale=1.0),
    "scale of 64": scalars(scale=lambda v: 0.125 if "HS" in v else 0.25),
}

MUTANTS: dict[str, dict[str, Mutant]] = {
    "attention": {
        **{name: _attention_with(_exp_without(m)) for name, m in MAXIMA.items()},
        **{name: _attention_with(s) for name, s in CLAMPED.items()},
        **SCALES,
        "scale from HS": scalars(scale=lambda v: float(v["HS"]) ** -0.5),
        "always causal": scalars(causal=1),
        "never causal": scalars(causal=0),
        "mask one further": _attention_with(_plain, shift=1),
        "mask one less": _attention_with(_plain, shift=-1),
        "third batch": other_batch("qkv"),
        "16-bit index": beyond("qkv"),
        **ends("qkv"),
    },
    "attention_low": {
        "scale fixed": scalars(scale=0.125),
        "scale from HS": scalars(scale=lambda v: float(v["HS"]) ** -0.5),
        "no scale": scalars(scale=1.0),
        "never causal": _attention_low_with(_plain, shift=1 << 20),
        "mask one further": _attention_low_with(_plain, shift=1),
        "mask one less": _attention_low_with(_plain, shift=-1),
        **{f"no {n}_scale": tensors(lambda t, v, n=n: t[f"{n}_scale"].fill_(1.0)) for n in "qkv"},
        **{f"another head's {n}_scale": rolled(f"{n}_scale") for n in "qkv"},
        **{f"the first sequence's {n}": other_batch(f"{n}_f8", 1) for n in "qkv"},
    },
    "attention_training": {
        "scale fixed": scalars(scale=0.125),
        "scale from HS": scalars(scale=lambda v: float(v["HS"]) ** -0.5),
        "never causal": _training("", shift=1 << 20),
        "mask one further": _training("", shift=1),
        "mask one less": _training("", shift=-1),
        **{c: _training(c) for c in ("no row sums", "no scale in the gradient", "only the diagonal's row sums")},
        "the first sequence for the second": other_batch("qkv", 1),
        "the first sequence's gradient": other_batch("dout", 1),
        "third batch": other_batch("qkv"),
        "heads up to 64": tensors(lambda t, v: t["dout"].view(*t["dout"].shape[:2], v["NH"], -1)[..., 64:].zero_()),
    },
    "mlp": {
        "no eps": scalars(eps=0.0),
        "eps fixed": scalars(eps=1e-5),
        "twice eps": scalars(eps=lambda v: 2 * v["eps"]),
        **{f"no {n}": without(n) for n in ("ln_bias", "b1", "b2")},
        "ln_weight is 1": tensors(lambda t, v: t["ln_weight"].fill_(1)),
        **{c: _mlp(c) for c in ("no layernorm", "no GELU", "ReLU", "sigmoid")},
        **{c: _mlp(c) for c in ("no residual", "the normalised rows as residual")},
        "last row of w1 left out": tensors(lambda t, v: t["w1"][-1].zero_()),
        "last column of w2 left out": cut_last("w2"),
        "first 64 columns": cut("x", 64),
        "the first sequence for the second": other_batch("x", 1),
        "first 16 rows": cut("x", 16, dim=1),
    },
    "local_attention": {
        **{name: _attention_with(_exp_without(m)) for name, m in MAXIMA.items()},
        **{name: _attention_with(s) for name, s in CLAMPED.items()},
        **SCALES,
        "scale from HS": scalars(scale=lambda v: float(v["HS"]) ** -0.5),
        "window one more": _attention_with(_plain, wider=1),
        "window one less": _attention_with(_plain, wider=-1),
        "window fixed": scalars(window=128),
        "no window": scalars(window=1 << 20),
        "no first keys": scalars(globals=0),
        "one first key": scalars(globals=lambda v: min(1, v["globals"])),
        "first keys up to 64": scalars(globals=lambda v: min(64, v["globals"])),
        "window at most 128": scalars(window=lambda v: min(128, v["window"])),
        "mask one further": _attention_with(_plain, shift=1),
        "third batch": other_batch("qkv"),
        "16-bit index": beyond("qkv"),
        **ends("qkv"),
    },
    "cached_attention": {
        **{name: _cached_with(s) for name, s in CLAMPED.items()},
        "scale fixed": scalars(scale=0.125),
        "scale from HS": scalars(scale=lambda v: float(v["HS"]) ** -0.5),
        "no window": scalars(window=1 << 20),
        "window one more": scalars(window=lambda v: v["window"] + 1),
        "window one less": scalars(window=lambda v: v["window"] - 1 if v["window"] > 1 else 1),
        "no first tokens": scalars(globals=0),
        "one first token": scalars(globals=lambda v: min(1, v["globals"])),
        "past of the first sequence": tensors(lambda t, v: t["past"].fill_(int(t["past"][0]))),
        "past of the last sequence": tensors(lambda t, v: t["past"].fill_(int(t["past"][-1]))),
        "the query's own key left out": tensors(lambda t, v: t["past"].sub_(1).clamp_(min=0)),
        **ends("k", "v"),
    },
    "cached_projection": {
        "nothing kept": scalars(past=0),
        "one more from the cache": scalars(past=lambda v: min(v["past"] + 1, v["T"])),
        "one less from the cache": scalars(past=lambda v: max(v["past"] - 1, 0)),
        "keys are values": tensors(lambda t, v: t["k_cache"].copy_(t["v_cache"])),
        "no bias": without("bias"),
        "third batch": other_batch("x"),
        "third cache": other_batch("v_cache"),
        **ends("x", "weight"),
    },
    "softmax": {
        **{name: _softmax_with(_exp_without(m)) for name, m in MAXIMA.items()},
        **{name: _softmax_with(s) for name, s in CLAMPED.items()},
        **SCALES,
        "always causal": scalars(causal=1),
        "never causal": scalars(causal=0),
        "mask one further": _softmax_with(_plain, shift=1),
        "mask one less": _softmax_with(_plain, shift=-1),
        "first 2048 columns": lambda of, t, v: {
            "out": torch.nn.functional.pad(
                (o := of.reference(t, v)["out"])[..., :2048], (0, max(0, o.shape[-1] - 2048))
            )
        },
        "third batch": other_batch("x"),
        "16-bit index": beyond("x"),
        **ends("x"),
    },
    "layernorm": {
        **NORMS,
        "no weight": tensors(lambda t, v: t["weight"].fill_(1)),
        "no bias": without("bias"),
        "bias moved": rolled("bias"),
        "weight moved": rolled("weight"),
        "mean of the first 1024": _layernorm("mean of the first 1024"),
        "first 1600 columns": cut("x", 1600),
        "first 2048 columns": cut("x", 2048),
        "third batch": other_batch("x"),
        "16-bit index": beyond("x"),
        **ends("x"),
    },
    "layernorm_matmul": {
        **NORMS,
        **PRODUCTS,
        "no ln_weight": tensors(lambda t, v: t["ln_weight"].fill_(1)),
        "no ln_bias": without("ln_bias"),
        "first 2048 columns": cut("x", 2048),
        "16-bit index": beyond("weight"),
        **ends("x"),
    },
    "matmul": {**PRODUCTS, "16-bit index": beyond("weight"), **ends("x", "weight")},
    "matmul_low": {
        "first 1024 columns": cut("x", 1024),
        "last column left out": cut_last("x"),
        "16-bit index": beyond("weight"),
        "x clamped at 600": clamped("x", 600.0),
    },
    "matmul_low int8": {
        **SCALED,
        "last column left out": cut_last("x_q"),
        "codes of seven bits": clamped("w_q", 63),
        "16-bit index": beyond("w_q"),
        "no scale of x": tensors(lambda t, v: t["x_scale"].fill_(1.0)),
    },
    "matmul_low quantised here": {**SCALED, "last column left out": cut_last("w_q"), "16-bit index": beyond("w_q")},
    "matmul_low e4m3": {
        **SCALED,
        "last column left out": cut_last("x_f8"),
        "no sign": tensors(lambda t, v: t["w_f8"].copy_(t["w_f8"] % 128)),
        "16-bit index": beyond("w_f8"),
    },
    "matmul_low two of four": {
        "places moved": rolled("w_places"),
        "last kept left out": cut_last("w_kept"),
        "always the first two": tensors(lambda t, v: t["w_places"].fill_(0x44444444)),
        "16-bit index": beyond("w_kept"),
    },
    "matmul_low int8 weights": {
        **SCALED,
        "last column left out": cut_last("x"),
        "codes of seven bits": clamped("w_i8", 63),
        "no sign": tensors(lambda t, v: t["w_i8"].abs_()),
        "16-bit index": beyond("w_i8"),
    },
    "matmul_low e4m3 weights": {
        **SCALED,
        "last column left out": cut_last("x"),
        "no sign": tensors(lambda t, v: t["w_f8"].copy_(t["w_f8"] % 128)),
        "small numbers are zero": tensors(lambda t, v: t["w_f8"].masked_fill_(t["w_f8"] % 128 < 8, 0)),
        "16-bit index": beyond("w_f8"),
    },
    "matmul_gelu": {**PRODUCTS, **GELUS, "16-bit index": beyond("weight"), **ends("x", "weight")},
    "matmul_residual": {
        **PRODUCTS,
        "no residual": without("residual"),
        "third residual": other_batch("residual"),
        "16-bit index": beyond("residual"),
        **ends("x", "weight", "residual"),
    },
    "gelu": {**GELUS, "third batch": other_batch("x"), "16-bit index": beyond("x"), **ends("x")},
    "bias": {"no bias": without("bias"), "bias moved": rolled("bias"), "third": other_batch("x"), **ends("x", "bias")},
    "bias_gelu": {**GELUS, "no bias": without("bias"), "bias moved": rolled("bias"), "third": other_batch("x")},
    "residual": {"no a": without("a"), "no b": without("b"), "third": other_batch("b"), **ends("a", "b")},
    "copy": {"16-bit index": beyond("x"), **ends("x"), "clamped at 1e30": clamped("x", 1e30)},
    "relu": {
        "no clamp": replaced("out", lambda t, v: t["x"].clone()),
        "leaky": replaced("out", lambda t, v: t["x"].clamp(min=0) + 0.001 * t["x"].clamp(max=0)),
        "16-bit index": beyond("x"),
        **ends("x"),
    },
    "transpose": {
        "copy": replaced("out", lambda t, v: t["x"].reshape(t["x"].shape[1], -1)),
        "16-bit index": beyond("x"),
        **ends("x"),
    },
    "reduce": {
        "without the last": tensors(lambda t, v: t["x"][:, -1].zero_()),
        "without the first": tensors(lambda t, v: t["x"][:, 0].zero_()),
        "first 16384": cut("x", 16384),
        "16-bit index": beyond("x"),
        **ends("x"),
    },
    "embedding": {
        "no wpe": without("wpe"),
        "no wte": without("wte"),
        "no start": scalars(start=0),
        "start one further": tensors(lambda t, v: t["wpe"].copy_(t["wpe"].roll(-1, 0))),
        "tokens of 8 bits": wrapped("tokens", 1 << 8),
        "tokens of 16 bits": wrapped("tokens", 1 << 16),
        "tokens below 50256": tensors(lambda t, v: t["tokens"].clamp_(max=50255)),
        "positions below 1024": tensors(lambda t, v: t["wpe"][1024:].zero_()),
        "last position": tensors(lambda t, v: t["wpe"][-1].zero_()),
        "third batch": other_batch("tokens"),
        **ends("wte", "wpe"),
    },
    "divergence": {"one step less": scalars(STEPS=lambda v: v["STEPS"] - 1), "16-bit index": beyond("x"), **ends("x")},
    "pointwise": {
        "sine alone": replaced("out", lambda t, v: torch.sin(t["x"]) ** 2),
        "cosine alone": replaced("out", lambda t, v: torch.cos(t["x"]) ** 2),
        "cosine not squared": replaced("out", lambda t, v: torch.sin(t["x"]) ** 2 + torch.cos(t["x"])),
    },
    "recompute": {
        "dy ignored": tensors(lambda t, v: t["dy"].fill_(1)),
        "two sigmoids": replaced("y", lambda t, v: torch.sigmoid(torch.sigmoid(t["x"]))),
        "16-bit index": beyond("x"),
        **ends("dy"),
    },
    "token_logprob": {
        **{name: _logprob_with(m) for name, m in MAXIMA.items()},
        "targets of 8 bits": wrapped("targets", 1 << 8),
        "targets below 50256": tensors(lambda t, v: t["targets"].clamp_(max=50255)),
        "target one beside": rolled("weight", 0),
        "third batch": other_batch("x"),
        "first 16384 tokens": tensors(lambda t, v: t["weight"][16384:].zero_()),
    },
    "rmsnorm": {
        **RMS,
        **_norm_weight("weight"),
        "third batch": other_batch("x"),
        "x clamped at 600": clamped("x", 600),
    },
    "rmsnorm_residual": {
        **{n: m for n, m in RMS.items() if n != "mean taken off"},
        **_norm_weight("weight"),
        "no residual": without("residual"),
        "no x": without("x"),
        "second batch": other_batch("residual", 1),
        "x clamped at 600": clamped("x", 600),
    },
    "rmsnorm_matmul": {
        **RMS,
        **_norm_weight("norm"),
        **PRODUCTS,
        "first 2048 columns": cut("x", 2048),
        "gates for factors": rolled("weight", 0),
        "x clamped at 600": clamped("x", 600),
    },
    "rope": {**TURNS, "third batch": other_batch("x"), "third position": other_batch("cosines"), **ends("x")},
    "rope_append": {**APPENDED, **ends("qkv")},
    "swiglu": {**SWIGLUS, "third batch": other_batch("up"), **ends("gate", "up")},
    "matmul_swiglu": {**SWIGLUS, "last column left out": cut_last("x"), "third batch": other_batch("x")},
    "grouped_attention": _grouped("k_cache", "v_cache"),
    "grouped_cached_attention": {
        **_grouped("k", "v"),
        "past of the first text": tensors(lambda t, v: t["past"].fill_(int(t["past"][0]))),
        "the query's own key left out": tensors(lambda t, v: t["past"].sub_(1).clamp_(min=0)),
    },
    "rope_cached_attention": {**APPENDED, **_grouped("k_cache", "v_cache")},
    "sample": {
        "greedy": tensors(lambda t, v: t["settings"][:, 0].zero_()),
        "never greedy": tensors(lambda t, v: t["settings"][:, 0].clamp_(min=0.3)),
        **{
            f"no {name}": tensors(lambda t, v, i=i, off=off: t["settings"][:, i].fill_(off))
            for i, name, off in (
                (1, "top_k", 0.0),
                (2, "top_p", 1.0),
                (3, "min_p", 0.0),
                (4, "repetition", 1.0),
                (5, "presence", 0.0),
                (6, "frequency", 0.0),
            )
        },
        "no step": without("steps"),
        "steps of 16 bits": wrapped("steps", 1 << 16),
        "one seed": tensors(lambda t, v: t["seeds"].copy_(t["seeds"][:1].expand_as(t["seeds"]))),
        **{f"no word {i} of the seed": tensors(lambda t, v, i=i: t["seeds"][:, i].zero_()) for i in range(3)},
        "no marks": without("marks"),
        "tokens of 8 bits": tensors(lambda t, v: t["logits"][:, 256:].fill_(-1e9)),
    },
    "decode": {
        "no eps": scalars(eps=0.0),
        "eps fixed": scalars(eps=1e-5),
        "scale from HS": scalars(scale=lambda v: float(v["HS"]) ** -0.5),
        "scale fixed": scalars(scale=0.125),
        "always GELU": scalars(act=0),
        "erf as tanh": scalars(act=lambda v: 0 if v["act"] == 1 else v["act"]),
        "no scale by layer": scalars(by_layer=0),
        "tokens of 8 bits": wrapped("tokens", 1 << 8),
        "tokens below 50256": tensors(lambda t, v: t["tokens"].clamp_(max=50255)),
        "positions below 1023": tensors(lambda t, v: t["lengths"].clamp_(max=1022)),
        "no positions": without("wpe"),
        "third sequence": other_batch("tokens"),
        **{
            f"no {n}": without(n)
            for n in ("ln1_b", "ln2_b", "lnf_b", "qkv_b", "proj_b", "fc_b", "fc2_b", "k_cache", "v_cache")
        },
        **{f"{n} is 1": tensors(lambda t, v, n=n: t[n].fill_(1)) for n in ("ln1_w", "ln2_w", "lnf_w")},
    },
    "llama_decode": {
        "no eps": scalars(eps=0.0),
        "eps fixed": scalars(eps=1e-5),
        "scale fixed": scalars(scale=0.125),
        "no window": scalars(window=lambda v: v["S"]),
        "window one longer": scalars(window=lambda v: v["window"] + 1),
        "tokens of 8 bits": wrapped("tokens", 1 << 8),
        "one position back": tensors(lambda t, v: t["lengths"].sub_(1).clamp_(min=0)),
        "not turned": tensors(lambda t, v: (t["cosines"].fill_(1), t["sines"].zero_())),
        "turned the other way": tensors(lambda t, v: t["sines"].neg_()),
        "gates for factors": rolled("fc_w", 1),
        "first 4096 hidden units": tensors(lambda t, v: t["mlp_proj_w"][..., 4096:].zero_()),
        **{f"no {n}": without(n) for n in ("qkv_b", "attn_proj_b", "fc_b", "mlp_proj_b", "k_cache", "v_cache")},
        **{
            f"{n} is 1": tensors(lambda t, v, n=n: t[n].fill_(1))
            for n in ("ln_1_w", "ln_2_w", "ln_f_w", "q_norm_w", "k_norm_w")
        },
    },
}


def given(looked_at: str, values: Values, dtype: str, case: object) -> Tensors:
    of, real = operation(looked_at), dtype_named(dtype)
    names = BINDS.get(looked_at) or [
        o.name
        for o in of.operands
        if o.name not in LEAVE_OUT.get(of.name, ()) and o.instead is None
        and not (o.optional and o.name.endswith("_s"))
    ]
    tensors = of.inputs(
        values,
        real,
        3,
        magnitude=case.magnitude,
        change=case.change,
        names=names,  # type: ignore[attr-defined]
        empty=lambda _, shape, kind: torch.zeros(shape, dtype=dtype_of(kind, torch)),
    )
    return {
        n: t.double() if t.is_floating_point() else t.long() for n, t in tensors.items() if of.operand(n).role != "out"
    }


def operation(looked_at: str) -> Operation:
    return catalogue.operation(looked_at.partition(" ")[0])


@functools.cache
def known(looked_at: str, dtype: str, index: int) -> tuple[Tensors, Tensors]:
    """The operands of a case, and what should come of them."""
    of = operation(looked_at)
    values = of.complete(of.cases[index].values)
    exact = given(looked_at, values, dtype, of.cases[index])
    return exact, of.reference({n: t.clone() for n, t in exact.items()}, values)


def distance(looked_at: str, dtype: str, mutant: Mutant) -> float:
    """How many times the tolerance the mutant is off at the case that shows it best."""
    of = operation(looked_at)
    worst, real = 0.0, dtype_named(dtype)
    for index, case in enumerate(of.cases):
        if case.where != "any" or dtype not in case.dtypes:
            continue
        values = of.complete(case.values)
        exact, truth = known(looked_at, dtype, index)
        wrong = mutant(of, {n: t.clone() for n, t in exact.items()}, values)
        for operand in of.operands:
            name = operand.name
            if name not in truth or (operand.optional and operand.role == "out"):
                continue
            right = truth[name]
            kind = torch.int64 if not right.is_floating_point() else torch.float64
            found = Measured(
                name, wrong[name].to(kind), right, real, of.tolerance(values, real), exact=kind == torch.int64
            ).deviation()
            far = max(found.element, found.norm / real.norm_cap)
            unequal = not found.ok and (far <= 1 or kind == torch.int64)  # NaN, infinity, another whole number
            worst = max(worst, float("inf") if unequal else far)
        if worst >= TENFOLD:
            break
    return worst


PAIRS = [(op, name) for op, mutants in MUTANTS.items() for name in mutants]
# Below ten times what 16 bits round away.
ONLY_F32 = {
    *(
        (of, name)
        for of in ("gelu", "bias_gelu", "matmul_gelu")
        for name in ("cubic 0.0447", "root of 2/pi as 0.8", "erf")
    ),
    *(("mlp", name) for name in ("eps fixed", "twice eps", "sigmoid")),
    ("decode", "erf as tanh"),
    ("decode", "eps fixed"),
    ("decode", "no scale by layer"),
}


@pytest.mark.parametrize("dtype", ["f32", pytest.param("bf16", marks=pytest.mark.slow)])
@pytest.mark.parametrize(("looked_at", "name"), PAIRS)
def test_a_change_of_the_formula_shows_tenfold(looked_at: str, name: str, dtype: str) -> None:
    if dtype != "f32" and (looked_at, name) in ONLY_F32:
        pytest.skip("below what the format can hold")
    far = distance(looked_at, dtype, MUTANTS[looked_at][name])
    assert far >= TENFOLD, f"{looked_at}: {name!r} moves the result by {far:.3g} x the tolerance at most"


def test_every_operation_is_looked_at() -> None:
    assert set(catalogue.operations()) == {looked_at.partition(" ")[0] for looked_at in MUTANTS}


@pytest.mark.parametrize("kind", [torch.float16, torch.bfloat16])
def test_truncated_results_are_distinguished_from_rounded_ones(kind: torch.dtype) -> None:
    real = dtype_named("f16" if kind == torch.float16 else "bf16")
    truth = torch.randn(2000, generator=torch.Generator().manual_seed(3), dtype=torch.float64)
    rounded = truth.to(kind)
    nearer = (rounded.double().abs() > truth.abs()).to(torch.int16)
    cut = (rounded.view(torch.int16) - nearer).view(kind)  # one step nearer to zero
    assert Measured("out", rounded, truth, real, 1e-3).deviation().ok
    assert "cut off" in Measured("out", cut, truth, real, 1e-3).deviation().problem


def test_what_is_only_moved_has_to_arrive_bit_by_bit() -> None:
    real = dtype_named("f32")
    x = torch.tensor([1.0, float("nan"), float("inf"), 1e-42])
    assert Measured("out", x, x.double(), real, 1e-4, exact=True).deviation().ok
    assert (
        "2 of 4"
        in Measured("out", x * torch.tensor([1 + 2e-7, 1, 1, 0]), x.double(), real, 1e-4, exact=True).deviation().problem
    )
