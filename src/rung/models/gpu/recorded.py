"""A family's forward pass recorded once as launches at fixed addresses, and run any number of times: for prompts, for
scores, and for steps of families without a decode ladder. On a GPU the launches are captured in one CUDA graph.
"""

from __future__ import annotations

import math
import weakref
from collections import defaultdict
from collections.abc import Callable, Mapping
from concurrent.futures import Future, ThreadPoolExecutor
from functools import cache
from itertools import product
from pathlib import Path
from typing import TYPE_CHECKING

import torch
import torch.nn.functional as F

from rung.cuda.launch import Argument, Build, LaunchConfig
from rung.dtypes import DTYPES, Dtype
from rung.models.cache import Cache
from rung.models.family import Config
from rung.models.gpu.device_copy import CACHES, EIGHT_BIT_CACHES, refuse
from rung.models.ladder_plan import SHORT_NAMES, LadderPlan, norm_of
from rung.models.operations import (
    BY_TORCH,
    FUSED,
    OVERLAPPED,
    Rungs,
    aligned,
    dims_of,
    find,
    ladder_of,
    last_resort,
    prefill_rungs,
    step_rungs,
)
from rung.models.plan import Rotation
from rung.models.tensors import empty
from rung.models.weights import Linear, Norm, as_weights
from rung.operation import Tensors, Values
from rung.processors import processors
from rung.rungs import catalogue, tunings
from rung.rungs.base import Rung, device_facts
from rung.rungs.cuda import INCLUDE, CudaRung, load_module

if TYPE_CHECKING:
    from rung.expressions import Number

THREADS = 256
PARTS = 64  # of a row of logits, whose likeliest tokens are found in parallel
HELD = 32 << 20  # bytes of qkv that are buffered before they are written to the caches, while they are still in L2
LEAST_ROWS = 16  # for a product in tiles: with one row, 15 of 16 rows of a tile would be empty
LARGE_PRODUCT = 2 << 20  # weights from which the library's products of a step's many rows are faster than ours
MANY_GROUPS = 256  # groups of queries from which smaller blocks of attention keep more of a step's keys in flight
FEW_ROWS = 1024  # up to this many rows, one warp per row in blocks of several warps leaves multiprocessors idle
Step = Callable[[], object]
LONG_NAMES = {short: name for name, short in SHORT_NAMES.items()}


class Buffers:
    """Memory for intermediate results. A result's memory is free again when the forward pass has dropped its tensor and
    the tensor's views: whatever is recorded from then on runs after all that reads it.
    """

    def __init__(self) -> None:
        self._free: defaultdict[tuple[torch.dtype, int], list[torch.Tensor]] = defaultdict(list)

    def take(self, shape: tuple[int, ...], dtype: torch.dtype, where: torch.device, size: int) -> torch.Tensor:
        """A tensor of this shape in memory of `size` elements."""
        free = self._free[dtype, size]
        block = free.pop() if free else torch.empty(size, dtype=dtype, device=where)
        made = alias(block[: math.prod(shape)].view(shape))
        weakref.finalize(made, free.append, block)
        return made


def alias(tensor: torch.Tensor) -> torch.Tensor:
    """The same memory as another tensor, which does not keep the first one."""
    found = torch.empty(0, dtype=tensor.dtype, device=tensor.device)
    return found.set_(tensor.untyped_storage(), tensor.storage_offset(), tensor.shape, tensor.stride())


class RecordedPass(LadderPlan):
    """The plan of one forward pass over `tokens` (B, T) whose operations are recorded: `run` reads `tokens`, and what
    subclasses add. `tensors` are the model's stacked weights and the pass's inputs and outputs. By default nothing is
    cached, and `end` gets what the LM head reads.
    """

    def __init__(
        self,
        config: Config,
        tensors: Tensors,
        tokens: torch.Tensor,
        rungs: Rungs | None = None,
        buffers: Buffers | None = None,
        budget: int | None = None,
    ) -> None:
        self.config, self.t, self.tokens = config, tensors, tokens
        self.B, self.T = tokens.shape
        real = next(d for d in DTYPES.values() if d.torch == tensors["wte"].dtype)
        on_gpu = tokens.device.type == "cuda"
        super().__init__("cuda" if on_gpu else "emulator", LONG_NAMES[real.name], "recorded", {}, config.window)
        self._rungs = prefill_rungs(self._device, real.name, self.B * self.T) if rungs is None else rungs
        self._buffers, self._budget = buffers or Buffers(), budget or self.B * self.T
        self._recorded: list[Step | Future[Step]] = []
        self._gates: dict[int, int] = {}  # before this step, this group of weights must have been loaded
        self._gated = -1
        self._rotation: Rotation | None = None
        self._past = torch.zeros(self.B, dtype=torch.int32, device=tokens.device)
        self._pending: tuple[torch.Tensor, torch.Tensor, torch.Tensor] | None = None  # a sum and its parts
        self._graph: torch.cuda.CUDAGraph | None = None
        self.weights = as_weights(tensors, config)
        self._group_of: dict[int, int] = {}
        for number, group in enumerate(self.weights.groups()):
            for held in group:
                for tensor in [held] if isinstance(held, torch.Tensor) else [held.weight, held.bias]:
                    if tensor is not None:
                        self._group_of.setdefault(tensor.data_ptr(), number)
        # Launches are prepared in threads: most of it is compiling, and programs are compiled at the same time.
        self._pool = ThreadPoolExecutor(processors())
        with self._pool, torch.inference_mode(False), torch.no_grad():  # where a view keeps its base
            self.end(config.family.forward(self, config, self.weights, tokens, None))
            self._settle()
        self._steps = [step.result() if isinstance(step, Future) else step for step in self._recorded]

    def end(self, x: torch.Tensor) -> None:
        """Record what follows the forward pass."""
        raise NotImplementedError

    def run(self, before: Callable[[int], None] | None = None) -> None:
        """Runs everything in stream order; `before` is called with each group of weights when it is needed."""
        for number, step in enumerate(self._steps):
            if before is not None and number in self._gates:
                before(self._gates[number])
            step()

    def replay(self) -> None:
        """The same as one launch on a GPU, captured at first use."""
        if self.tokens.device.type != "cuda":
            self.run()
            return
        if self._graph is None:
            self._graph = captured(self.run)
        self._graph.replay()

    @property
    def rungs_in_use(self) -> dict[str, str]:
        return {operation: next(iter(names)) for operation, names in self._in_use.items()}

    # ---- operations -------------------------------------------------------------------------------------------------

    def embedding(self, tokens: torch.Tensor, past: object, wte: Linear, wpe: torch.Tensor | None) -> torch.Tensor:
        if wpe is None:
            out = self._take((self.B, self.T, wte.weight.shape[1]))
            read = [alias(tokens), self._given(wte.weight), alias(out)]
            self._launch("embed", self.B * self.T, read, (out.shape[2],))
            return out
        (V, C), MAXT = wte.weight.shape, wpe.shape[0]
        dims = {"B": self.B, "T": self.T, "C": C, "V": V, "MAXT": MAXT}
        given = {"tokens": tokens, "wte": wte.weight, "wpe": wpe}
        return self._must("embedding", (self.B, self.T, C), given, dims)

    def rotate(self, qkv: torch.Tensor, rotation: Rotation, past: object) -> torch.Tensor:
        self._rotation = rotation  # attention turns what it reads
        return qkv

    def attention(
        self, qkv: torch.Tensor, NH: int, scale: float, layer: int, cache: Cache | None, NKV: int | None = None
    ) -> torch.Tensor:
        B, T, width = qkv.shape
        if NKV is not None:
            return self._turned_attention(qkv, scale, layer)
        q, k, v = self._heads(qkv, NH)
        dims: Values = {"B": B, "T": T, "C": width // 3, "NH": NH, "scale": scale}
        return self._must("attention", (B, T, width // 3), {"qkv": qkv, "q": q, "k": k, "v": v}, dims)

    def _turned_attention(self, qkv: torch.Tensor, scale: float, layer: int) -> torch.Tensor:
        """Of new texts' tokens; keys and values go to where `_kept` says."""
        c, (B, T, _) = self.config, qkv.shape
        q, (k, v) = self._take((B, T, c.NH, c.HS)), self._kept(layer)
        self._turn("rope_append", qkv, k, v, {"past": self._past, "q": q}, {"T": T})
        q, k, v = q.transpose(1, 2), k[:, :, :T], v[:, :, :T]
        out = self._take((B, T, c.NH * c.HS))
        dims: dict[str, Number] = {"B": B, "T": T, "NH": c.NH, "NKV": c.NKV, "HS": c.HS, "scale": scale}
        dims |= {} if c.window is None else {"window": c.window}
        names = self._rungs.get("grouped_attention", ())
        if names and self._record("grouped_attention", names, {"q": q, "k": k, "v": v, "out": out}, dims):
            return out
        at, given = torch.arange(T, dtype=torch.int32, device=q.device), (alias(q), alias(k), alias(v))
        seen = (at <= at[:, None]) & (at > at[:, None] - (c.window or T))

        def attend() -> torch.Tensor:
            q, k, v = given
            k, v = (x.repeat_interleave(c.NH // c.NKV, 1) for x in (k, v))
            with self._no_plans_by_shape():
                y = F.scaled_dot_product_attention(
                    q, k, v, attn_mask=None if c.window is None else seen, is_causal=c.window is None, scale=scale
                )
            return y.transpose(1, 2).flatten(2)

        return self._by_torch((B, T, c.NH * c.HS), attend)

    def _kept(self, layer: int) -> tuple[torch.Tensor, torch.Tensor]:
        """Memory for keys and values, (B, NKV, S, HS) each."""
        shape = (self.B, self.config.NKV, self.T, self.config.HS)
        return self._take(shape), self._take(shape)

    def _turn(
        self, operation: str, qkv: torch.Tensor, k: torch.Tensor, v: torch.Tensor, more: Tensors,
        dims: Mapping[str, Number],
    ) -> None:  # fmt: skip
        """Records an operation that turns queries and keys as `rotate` said, or not at all."""
        c, S = self.config, k.shape[2]
        if self._rotation is None:
            still = torch.ones(S, c.HS // 2, dtype=torch.float32, device=k.device)
            self._rotation = Rotation(c.NH, c.NKV, still, torch.zeros_like(still), None, None, c.eps)
        r = self._rotation
        norms = {n: norm.weight for n, norm in (("q_weight", r.q_norm), ("k_weight", r.k_norm)) if norm is not None}
        given = {"qkv": qkv, "cosines": r.cosines[:S], "sines": r.sines[:S], "k_cache": k, "v_cache": v, **norms}
        sizes = {"B": self.B, "NH": c.NH, "NKV": c.NKV, "HS": c.HS, "S": S, "eps": r.eps}
        self._settle()
        names = self._rungs.get(operation, ("2", "1"))
        recorded = self._record(operation, names, {**given, **more}, {**sizes, **dims})
        assert recorded, f"no rung of {operation} takes {sizes}"

    def activation(self, x: torch.Tensor, name: str) -> torch.Tensor:
        if name == "swiglu":
            out = self._take((*x.shape[:-1], x.shape[-1] // 2))
            self._settle()
            each = 8 // self._real.size if out.numel() % 4 == 0 else 1  # of a thread, from 16 bytes
            self._launch("gate", -(-out.numel() // (each * THREADS)), [alias(x), alias(out)], (out.numel(), each))
            return out
        if name == "gelu_erf":
            before, compute = alias(x), super(LadderPlan, self).activation
            return self._by_torch(tuple(x.shape), lambda: compute(before, name))
        out = self._take(tuple(x.shape))
        if name == "relu":
            self._must("relu", (x.numel(),), {"x": x.view(-1)}, {"N": x.numel()}, out.view(-1))
        else:
            self._must("gelu", tuple(x.shape), {"x": x}, dict(zip("BTC", x.shape, strict=True)), out)
        return out

    # A sum whose parts are known waits for the next operation: if that is its norm, one kernel does both.

    def matmul_residual(self, x: torch.Tensor, linear: Linear, residual: torch.Tensor) -> torch.Tensor:
        out = self._product("matmul_residual", x, linear, {"residual": residual})
        if out is not None:
            return out
        added = self.matmul(x, linear)
        if not any(norm in self._rungs for norm in ("residual_layernorm", "rmsnorm_residual")):
            return self.residual(residual, added)
        self._pending = self._take(tuple(residual.shape)), added, residual
        return self._pending[0]

    def layernorm(self, x: torch.Tensor, norm: Norm, eps: float) -> torch.Tensor:
        if self._pending is None or self._pending[0] is not x:
            return self._norm(x, norm, eps)
        (total, added, residual), self._pending = self._pending, None
        operation, more = norm_of("residual_layernorm", norm)
        tensors = {"x": added, "residual": residual, **more, "sum": total}
        dims = {**dict(zip("BTC", x.shape, strict=True)), "eps": eps}
        out = self._run(operation, tuple(x.shape), tensors, dims)
        if out is not None:
            return out
        self._add(total, added, residual)
        return self._norm(x, norm, eps)

    def _norm(self, x: torch.Tensor, norm: Norm, eps: float) -> torch.Tensor:
        operation, more = norm_of("layernorm", norm)
        out = self._run(operation, tuple(x.shape), {"x": x, **more}, {**dims_of(x), "eps": eps})
        if out is None:
            given, compute = alias(x), super(LadderPlan, self).layernorm
            out = self._by_torch(tuple(x.shape), lambda: compute(given, norm, eps))
        return out

    def layernorm_matmul(self, x: torch.Tensor, norm: Norm, eps: float, linear: Linear) -> torch.Tensor:
        if self._pending is not None and self._pending[0] is x:
            return self.matmul(self.layernorm(x, norm, eps), linear)
        return super().layernorm_matmul(x, norm, eps, linear)

    def matmul_residual_layernorm(
        self, x: torch.Tensor, linear: Linear, residual: torch.Tensor, norm: Norm, eps: float
    ) -> tuple[torch.Tensor, torch.Tensor]:
        total = self.matmul_residual(x, linear, residual)
        return total, self.layernorm(total, norm, eps)

    def _settle(self) -> None:
        if self._pending is not None:
            pending, self._pending = self._pending, None
            self._add(*pending)

    def _add(self, total: torch.Tensor, added: torch.Tensor, residual: torch.Tensor) -> None:
        dims = dict(zip("BTC", total.shape, strict=True))
        self._must("residual", tuple(total.shape), {"a": residual, "b": added}, dims, total)

    def _logits(self, x: torch.Tensor) -> torch.Tensor:
        """The head's product for (B, 1, C), into the session's `logits` (B, V)."""
        logits = self.t["logits"].view(self.B, 1, -1)
        narrow = logits if logits.dtype == self._real.torch else self._take(tuple(logits.shape))
        dims = {"B": self.B, "T": 1, "C": x.shape[2], "OC": logits.shape[2]}
        self._must("matmul", tuple(logits.shape), {"x": x, "weight": self.weights.head.weight}, dims, narrow)
        if narrow is not logits:
            held = alias(narrow)
            self._recorded.append(lambda: logits.copy_(held))
        return self.t["logits"]

    # ---- which rung -------------------------------------------------------------------------------------------------

    def _has(self, operation: str) -> bool:
        return operation in self._rungs or operation not in FUSED

    def _must(
        self,
        operation: str,
        shape: tuple[int, ...],
        tensors: Tensors,
        dims: Mapping[str, Number],
        out: torch.Tensor | None = None,
    ) -> torch.Tensor:
        found = self._run(operation, shape, tensors, dims, out=out)
        assert found is not None, f"no rung of {operation} takes {dims}"
        return found

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
        """Records the operation with the first rung that supports it; None if a fused one has none."""
        names = self._rungs.get(operation, ())
        if operation not in FUSED and operation not in BY_TORCH:
            names = (*names, *last_resort(operation))
        if not names:
            return None
        self._settle()
        if out is None:
            out = self._place(role, shape)
        if not self._record(operation, names, {**tensors, "out": out}, dims):
            return None
        return out

    def _place(self, role: str, shape: tuple[int, ...]) -> torch.Tensor:
        return self._take(shape)

    def _record(self, operation: str, names: tuple[str, ...], tensors: Tensors, dims: Mapping[str, Number]) -> bool:
        values = catalogue.operation(ladder_of(operation)).complete(dims)
        given = {name: self._given(tensor) for name, tensor in tensors.items()}
        for name in names:
            rung = find(operation, name)
            if not self._takes(rung, values, given):
                continue
            tuning = self._tuning(operation, rung, values)

            def prepared(rung: Rung = rung, tuning: dict[str, int] | None = tuning) -> Step:
                return rung.prepare(given, values, self._real, device=self._device, tuning=tuning).run

            self._recorded.append(self._later(prepared) if isinstance(rung, CudaRung) else prepared())
            self._in_use.setdefault(operation, {})[rung.full_name] = None
            return True
        return False

    def _given(self, tensor: torch.Tensor) -> torch.Tensor:
        group = self._group_of.get(tensor.data_ptr())
        if group is None:
            return alias(tensor)
        if group > self._gated:
            self._gates[len(self._recorded)] = self._gated = group
        return aligned(tensor)

    def _takes(self, rung: Rung, values: Values, tensors: Tensors) -> bool:
        if rung.emulate and self._device != "cuda":
            return False
        if "BM" in rung.tune and values["B"] * values["T"] < LEAST_ROWS:
            return False
        many = "SHARE" in rung.tune and values["B"] * values["T"] > OVERLAPPED
        if many and tunings.best(rung, values, self._real.name, device=self._device) is None:
            return False
        return rung.refusal(values, self._real, None, tensors, self._device) is None

    def _tuning(self, operation: str, rung: Rung, values: Values) -> dict[str, int] | None:
        if self._device == "cuda" and rung.tune:
            best = tunings.best(rung, values, self._real.name, device=self._device)
            if best is not None:
                return best
        if operation == "residual_layernorm" and values["B"] * values["T"] <= FEW_ROWS and 32 in rung.tune["BLOCK"]:
            return {"BLOCK": 32}
        if operation == "rope_cached_attention" and values["B"] * values["NKV"] >= MANY_GROUPS and "LOADS" in rung.tune:
            return {"WARPS": 4, "LOADS": 2}
        if "SHARE" in rung.tune:
            rows, columns, depth = (int(values[n]) for n in ("T", "OC", "C"))
            return for_few_rows(tuple(rung.tune.items()), self.B * rows, columns, depth, device_facts(self._device)[1])
        if {"BM", "BN", "num_warps"} <= rung.tune.keys() and "OC" in values:
            rows, columns, depth = (int(values[n]) for n in ("T", "OC", "C"))
            return tiles(rung.tune, self.B * rows, columns, depth, device_facts(self._device)[1])
        return None

    # ---- memory and kernels without a ladder ------------------------------------------------------------------------

    def _take(self, shape: tuple[int, ...], dtype: torch.dtype | None = None) -> torch.Tensor:
        size = -(-math.prod(shape) * max(self._budget, self.B * self.T) // (self.B * self.T))
        return self._buffers.take(shape, dtype or self._real.torch, self.tokens.device, size)

    def _output(self, operation: str, shape: tuple[int, ...], dtype: torch.dtype | None = None) -> torch.Tensor:
        return self._take(shape, dtype)

    def _by_torch(self, shape: tuple[int, ...], compute: Callable[[], torch.Tensor]) -> torch.Tensor:
        """Records what no rung computes; `compute` reads aliases of results."""
        self._settle()
        out = self._take(shape)
        after = alias(out)
        self._recorded.append(lambda: after.copy_(compute()))
        return out

    def _launch(self, kernel: str, blocks: int, tensors: list[torch.Tensor], sizes: tuple[int, ...]) -> None:
        config = LaunchConfig(grid=(blocks, 1, 1), block=(THREADS, 1, 1), pdl=True)
        arguments: list[Argument] = [*(("pointer", t) for t in tensors), *(("i32", n) for n in sizes)]

        def bound() -> Step:
            module = load_module(build(self._real), self._device)
            module.prepare(kernel, config)
            return module.bind(kernel, config, arguments)

        self._recorded.append(self._later(bound))

    def _later(self, prepare: Callable[[], Step]) -> Future[Step]:
        """A launch that a thread prepares."""

        def on_this_device() -> Step:
            if self.tokens.is_cuda:
                torch.cuda.set_device(self.tokens.device)  # the driver's context, for this thread
            return prepare()

        return self._pool.submit(on_this_device)


class PromptPass(RecordedPass):
    """Prompts of one length, padding included: `run` reads `tokens` and lengths, and leaves caches and logits. Caches
    are written for several layers at once, and the last layer ends with one token per row.
    """

    def __init__(
        self, config: Config, tensors: Tensors, rows: int, length: int, capacity: int, rungs: Rungs | None = None
    ) -> None:
        history = tensors["history"]
        size, where = tensors["wte"].dtype.itemsize, history.device
        self.capacity, self._held = capacity, 0
        self._layers_at_once = max(1, min(config.layers, HELD // (rows * length * config.QKV * size)))
        self._packed = empty(0)
        if where.type == "cuda":
            width = self._layers_at_once * config.QKV + config.QKV + 4 * config.C + 3 * config.F
            refuse(
                rows * length * width * size,
                f"reading {rows} prompts of {length:,} tokens",
                "write fewer texts at a time",
            )
        whole = rows == 1 or length == history.shape[1]
        tokens = history[:, :length] if whole else torch.empty(rows, length, dtype=torch.int32, device=where)
        super().__init__(config, tensors, tokens, rungs)

    def _place(self, role: str, shape: tuple[int, ...]) -> torch.Tensor:
        if role != "qkv" or self.config.kv_heads:
            return self._take(shape)
        if not self._packed.numel():
            self._packed = torch.empty(self._layers_at_once, *shape, dtype=self._real.torch, device=self.tokens.device)
        return self._packed[self._held]

    def attention(
        self, qkv: torch.Tensor, NH: int, scale: float, layer: int, cache: Cache | None, NKV: int | None = None
    ) -> torch.Tensor:
        out = super().attention(qkv, NH, scale, layer, cache, NKV)
        if NKV is not None:
            return out
        if not self._packed.numel() or qkv.data_ptr() != self._packed[self._held].data_ptr():
            self._store(alias(qkv), layer, 1)  # keys and values of another product than the table's qkv
            return out
        self._held += 1
        if layer == self.config.layers - 1 or self._held == self._layers_at_once:
            self._store(self._packed, layer + 1 - self._held, self._held)
            self._held = 0
        return out

    def _kept(self, layer: int) -> tuple[torch.Tensor, torch.Tensor]:
        return self.t["k_cache"][layer], self.t["v_cache"][layer]

    def _store(self, qkv: torch.Tensor, first: int, layers: int) -> None:
        c = self.config
        eight = "k_cache_q" in self.t
        caches = [self.t[name][first : first + layers] for name in (EIGHT_BIT_CACHES if eight else CACHES)]
        sizes = (layers, self.B, self.T, c.NH, c.NKV, c.HS, self.capacity)
        numbers = layers * self.B * self.T * 2 * c.NKV * c.HS
        if eight:
            lanes = numbers // 16
            self._launch("keep_in_eight_bits", -(-lanes // THREADS), [qkv, *caches], sizes)
            return
        vector = 16 // self._real.size
        if c.HS % vector == 0:
            numbers //= vector
        self._launch("keep", -(-numbers // THREADS), [qkv, *caches], sizes)

    def last_tokens(self, y: torch.Tensor, x: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
        self._settle()
        found = self._take((self.B, 1, y.shape[2])), self._take((self.B, 1, x.shape[2]))
        sizes = (self.T, y.shape[2], x.shape[2])
        self._launch("last", self.B, [*map(alias, (y, x)), self.t["lengths"], *map(alias, found)], sizes)
        return found

    def end(self, x: torch.Tensor) -> None:
        """The logits that follow each prompt."""
        self._settle()
        if x.shape[1] > 1:  # a forward pass that has not cut its last layer
            x, _ = self.last_tokens(x, x)
        self._logits(x)


class StepPass(RecordedPass):
    """One more token for each row of a session, by the operations: the step of families without a decode ladder. `run`
    reads `tokens`, `lengths` and the caches, and leaves `logits` and the likeliest tokens in `next`.
    """

    def __init__(self, config: Config, tensors: Tensors, rungs: Rungs | None = None) -> None:
        rows, where = len(tensors["tokens"]), tensors["tokens"].device
        self._normed: tuple[Norm, float] | None = None  # what the next product applies to its inputs
        if rungs is None:
            real = next(d for d in DTYPES.values() if d.torch == tensors["wte"].dtype)
            rungs = step_rungs("cuda" if where.type == "cuda" else "emulator", real.name, rows)
        super().__init__(config, tensors, tensors["tokens"].view(rows, 1), rungs)

    @staticmethod
    def fits(config: Config) -> bool:
        """Whether rungs of the operations compute all of a GPT-2's step."""
        return config.activation == "gelu_tanh" and config.C % 32 == config.F % 32 == 0

    def embedding(self, tokens: torch.Tensor, past: object, wte: Linear, wpe: torch.Tensor | None) -> torch.Tensor:
        """The ladder's rungs place all sequences of a batch alike."""
        if wpe is None:
            return super().embedding(tokens, past, wte, wpe)
        out = self._take((self.B, 1, wte.weight.shape[1]))
        read = [alias(tokens), self.t["lengths"], self._given(wte.weight), self._given(wpe), alias(out)]
        self._launch("embed_placed", self.B, read, (out.shape[2],))
        return out

    def _takes(self, rung: Rung, values: Values, tensors: Tensors) -> bool:
        if "SHARE" in rung.tune and values["OC"] * values["C"] >= LARGE_PRODUCT:
            return False
        return super()._takes(rung, values, tensors)

    # For few rows the product after a norm normalises its inputs itself.

    def layernorm(self, x: torch.Tensor, norm: Norm, eps: float) -> torch.Tensor:
        if not self._has(_product_of(norm)):
            return super().layernorm(x, norm, eps)
        self._normed = norm, eps
        return x

    def layernorm_matmul(self, x: torch.Tensor, norm: Norm, eps: float, linear: Linear) -> torch.Tensor:
        return self.matmul(self.layernorm(x, norm, eps), linear)

    def matmul(self, x: torch.Tensor, linear: Linear) -> torch.Tensor:
        return super().matmul(x, linear) if self._normed is None else self._normed_product(x, linear)

    def matmul_activation(self, x: torch.Tensor, linear: Linear, name: str) -> torch.Tensor:
        if self._normed is None:
            return super().matmul_activation(x, linear, name)
        if name == ("gelu_tanh" if self._normed[0].bias is not None else "swiglu"):
            return self._normed_product(x, linear, 1)
        return self.activation(self.matmul(x, linear), name)

    def _normed_product(
        self, x: torch.Tensor, linear: Linear, active: int = 0, out: torch.Tensor | None = None
    ) -> torch.Tensor:
        """With the activation that the norm's product has, SwiGLU or GELU, if `active`."""
        assert self._normed is not None
        (norm, eps), self._normed = self._normed, None
        given = {"x": x, "weight": linear.weight}
        given |= {} if linear.bias is None else {"bias": linear.bias}
        dims: dict[str, Number] = {**dims_of(x), "OC": linear.weight.shape[0], "eps": eps}
        if norm.bias is None:
            given["norm"] = norm.weight
            dims |= {"OC": linear.weight.shape[0] // (1 + active), "gated": active}
        else:
            given |= {"ln_weight": norm.weight, "ln_bias": norm.bias}
            dims["gelu"] = active
        found = self._run(_product_of(norm), (self.B, 1, int(dims["OC"])), given, dims, out=out)
        if found is not None:
            return found
        normed = self._norm(x, norm, eps)
        if out is not None:
            return self._head(normed, out)
        if active:
            return self.matmul_activation(normed, linear, "swiglu" if norm.bias is None else "gelu_tanh")
        return self.matmul(normed, linear)

    def _head(self, x: torch.Tensor, out: torch.Tensor) -> torch.Tensor:
        dims = {**dims_of(x), "OC": out.shape[2]}
        return self._must("matmul", tuple(out.shape), {"x": x, "weight": self.weights.head.weight}, dims, out)

    def attention(
        self, qkv: torch.Tensor, NH: int, scale: float, layer: int, cache: Cache | None, NKV: int | None = None
    ) -> torch.Tensor:
        """Of one token per row; heads that were not rotated are stored as they are."""
        keys, values, past = self.t["k_cache"][layer], self.t["v_cache"][layer], self.t["lengths"]
        out, window = self._take((self.B, 1, NH * self.config.HS)), self.config.window
        more: dict[str, Number] = {"scale": scale} | ({} if window is None else {"window": window})
        given = {"past": past, "out": out.view(self.B, -1)}
        self._turn("rope_cached_attention", qkv.view(self.B, -1), keys, values, given, more)
        return out

    def end(self, x: torch.Tensor) -> None:
        """Logits in float32, and the likeliest tokens: of each part of a row, then of the row."""
        logits, head = self.t["logits"], self.weights.head
        narrow = logits.view(self.B, 1, -1)
        if logits.dtype != self._real.torch:
            narrow = self._take(tuple(narrow.shape))
        if self._normed is None:
            self._head(x, narrow)
        else:
            self._normed_product(x, head, out=narrow)
        self._settle()
        best, at = (self._take((self.B, PARTS), kind) for kind in (torch.float32, torch.int32))
        given = [alias(narrow), logits, alias(best), alias(at)]
        self._keeps = len(self._recorded)
        for keep in (1, 0):
            self._launch("best_of_parts", self.B * PARTS, given, (logits.shape[1], PARTS, keep))
        self._launch("best_of_all", self.B, [alias(best), alias(at), self.t["next"]], (PARTS,))

    def run(self, before: Callable[[int], None] | None = None, *, logits: bool = True) -> None:
        """Without `logits` only the likeliest tokens are left."""
        for number, step in enumerate(self._steps):
            if number != (self._keeps + 1 if logits else self._keeps):
                step()


def _product_of(norm: Norm) -> str:
    """The operation of a norm and the product after it."""
    return "rmsnorm_matmul" if norm.bias is None else "layernorm_matmul"


def captured(run: Callable[[], None]) -> torch.cuda.CUDAGraph:
    """Launches as one graph."""
    side = torch.cuda.Stream()  # type: ignore[no-untyped-call]
    side.wait_stream(torch.cuda.current_stream())
    with torch.cuda.stream(side):
        run()  # libraries choose and allocate now, not during capture
    torch.cuda.current_stream().wait_stream(side)
    torch.cuda.synchronize()
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph, capture_error_mode="thread_local"):
        run()
    return graph


@cache
def build(real: Dtype) -> Build:
    """The kernels without a ladder."""
    source = Path(__file__).with_name("prefill.cu")
    return Build(
        source=source.read_text(encoding="utf-8"),
        origin=str(source),
        kernels=("keep", "keep_in_eight_bits", "last", "embed", "embed_placed", "gate", "best_of_parts", "best_of_all"),
        defines=((real.macro, "1"),),
        include=(str(INCLUDE),),
    )


# ---- launch parameters of a Triton matmul for which no sweep has found a tuning -------------------------------------

# Tiles of Triton's products, rows x columns, and their warps; the first that gives every multiprocessor a tile is used.
TILES = ((128, 128, 8), (64, 128, 8), (64, 64, 4), (32, 64, 4))
LEAST_DEPTH = 192  # minimum depth of a part, if parts share a tile's depth
# Fitted to the times of a hundred values at 16 shapes on an H200: bytes from the L2 and FLOPs per multiprocessor and
# nanosecond; nanoseconds per step, per part of the depth that is added up, and for sharing x.
L2_BYTES, FLOPS, LATENCY, PART, MEETING = 60, 2500, 30, 200, 800
SHARED_BYTES = 230400
Tunables = tuple[tuple[str, tuple[int, ...]], ...]


def tiles(tune: Mapping[str, tuple[int, ...]], rows: int, columns: int, depth: int, sms: int) -> dict[str, int]:
    """Values for `tune`, so that every multiprocessor has a tile."""

    def blocks_of(BM: int, BN: int) -> int:
        return -(-rows // BM) * -(-columns // BN)

    BM, BN, warps = next((t for t in TILES if blocks_of(*t[:2]) >= sms), TILES[-1])
    blocks, tuning = blocks_of(BM, BN), {"BM": BM, "BN": BN, "num_warps": warps}
    parts = [n for n in tune.get("SPLIT", (1,)) if n == 1 or (blocks * n <= 2 * sms and depth >= n * LEAST_DEPTH)]
    tuning["SPLIT"] = max(parts) if blocks < sms else 1
    return {name: value for name, value in tuning.items() if value in tune.get(name, ())}


@cache
def for_few_rows(tune: Tunables, rows: int, columns: int, depth: int, sms: int) -> dict[str, int]:
    """Values for a product in 16 bits whose depth and rows of x are shared by a cluster's blocks: the lowest
    estimate."""
    depth_steps = -(-depth // 64)

    def nanoseconds(values: dict[str, int]) -> float:
        BN, GROUPS, SPLIT, STAGES, SHARE = (values[name] for name in ("BN", "GROUPS", "SPLIT", "STAGES", "SHARE"))
        steps, stage = -(-depth_steps // SPLIT), (64 * GROUPS + BN) * 128
        in_shared = 256 * GROUPS * (BN + 8) <= STAGES * stage <= SHARED_BYTES
        fits = range(steps if SHARE > 1 else 3, max(3, steps) + 1)
        if not in_shared or SPLIT * SHARE > 8 or STAGES not in fits:
            return float("inf")
        blocks = -(-rows // (64 * GROUPS)) * -(-columns // (BN * SHARE)) * SPLIT * SHARE
        step = max((64 * GROUPS / SHARE + BN) * 128 / L2_BYTES, 64 * GROUPS * BN * 128 / FLOPS) + LATENCY
        return -(-blocks // sms) * steps * step + PART * SPLIT + MEETING * (SHARE > 1) - STAGES

    names = [name for name, _ in tune]
    return min((dict(zip(names, v, strict=True)) for v in product(*(v for _, v in tune))), key=nanoseconds)
