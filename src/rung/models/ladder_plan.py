"""The model's operations through rungs: on a GPU, or on the emulator."""

from __future__ import annotations

from abc import abstractmethod
from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import TYPE_CHECKING

import torch

from gpuless.base.expressions import evaluate_int
from rung.dtypes import dtype as named_dtype
from rung.errors import RungError
from rung.models.cache import Cache
from rung.models.operations import aligned, dims_of, find, ladder_of, roles
from rung.models.plan import ACTIVATIONS, Operations, Plan, Rotation, TorchPlan, heads_of, of_positions, shorter
from rung.models.tensors import integers
from rung.models.weights import Linear, Norm
from rung.precision import float32_products
from rung.rungs import catalogue, tunings

if TYPE_CHECKING:
    from gpuless.base.expressions import Number
    from rung.dtypes import Dtype
    from rung.models.family import Attention, Config
    from rung.operation import Tensors, Values
    from rung.rungs.base import Device, Prepared, Rung

SHORT_NAMES = {"float32": "f32", "tf32": "tf32", "float16": "f16", "bfloat16": "bf16"}


class LadderCalls(Operations):
    """The operations as calls of ladders, or of torch where no rung serves. A subclass carries out the calls."""

    @abstractmethod
    def _run(
        self,
        operation: str,
        shape: tuple[int, ...],
        tensors: Tensors,
        dims: Mapping[str, Number],
        *,
        role: str = "",
        out: torch.Tensor | None = None,
    ) -> torch.Tensor | None:
        """The operation's `out`, or None if there is no rung."""

    @abstractmethod
    def _by_torch(self, operation: str, shape: tuple[int, ...], *given: object) -> torch.Tensor:
        """What torch computes."""

    def layernorm(self, x: torch.Tensor, norm: Norm, eps: float) -> torch.Tensor:
        operation, more = norm_of("layernorm", norm)
        out = self._run(operation, tuple(x.shape), {"x": x, **more}, {**dims_of(x), "eps": eps})
        return self._by_torch("layernorm", tuple(x.shape), x, norm, eps) if out is None else out

    def matmul(self, x: torch.Tensor, linear: Linear) -> torch.Tensor:
        out = self._product("matmul", x, linear)
        shape = (*x.shape[:-1], linear.weight.shape[0])
        return self._by_torch("matmul", shape, x, linear) if out is None else out

    def layernorm_matmul(self, x: torch.Tensor, norm: Norm, eps: float, linear: Linear) -> torch.Tensor:
        if norm.bias is None:
            return super().layernorm_matmul(x, norm, eps, linear)
        more = {"ln_weight": norm.weight, "ln_bias": norm.bias}
        out = self._product("layernorm_matmul", x, linear, more, {"eps": eps})
        return super().layernorm_matmul(x, norm, eps, linear) if out is None else out

    def matmul_activation(self, x: torch.Tensor, linear: Linear, name: str) -> torch.Tensor:
        how = ACTIVATIONS[name]
        if how.fused and not (how.gated and linear.bias is not None):
            out = self._product(how.fused, x, linear, columns=linear.weight.shape[0] // (1 + how.gated))
            if out is not None:
                return out
        return super().matmul_activation(x, linear, name)

    def matmul_residual(self, x: torch.Tensor, linear: Linear, residual: torch.Tensor) -> torch.Tensor:
        out = self._product("matmul_residual", x, linear, {"residual": residual})
        return super().matmul_residual(x, linear, residual) if out is None else out

    def _product(
        self,
        operation: str,
        x: torch.Tensor,
        linear: Linear,
        more: Mapping[str, torch.Tensor] | None = None,
        scalars: Mapping[str, Number] | None = None,
        columns: int | None = None,
    ) -> torch.Tensor | None:
        B, T, C = x.shape
        OC = columns or linear.weight.shape[0]
        tensors = {"x": x, "weight": linear.weight, **(more or {})}
        if linear.bias is not None:
            tensors["bias"] = linear.bias
        dims = {"B": B, "T": T, "C": C, "OC": OC, **(scalars or {})}
        return self._run(operation, (B, T, OC), tensors, dims, role=linear.role)

    def activation(self, x: torch.Tensor, name: str) -> torch.Tensor:
        how, out = ACTIVATIONS[name], None
        if how.gated:
            return self._gated(x, name)
        if how.ladder and catalogue.operation(how.ladder).dims == ("N",):
            out = self._run(how.ladder, (x.numel(),), {"x": x.reshape(-1)}, {"N": x.numel()})
        elif how.ladder:
            out = self._run(how.ladder, tuple(x.shape), {"x": x}, dims_of(x))
        return self._by_torch("activation", tuple(x.shape), x, name) if out is None else out.view(x.shape)

    @abstractmethod
    def _gated(self, x: torch.Tensor, name: str) -> torch.Tensor:
        """A gated activation of (B, T, 2 F)."""

    def residual(self, a: torch.Tensor, b: torch.Tensor) -> torch.Tensor:
        out = self._run("residual", tuple(a.shape), {"a": a, "b": b}, dims_of(a))
        return self._by_torch("residual", tuple(a.shape), a, b) if out is None else out


class LadderPlan(LadderCalls, Plan):
    """Operations one by one. `rungs` gives, for each operation that is to run on a rung, either one name, which is then
    the only choice, or several, of which the first that supports the dtype and the shape is used.

    Every call has its output at the same address as in the previous step, so a rung is bound to its tensors once per
    shape and afterwards only launched. Operations without a rung go to torch, with a note.
    """

    def __init__(
        self,
        device: Device,
        dtype: str,
        name: str,
        rungs: Mapping[str, str | tuple[str, ...]],
        window: int | None = None,
        global_tokens: int = 0,
    ) -> None:
        if dtype == "auto":
            dtype = "bfloat16" if device == "cuda" else "float32"
        if dtype not in SHORT_NAMES:
            raise RungError(f"rungs have no {dtype}; use one of {', '.join(SHORT_NAMES)}, or the device cpu.")
        if device == "cuda" and not torch.cuda.is_available():
            raise RungError("No CUDA device was found; choose the device cpu, or emulator for rungs.")
        self.name, self.dtype, self.on = name, dtype, device
        self._device: Device = device
        self._real = named_dtype(SHORT_NAMES[dtype])
        self.requested = {o: find(o, given) for o, given in rungs.items() if isinstance(given, str)}
        self.preferred = {
            o: tuple(find(o, rung) for rung in given) for o, given in rungs.items() if not isinstance(given, str)
        }
        self.device = torch.device("cuda" if device == "cuda" else "cpu")
        self.compute = self._real.torch
        self.cache_dtype = str(self.compute).removeprefix("torch.")
        self.window, self.global_tokens = window, global_tokens
        self.torch = TorchPlan(self.device, self.compute, self.compute, window, global_tokens)
        self._notes: dict[str, None] = {}
        self._in_use: dict[str, dict[str, None]] = {}
        self._serving: dict[tuple[object, ...], Rung | None] = {}
        self._calls: Counter[tuple[str, tuple[int, ...]]] = Counter()
        self._outputs: dict[tuple[str, tuple[int, ...], int], torch.Tensor] = {}
        self._prepared: dict[tuple[object, ...], Prepared] = {}
        self._past: torch.Tensor | None = None  # tokens of each sequence before those of the step
        self._lasting: set[int] = set()  # memory that is neither freed nor moved between steps

    def note(self, text: str) -> None:
        """Record a departure from the request, each once."""
        self._notes[text] = None

    @property
    def notes(self) -> list[str]:
        return list(self._notes)

    @property
    def rungs_in_use(self) -> dict[str, str]:
        return {operation: " and ".join(names) for operation, names in self._in_use.items()}

    def admit(self, config: Config) -> None:
        for operation, rung in self.requested.items():
            dims = _at(config, operation)
            if operation == "local_attention" and self.window is not None:
                dims |= {"window": self.window, "globals": self.global_tokens}
            values = rung.operation.complete(dims)
            qkv = torch.empty(1, config.context, config.QKV, dtype=torch.float32, device="meta")
            views = {}
            if "attention" in operation:
                views = dict(zip("qkv", heads_of(qkv, config.attention(0)), strict=True))
            self._must_take(rung, values, views)

    def matrix(self, weight: torch.Tensor) -> Linear:
        linear = Linear(aligned(self.torch.matrix(weight).weight))
        self._lasting.add(_memory(linear.weight))
        return linear

    def vector(self, tensor: torch.Tensor) -> torch.Tensor:
        vector = aligned(tensor.to(self.device, self.compute).contiguous())
        self._lasting.add(_memory(vector))
        return vector

    def embedding(
        self, tokens: torch.Tensor, past: Sequence[int], wte: Linear, wpe: torch.Tensor | None, scale: float = 1.0
    ) -> torch.Tensor:
        self._calls.clear()  # a forward pass begins
        self._past = None
        (B, T), (V, C) = tokens.shape, wte.weight.shape
        out = None
        if wpe is None or scale != 1:
            self._torch_does("embedding", "its rungs add positions to vectors as they are, which this model does not")
        elif len(set(past)) > 1:
            self._torch_does("embedding", "its rungs place all sequences of a batch alike, and these differ")
        else:
            dims = {"B": B, "T": T, "C": C, "V": V, "MAXT": wpe.shape[0], "start": past[0]}
            tensors = {"tokens": tokens.to(torch.int32), "wte": wte.weight, "wpe": wpe}
            out = self._run("embedding", (B, T, C), tensors, dims)
        return self.torch.embedding(tokens, past, wte, wpe, scale) if out is None else out

    def _by_torch(self, operation: str, shape: tuple[int, ...], *given: object) -> torch.Tensor:
        with float32_products(self._real.name):
            computed: torch.Tensor = getattr(self.torch, operation)(*given)
        return computed

    def residual_layernorm(
        self, a: torch.Tensor, b: torch.Tensor, norm: Norm, eps: float
    ) -> tuple[torch.Tensor, torch.Tensor]:
        operation, more = norm_of("residual_layernorm", norm)
        total = self._output("residual_layernorm sum", tuple(a.shape))
        tensors = {"x": a, "residual": b, **more, "sum": total}
        out = self._run(operation, tuple(a.shape), tensors, {**dims_of(a), "eps": eps})
        return super().residual_layernorm(a, b, norm, eps) if out is None else (total, out)

    def rotate(self, qkv: torch.Tensor, rotation: Rotation, past: Sequence[int]) -> torch.Tensor:
        r, (B, T, width) = rotation, qkv.shape
        if len(set(past)) > 1 or not self._has("rope"):
            return self.torch.rotate(qkv, rotation, past)
        q, k, v = torch.split(qkv.view(B, T, r.NH + 2 * r.NKV, -1), [r.NH, r.NKV, r.NKV], 2)
        cosines, sines = (of_positions(table, past, T) for table in (r.cosines, r.sines))
        turned = []
        for x, norm in ((q, r.q_norm), (k, r.k_norm)):
            x = x.contiguous()
            if norm is not None:
                x = self.layernorm(x.flatten(1, 2), norm, r.eps).view(x.shape)
            dims = dict(zip(("B", "T", "NH", "HS"), x.shape, strict=True))
            out = self._run("rope", tuple(x.shape), {"x": x, "cosines": cosines, "sines": sines}, dims)
            if out is None:
                return self.torch.rotate(qkv, rotation, past)
            turned.append(out)
        return torch.cat((*turned, v), 2).view(B, T, width)

    def attention(self, qkv: torch.Tensor, how: Attention, layer: int, cache: Cache | None) -> torch.Tensor:
        how = replace(how, window=shorter(self.window, how.window))
        begun = cache is not None and any(cache.lengths)
        out = None
        if how.softcap is not None:
            for operation in ("attention", "grouped_attention"):
                self._torch_does(operation, "its rungs do not cap scores")
        elif how.NKV is not None:
            out = self._grouped_attention(qkv, how, layer, cache)
        elif cache is None or not begun:
            out = self._whole_attention(qkv, how, layer, cache)
        elif self._has("softmax") and len(set(cache.lengths)) == 1 and how.window is None:
            out = self._attention_by_parts(qkv, how, layer, cache)
        else:
            out = self._cached_attention(qkv, how, layer, cache)
        return self._by_torch("attention", (), qkv, how, layer, cache) if out is None else out

    def _grouped_attention(
        self, qkv: torch.Tensor, how: Attention, layer: int, cache: Cache | None
    ) -> torch.Tensor | None:
        q, k, v = (x.contiguous() for x in heads_of(qkv, how))
        B, NH, T, HS = q.shape
        dims: dict[str, Number] = {"B": B, "T": T, "NH": NH, "NKV": k.shape[1], "HS": HS, "scale": how.scale}
        if how.window is not None:
            dims["window"] = how.window
        if cache is not None:
            cache.write(layer, k, v)
        if cache is None or not any(cache.lengths):
            return self._run("grouped_attention", (B, T, NH * HS), {"q": q, "k": k, "v": v}, dims)
        given = {"q": q, **self._kept(cache, layer, B)}
        return self._run("grouped_cached_attention", (B, T, NH * HS), given, {**dims, "S": cache.capacity})

    def _kept(self, cache: Cache, layer: int, B: int) -> Tensors:
        """Keys and values of the cache, and how many there were before this step."""
        k, v = cache.k[layer, :B], cache.v[layer, :B]
        self._lasting |= {_memory(k), _memory(v)}
        if self._past is None:
            self._past = self._output("past", (B,), torch.int32).copy_(integers(cache.lengths))
        return {"k": k, "v": v, "past": self._past}

    def _cached_attention(self, qkv: torch.Tensor, how: Attention, layer: int, cache: Cache) -> torch.Tensor | None:
        B, T, width = qkv.shape
        q, *kv = heads_of(qkv, how)
        cache.write(layer, kv[0], kv[1])
        dims: dict[str, Number] = {"B": B, "T": T, "S": cache.capacity, "C": width // 3, "NH": how.NH}
        dims["scale"] = how.scale
        if how.window is not None:
            dims |= {"window": how.window, "globals": self.global_tokens}
        return self._run(
            "cached_attention", (B, T, width // 3), {"qkv": qkv, "q": q, **self._kept(cache, layer, B)}, dims
        )

    def _whole_attention(
        self, qkv: torch.Tensor, how: Attention, layer: int, cache: Cache | None
    ) -> torch.Tensor | None:
        B, T, width = qkv.shape
        C = width // 3
        dims: dict[str, Number] = {"B": B, "T": T, "C": C, "NH": how.NH, "scale": how.scale}
        operation = "attention"
        if how.window is not None:
            operation = "local_attention"
            dims |= {"window": how.window, "globals": self.global_tokens}
        elif not self._has("attention") and self._has("softmax"):
            return self._attention_by_parts(qkv, how, layer, cache)
        q, k, v = heads_of(qkv, how)
        if cache is not None:
            cache.write(layer, k, v)
        return self._run(operation, (B, T, C), {"qkv": qkv, "q": q, "k": k, "v": v}, dims)

    def _attention_by_parts(
        self, qkv: torch.Tensor, how: Attention, layer: int, cache: Cache | None
    ) -> torch.Tensor | None:
        B, T, width = qkv.shape
        q, k, v = heads_of(qkv, how)
        if cache is not None:
            cache.write(layer, k, v)
            k, v = cache.read(layer, T)
        with float32_products(self._real.name):
            x = q @ k.transpose(2, 3)  # (B, NH, T, S)
            dims = {"B": B, "NH": how.NH, "T": T, "S": k.shape[2], "scale": how.scale}
            p = self._run("softmax", tuple(x.shape), {"x": x}, dims)
            return None if p is None else (p @ v).transpose(1, 2).reshape(B, T, width // 3)

    def _gated(self, x: torch.Tensor, name: str) -> torch.Tensor:
        how, out = ACTIVATIONS[name], None
        if self._has(how.ladder):
            gate, up = (part.contiguous() for part in x.view(*x.shape[:-1], -1, 2).unbind(-1))
            out = self._run(how.ladder, tuple(gate.shape), {"gate": gate, "up": up}, dims_of(gate))
        return self.torch.activation(x, name) if out is None else out

    def activation(self, x: torch.Tensor, name: str) -> torch.Tensor:
        if not ACTIVATIONS[name].ladder:
            self._torch_does("gelu", f"no ladder computes {name}")
        return super().activation(x, name)

    # ---- which rung -------------------------------------------------------------------------------------------------

    def _has(self, operation: str) -> bool:
        return operation in self.requested or operation in self.preferred

    def _torch_does(self, operation: str, why: str) -> None:
        if self._has(operation):
            self.note(f"{operation} runs through torch: {why}.")

    def _choose(self, operation: str, values: Values, tensors: Tensors) -> Rung | None:
        """The rung for this shape; None leaves the work to torch."""
        if operation in self.requested:
            self._must_take(self.requested[operation], values, tensors)
            return self.requested[operation]
        preferred = self.preferred[operation]
        # A choice by dtype is part of the plan; another choice than the first with the dtype gets a note.
        candidates = [rung for rung in preferred if self._format(rung).name in rung.dtypes]
        first = (candidates or preferred)[0]
        reason = self._refusal(first, values, tensors)
        if reason is None:
            return first
        for rung in candidates[1:]:
            if self._refusal(rung, values, tensors) is None:
                self.note(f"{reason}; {rung.full_name} serves.")
                return rung
        other = first.stand_in(values, self._format(first), self._device)
        self.note(f"{reason}; {other.full_name} stands in." if other else f"{reason}; torch serves.")
        return other

    def _must_take(self, rung: Rung, values: Values, tensors: Tensors) -> None:
        rung.admit(tensors, values, self._format(rung), None, self._device)
        reason = self._refusal(rung, values, tensors)
        if reason is not None:
            raise RungError(f"{reason}.")

    def _refusal(self, rung: Rung, values: Values, tensors: Tensors) -> str | None:
        if rung.emulate and self._device != "cuda":
            return f"{rung.full_name} runs on a GPU only"
        return rung.refusal(values, self._format(rung), None, tensors, self._device)

    def _format(self, rung: Rung) -> Dtype:
        # tf32 concerns matrix products only: other operations have no rung for it and compute in float32.
        if self._real.name == "tf32" and "tf32" not in rung.dtypes:
            ladder = catalogue.rungs(rung.operation.name, libraries=False)
            if not any("tf32" in other.dtypes for other in ladder):
                return named_dtype("f32")
        return self._real

    def _run(
        self,
        operation: str,
        shape: tuple[int, ...],
        tensors: Tensors,
        dims: Mapping[str, Number],
        *,
        role: str = "",
        out: torch.Tensor | None = None,
    ) -> torch.Tensor | None:
        if not self._has(operation):
            return None
        call = (operation, *dims.values())
        if call not in self._serving:
            values = catalogue.operation(ladder_of(operation)).complete(dims)
            self._serving[call] = self._choose(operation, values, tensors)
        rung = self._serving[call]
        if rung is None:
            return None
        out = self._output(operation, shape) if out is None else out
        given = {name: self._lasts(operation, name, tensor) for name, tensor in tensors.items()}
        given["out"] = out
        key = (*call, *(t.data_ptr() for t in given.values()))
        prepared = self._prepared.get(key)
        if prepared is None:
            prepared = self._prepared[key] = self._bind(rung, given, rung.operation.complete(dims))
            self._in_use.setdefault(operation, {})[rung.full_name] = None
        prepared.run()
        return out

    def _bind(self, rung: Rung, given: Tensors, values: Values) -> Prepared:
        real = self._format(rung)
        tuning = tunings.best(rung, values, real.name) if self.on == "cuda" else None
        return rung.prepare(given, values, real, device=self._device, tuning=tuning)

    def _lasts(self, operation: str, name: str, tensor: torch.Tensor) -> torch.Tensor:
        if _memory(tensor) in self._lasting:
            return tensor
        return self._output(f"{operation} {name}", tuple(tensor.shape), tensor.dtype).copy_(tensor)

    def _output(self, operation: str, shape: tuple[int, ...], dtype: torch.dtype | None = None) -> torch.Tensor:
        # Two buffers per shape, alternating: at most the previous call's output is still needed
        # (the residual stream, while the next one is added to it).
        turn = self._calls[operation, shape] % 2
        self._calls[operation, shape] += 1
        key = (operation, shape, turn)
        if key not in self._outputs:
            self._outputs[key] = self._allocate(f"{operation} {turn}", shape, dtype or self.compute)
            self._lasting.add(_memory(self._outputs[key]))
        return self._outputs[key]

    def _allocate(self, label: str, shape: tuple[int, ...], dtype: torch.dtype) -> torch.Tensor:
        """Memory for `label` at this shape, kept for the plan's lifetime."""
        return torch.empty(shape, dtype=dtype, device=self.device)


def norm_of(operation: str, norm: Norm) -> tuple[str, Tensors]:
    """An operation with a norm, as the ladders of its kind of norm call it, and the norm's tensors."""
    if norm.bias is None:
        return {"layernorm": "rmsnorm"}.get(operation, "rmsnorm_residual"), {"weight": norm.weight}
    return operation, {"weight": norm.weight, "bias": norm.bias}


def _memory(tensor: torch.Tensor) -> int:
    return tensor.untyped_storage().data_ptr()


def _at(config: Config, operation: str) -> dict[str, Number]:
    """An operation's dims for one sequence that fills the context."""
    c, T = config, config.context
    sizes = {**c.sizes, "QKV": c.QKV, "T": T}
    known: dict[str, Number] = {**c.sizes, "B": 1, "T": T, "S": T, "eps": c.eps, "scale": c.attention_scale(0)}
    of, role = catalogue.operation(ladder_of(operation)), roles().get(operation)
    known |= {dim: evaluate_int(size, sizes, dim) for dim, size in (role.sizes if role else {}).items()}
    return {name: known[name] for name in (*of.dims, *of.scalars) if name in known}
