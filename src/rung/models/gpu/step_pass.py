"""A recorded step: one more token for each row of a session, by the operations."""

from __future__ import annotations

from collections.abc import Callable, Sequence

import torch

from gpuless.base.expressions import Number
from rung.dtypes import DTYPES, Dtype
from rung.models.cache import Cache
from rung.models.family import Attention, Config
from rung.models.gpu.recorded import PassPlan, RecordedPass, heads_and_size
from rung.models.gpu.recording import Normed
from rung.models.operations import Rungs, dims_of, find, ladder_of, step_rungs
from rung.models.plan import ACTIVATIONS, attended, seen
from rung.models.weights import Linear, Norm
from rung.operation import Tensors
from rung.quantised import CACHES, EIGHT_BIT_CACHES
from rung.rungs import catalogue
from rung.rungs.base import Device

PARTS = 64  # of a row of logits, whose likeliest tokens are found in parallel
IN_EIGHT_BITS = "eight_bit_rope_cached_attention"


class StepPlan(PassPlan):
    """Of one token per row. A norm waits as well: for few rows, the product after it normalises its inputs itself."""

    def embedding(
        self, tokens: torch.Tensor, past: Sequence[int], wte: Linear, wpe: torch.Tensor | None, scale: float = 1.0
    ) -> torch.Tensor:
        if wpe is None:
            return super().embedding(tokens, past, wte, wpe, scale)
        return self._embedding_at(self.of.t["lengths"], tokens, wte, wpe, scale)

    def layernorm(self, x: torch.Tensor, norm: Norm, eps: float) -> torch.Tensor:
        if _product_of(norm) not in self.of.rungs:
            return super().layernorm(x, norm, eps)
        out = self.of.take(*x.shape)
        self.of.deferred[out] = Normed(x, norm, eps)
        return out

    def layernorm_matmul(self, x: torch.Tensor, norm: Norm, eps: float, linear: Linear) -> torch.Tensor:
        return self.matmul(self.layernorm(x, norm, eps), linear)

    def matmul(self, x: torch.Tensor, linear: Linear) -> torch.Tensor:
        out = self._normed_product(x, linear)
        return super().matmul(x, linear) if out is None else out

    def matmul_activation(self, x: torch.Tensor, linear: Linear, name: str) -> torch.Tensor:
        what = self.of.deferred.get(x)
        if not isinstance(what, Normed):
            return super().matmul_activation(x, linear, name)
        if ACTIVATIONS[name].normed != _product_of(what.norm):
            return self.activation(self.matmul(x, linear), name)
        out = self._normed_product(x, linear, active=True)
        return super().matmul_activation(x, linear, name) if out is None else out

    def _normed_product(
        self, x: torch.Tensor, linear: Linear, *, active: bool = False, out: torch.Tensor | None = None
    ) -> torch.Tensor | None:
        """The product of a norm that waits, with the activation that this operation has, if `active`; None if no norm
        waits, or no rung takes both."""
        what = self.of.deferred.get(x)
        if not isinstance(what, Normed):
            return None
        given = {"x": what.x, "weight": linear.weight}
        given |= {} if linear.bias is None else {"bias": linear.bias}
        dims: dict[str, Number] = {**dims_of(x), "OC": linear.weight.shape[0], "eps": what.eps}
        if what.norm.bias is None:
            given["norm"] = what.norm.weight
            dims |= {"OC": linear.weight.shape[0] // (1 + active), "gated": int(active)}
        else:
            given |= {"ln_weight": what.norm.weight, "ln_bias": what.norm.bias}
            dims["gelu"] = int(active)
        return self._run(_product_of(what.norm), (self.of.B, 1, int(dims["OC"])), given, dims, out=out)

    def logits(self, x: torch.Tensor, out: torch.Tensor) -> None:
        if self._normed_product(x, self.of.weights.head, out=out) is None:
            super().logits(x, out)

    def _turned_attention(self, qkv: torch.Tensor, how: Attention, layer: int) -> torch.Tensor:
        B, (_, HS), t = len(qkv), heads_and_size(qkv, how), self.of.t
        eight = "k_cache_q" in t
        caches, past = {name: t[name][layer] for name in (EIGHT_BIT_CACHES if eight else CACHES)}, t["lengths"]
        if how.softcap is not None:
            q = self.of.take(B, 1, how.NH, HS)
            self._turn("rope_append", qkv, how, caches, {"past": past, "q": q}, {"T": 1})
            q, k, v = (self.of.operand(x) for x in (q.transpose(1, 2), *caches.values()))
            return self.of.by_torch(
                (B, 1, how.NH * HS), lambda: attended(q, k, v, how, seen(past, 1, k.shape[2], how.window), False)
            )
        out = self.of.take(B, 1, how.NH * HS)
        more: dict[str, Number] = {"scale": how.scale} | ({} if how.window is None else {"window": how.window})
        given = {"past": past, "out": out.view(B, -1)}
        self._turn(IN_EIGHT_BITS if eight else "rope_cached_attention", qkv, how, caches, given, more)
        return out

    def attention(self, qkv: torch.Tensor, how: Attention, layer: int, cache: Cache | None) -> torch.Tensor:
        """Heads that were not rotated are stored as they are."""
        return self._turned_attention(self.of.ready(qkv), how, layer)


class StepPass(RecordedPass):
    """One more token for each row of a session, by the operations: the step of families without a decode ladder. `run`
    reads `tokens`, `lengths` and the caches, and leaves `logits` and the likeliest tokens in `next`.
    """

    operations, step = StepPlan, True

    def __init__(self, config: Config, tensors: Tensors, rungs: Rungs | None = None) -> None:
        rows, where = len(tensors["tokens"]), tensors["tokens"].device
        if rungs is None:
            real = next(d for d in DTYPES.values() if d.torch == tensors["wte"].dtype)
            rungs = step_rungs("cuda" if where.type == "cuda" else "emulator", real.name, rows)
        super().__init__(config, tensors, tensors["tokens"].view(rows, 1), rungs)

    @staticmethod
    def fits_eight_bits(config: Config, real: Dtype, device: Device) -> bool:
        """Whether a step of many rows can read keys and values in 8 bits."""
        every = [config.attention(layer) for layer in range(config.layers)]
        sizes = {"B": 64, "NH": config.NH, "NKV": config.NKV, "HS": config.HS, "S": config.context}
        values = catalogue.operation(ladder_of(IN_EIGHT_BITS)).complete(sizes)
        rungs = [find(IN_EIGHT_BITS, name) for name in step_rungs(device, real.name, 64).get(IN_EIGHT_BITS, ())]
        return not any(how.softcap for how in every) and any(
            rung.refusal(values, real, None, None, device) is None for rung in rungs
        )

    @staticmethod
    def fits(config: Config) -> bool:
        """Whether rungs of the operations compute all of a GPT-2's step."""
        return ACTIVATIONS[config.activation].normed == "layernorm_matmul" and config.C % 32 == config.F % 32 == 0

    def end(self, x: torch.Tensor) -> None:
        """Logits in float32, and the likeliest tokens: of each part of a row, then of the row."""
        logits = self.t["logits"]
        narrow = logits.view(self.B, 1, -1)
        if logits.dtype != self.real.torch:
            narrow = self.take(*narrow.shape)
        self.plan.logits(x, narrow)
        best, at = (self.take(self.B, PARTS, dtype=kind) for kind in (torch.float32, torch.int32))
        self._keeps = len(self._recorded)
        for keep in (1, 0):
            self.launch("best_of_parts", self.B * PARTS, [narrow, logits, best, at], (logits.shape[1], PARTS, keep))
        self.launch("best_of_all", self.B, [best, at, self.t["next"]], (PARTS,))

    def run(self, before: Callable[[int], None] | None = None, *, logits: bool = True) -> None:
        """Without `logits` only the likeliest tokens are left."""
        for number, step in enumerate(self._steps):
            if number != (self._keeps + 1 if logits else self._keeps):
                step()


def _product_of(norm: Norm) -> str:
    """The operation of a norm and the product after it."""
    return "rmsnorm_matmul" if norm.bias is None else "layernorm_matmul"
