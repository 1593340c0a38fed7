"""Recorded passes over prompts: whole ones, and the rest of prompts whose beginnings are in the caches."""

from __future__ import annotations

from collections.abc import Sequence

import torch

from rung.models.cache import Cache
from rung.models.family import Attention, Config
from rung.models.gpu.device_copy import refuse
from rung.models.gpu.recorded import THREADS, PassPlan, RecordedPass, heads_and_size
from rung.models.operations import Rungs
from rung.models.plan import attended, seen
from rung.models.tensors import empty
from rung.models.weights import Linear
from rung.operation import Tensors
from rung.quantised import CACHES, EIGHT_BIT_CACHES

HELD = 32 << 20  # bytes of qkv that are buffered before they are written to the caches, while they are still in L2
UNCAPTURED = 3  # runs of a pass over the rest of prompts: a capture costs more than a few of these save


class KeepingPlan(PassPlan):
    """Keys and values go to the caches, and the last layer ends with one token per row."""

    of: PromptPass

    def _kept(self, layer: int, NKV: int, HS: int) -> tuple[torch.Tensor, torch.Tensor]:
        return self.of.t["k_cache"][layer], self.of.t["v_cache"][layer]

    def last_tokens(self, y: torch.Tensor, x: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
        of = self.of
        found = of.take(of.B, 1, y.shape[2]), of.take(of.B, 1, x.shape[2])
        of.launch("last", of.B, [y, x, of.t["lengths"], *found], (of.T, y.shape[2], x.shape[2]))
        return found


class PromptPlan(KeepingPlan):
    """Caches are written for several layers at once."""

    def __init__(self, of: PromptPass) -> None:
        super().__init__(of)
        self._held, self._packed = 0, empty(0)

    def _place(self, role: str, shape: tuple[int, ...]) -> torch.Tensor:
        if role != "qkv" or self.of.config.kv_heads:
            return super()._place(role, shape)
        if not self._packed.numel():
            kind = self.of.real.torch
            self._packed = torch.empty(self.of.layers_at_once, *shape, dtype=kind, device=self.device)
        return self._packed[self._held]

    def attention(self, qkv: torch.Tensor, how: Attention, layer: int, cache: Cache | None) -> torch.Tensor:
        out = super().attention(qkv, how, layer, cache)
        last = layer == self.of.config.layers - 1
        if not how.plain:
            self._store_held(layer)
        elif not self._packed.numel() or qkv.data_ptr() != self._packed[self._held].data_ptr():
            self._store(qkv, layer, 1)  # keys and values of another product than the table's qkv
        else:
            self._held += 1
            if last or self._held == self.of.layers_at_once:
                self._store_held(layer + 1)
        return out

    def _store_held(self, end: int) -> None:
        """Keys and values of the layers that are held, those before `end`."""
        if self._held:
            self._store(self._packed, end - self._held, self._held)
        self._held = 0

    def _store(self, qkv: torch.Tensor, first: int, layers: int) -> None:
        c, of = self.of.config, self.of
        eight = "k_cache_q" in of.t
        caches = [of.t[name][first : first + layers] for name in (EIGHT_BIT_CACHES if eight else CACHES)]
        sizes = (layers, of.B, of.T, c.NH, c.NKV, c.HS, of.capacity)
        numbers = layers * of.B * of.T * 2 * c.NKV * c.HS
        if eight:
            of.launch("keep_in_eight_bits", -(-(numbers // 16) // THREADS), [qkv, *caches], sizes)
            return
        vector = 16 // of.real.size
        if c.HS % vector == 0:
            numbers //= vector
        of.launch("keep", -(-numbers // THREADS), [qkv, *caches], sizes)


class PromptPass(RecordedPass):
    """Prompts of one length, padding included: `run` reads `tokens` and lengths, and leaves caches and logits."""

    operations: type[KeepingPlan] = PromptPlan

    def __init__(
        self,
        config: Config,
        tensors: Tensors,
        rows: int,
        length: int,
        capacity: int,
        rungs: Rungs | None = None,
        tokens: torch.Tensor | None = None,
    ) -> None:
        history = tensors["history"]
        size, where = tensors["wte"].dtype.itemsize, history.device
        self.capacity = capacity
        self.layers_at_once = max(1, min(config.layers, HELD // (rows * length * config.QKV * size)))
        if where.type == "cuda":
            width = self.layers_at_once * config.QKV + config.QKV + 4 * config.C + 3 * config.F
            refuse(
                rows * length * width * size,
                f"reading {rows} prompts of {length:,} tokens",
                "write fewer texts at a time",
            )
        if tokens is None:
            whole = rows == 1 or length == history.shape[1]
            tokens = history[:, :length] if whole else torch.empty(rows, length, dtype=torch.int32, device=where)
        super().__init__(config, tensors, tokens, rungs)

    def end(self, x: torch.Tensor) -> None:
        """The logits that follow each prompt."""
        if x.shape[1] > 1:  # a forward pass that has not cut its last layer
            x, _ = self.plan.last_tokens(x, x)
        logits = self.t["logits"].view(self.B, 1, -1)
        narrow = logits if logits.dtype == self.real.torch else self.take(*logits.shape)
        self.plan.logits(x, narrow)
        if narrow is not logits:
            self.copy(logits, narrow)


class RestPlan(KeepingPlan):
    """Of prompts whose first tokens are in the caches."""

    of: RestPass

    def __init__(self, of: RestPass) -> None:
        super().__init__(of)
        self._past = of.t["past"]
        self._biases: dict[tuple[int | None, int], torch.Tensor] = {}

    def embedding(
        self, tokens: torch.Tensor, past: Sequence[int], wte: Linear, wpe: torch.Tensor | None, scale: float = 1.0
    ) -> torch.Tensor:
        if wpe is None:
            return super().embedding(tokens, past, wte, wpe, scale)
        return self._embedding_at(self.of.t["places"], tokens, wte, wpe, scale)

    def attention(self, qkv: torch.Tensor, how: Attention, layer: int, cache: Cache | None) -> torch.Tensor:
        (B, T, _), (NKV, HS) = self.of.ready(qkv).shape, heads_and_size(qkv, how)
        new, (k, v) = self.of.take(B, T, how.NH, HS), self._kept(layer, NKV, HS)
        self._turn("rope_append", qkv, how, {"k_cache": k, "v_cache": v}, {"past": self._past, "q": new}, {"T": T})
        q, k, v = (self.of.operand(x) for x in (new, k, v))
        shape, S = (B, T, how.NH * HS), k.shape[2]
        if how.softcap is not None:
            return self.of.by_torch(
                shape, lambda: attended(q.transpose(1, 2), k, v, how, seen(self._past, T, S, how.window), False)
            )
        # Heads that share keys are further queries of these: torch's kernels that take a mask do not know of groups.
        group, bias = how.NH // NKV, self._bias(how.window, how.NH // NKV)

        def compute() -> torch.Tensor:
            queries = q.view(B, T, NKV, group, HS).transpose(1, 2).flatten(2, 3)
            y = attended(queries, k, v, how, bias, False)
            return y.view(B, T, group, NKV, HS).transpose(2, 3).flatten(2)

        return self.of.by_torch(shape, compute)

    def _bias(self, window: int | None, group: int) -> torch.Tensor:
        """(B, 1, T * group, S): 0 for keys that a token sees, otherwise -inf; of all layers with this window."""
        if (window, group) not in self._biases:
            of, past = self.of, self._past
            bias = torch.zeros(of.B, 1, of.T * group, of.capacity, dtype=of.real.torch, device=self.device)
            self._biases[window, group] = bias
            of.add(
                lambda: bias.zero_().masked_fill_(
                    ~seen(past, of.T, of.capacity, window).repeat_interleave(group, 2), -torch.inf
                )
            )
        return self._biases[window, group]


class RestPass(PromptPass):
    """The rest of prompts, (rows, length) in `rest` and with these `lengths` and `places`, after as many tokens as
    `past` says, which are in the caches. It is captured when its shape has come several times."""

    operations = RestPlan

    def __init__(self, config: Config, tensors: Tensors, rungs: Rungs | None = None) -> None:
        self._runs = 0
        (rows, length), capacity = tensors["rest"].shape, tensors["history"].shape[1]
        super().__init__(config, tensors, rows, length, capacity, rungs, tensors["rest"])

    def replay(self) -> None:
        self._runs += 1
        if self._runs < UNCAPTURED:
            self.run()
        else:
            super().replay()
