"""A family's forward pass recorded once as launches at fixed addresses, and run any number of times: for prompts, for
scores, and for steps of families without a decode ladder. On a GPU the launches are captured in one CUDA graph.
"""

from __future__ import annotations

import math
import weakref
from collections import defaultdict
from collections.abc import Callable, Mapping, MutableMapping, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from functools import cache
from itertools import product
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple

import torch
from torch.overrides import TorchFunctionMode, resolve_name
from torch.utils._pytree import tree_leaves
from torch.utils.weak import WeakTensorKeyDictionary

from gpuless.base.expressions import evaluate
from gpuless.base.processors import processors
from gpuless.launch import Argument, Build, LaunchConfig
from rung.dtypes import DTYPES, Dtype
from rung.errors import RungError
from rung.models.cache import Cache
from rung.models.family import Attention, Config
from rung.models.gpu.device_copy import refuse
from rung.models.ladder_plan import LadderCalls, norm_of
from rung.models.operations import Rungs, aligned, dims_of, find, ladder_of, last_resort, prefill_rungs, step_rungs
from rung.models.plan import ACTIVATIONS, Rotation, TorchPlan, attended, heads_of, place_of, seen
from rung.models.tensors import empty
from rung.models.weights import Linear, Norm, as_weights
from rung.operation import Tensors, Values
from rung.quantised import CACHES, EIGHT_BIT_CACHES
from rung.rungs import catalogue, tunings
from rung.rungs.base import Device, Rung, device_facts
from rung.rungs.cuda import CudaRung, build_of, load_module

if TYPE_CHECKING:
    from gpuless.base.expressions import Number

THREADS = 256
PARTS = 64  # of a row of logits, whose likeliest tokens are found in parallel
HELD = 32 << 20  # bytes of qkv that are buffered before they are written to the caches, while they are still in L2
IN_EIGHT_BITS = "eight_bit_rope_cached_attention"
UNCAPTURED = 3  # runs of a pass over the rest of prompts: a capture costs more than a few of these save
Step = Callable[[], object]


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


def by_tensor() -> MutableMapping[torch.Tensor, Any]:
    """A table of tensors, which it does not keep."""
    return WeakTensorKeyDictionary()


class Guard(TorchFunctionMode):
    """The operations of a plan for a forward pass that is recorded. What torch itself computes of weights, tokens or
    results would be computed now and never again: it is refused."""

    ASKED = frozenset(
        getattr(torch.Tensor, name).__get__ for name in ("shape", "dtype", "device", "ndim", "is_cuda")
    ) | {torch.Tensor.size, torch.Tensor.dim, torch.Tensor.numel, torch.Tensor.__len__}

    def __init__(self, plan: LadderCalls, title: str, known: Sequence[torch.Tensor]) -> None:
        super().__init__()
        self._plan, self._title, self._within = plan, title, False
        self._known: MutableMapping[torch.Tensor, bool] = by_tensor()
        self._known.update(dict.fromkeys(known, True))

    def __getattr__(self, name: str) -> Any:
        found = getattr(self._plan, name)
        if not callable(found):
            return found

        def operation(*given: Any, **named: Any) -> Any:
            before, self._within = self._within, True
            try:
                results = found(*given, **named)
            finally:
                self._within = before
            self._known.update((x, True) for x in tree_leaves(results) if isinstance(x, torch.Tensor))
            return results

        return operation

    def __torch_function__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        if not self._within and func not in self.ASKED:
            of = [x for x in tree_leaves((args, kwargs)) if isinstance(x, torch.Tensor)]
            if any(x in self._known for x in of):
                name = resolve_name(func) or getattr(func, "__name__", "an operation")
                raise RungError(
                    f"the forward pass of {self._title} calls {name} itself; a pass is recorded once and repeated, so "
                    "write it over the operations of the plan."
                )
        return func(*args, **(kwargs or {}))


class Sum(NamedTuple):
    """a + b, both (B, T, C)."""

    a: torch.Tensor
    b: torch.Tensor


class Normed(NamedTuple):
    """x after a norm."""

    x: torch.Tensor
    norm: Norm
    eps: float


class PassPlan(LadderCalls):
    """Records each operation. A sum waits until something reads it: a norm may compute it, too."""

    def __init__(self, of: RecordedPass) -> None:
        self.of, self.device = of, of.tokens.device
        self._torch = TorchPlan(self.device, of.real.torch, of.real.torch)
        self._rotations: MutableMapping[torch.Tensor, Rotation] = by_tensor()  # attention turns what it reads
        self._past = torch.zeros(of.B, dtype=torch.int32, device=self.device)
        self._adds = any(norm in of.rungs for norm in ("residual_layernorm", "rmsnorm_residual"))

    def compute(self, out: torch.Tensor, what: Sum | Normed) -> None:
        """Record a result that waited."""
        if isinstance(what, Sum):
            self._run("residual", tuple(out.shape), what._asdict(), dims_of(out), out=out)
            return
        operation, more = norm_of("layernorm", what.norm)
        tensors = {"x": what.x, **more}
        if self._run(operation, tuple(out.shape), tensors, {**dims_of(out), "eps": what.eps}, out=out) is None:
            self.of.copy(out, self._by_torch("layernorm", tuple(out.shape), *what))

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
        names = (*self.of.rungs.get(operation, ()), *last_resort(operation))
        if not names:
            return None
        out = self._place(role, shape) if out is None else out
        return out if self.of.record(operation, names, {**tensors, "out": out}, dims) else None

    def _place(self, role: str, shape: tuple[int, ...]) -> torch.Tensor:
        """Memory for an operation's output."""
        return self.of.take(*shape)

    def _by_torch(self, operation: str, shape: tuple[int, ...], *given: object) -> torch.Tensor:
        weights = [x for held in given if isinstance(held, Norm | Linear) for x in vars(held).values()]
        for x in weights:  # they may still be on their way
            if isinstance(x, torch.Tensor):
                self.of.operand(x)
        read = [self.of.operand(x) if isinstance(x, torch.Tensor) else x for x in given]
        compute = getattr(self._torch, operation)
        return self.of.by_torch(shape, lambda: compute(*read))

    def embedding(
        self, tokens: torch.Tensor, past: Sequence[int], wte: Linear, wpe: torch.Tensor | None, scale: float = 1.0
    ) -> torch.Tensor:
        (B, T), (V, C) = tokens.shape, wte.weight.shape
        if wpe is None:
            out = self.of.take(B, T, C)
            self.of.launch("embed", B * T, [tokens, wte.weight, out], (C, float(scale)))
            return out
        if scale != 1:
            return self._by_torch("embedding", (B, T, C), tokens, past, wte, wpe, scale)
        given, dims = {"tokens": tokens, "wte": wte.weight, "wpe": wpe}, {"B": B, "T": T, "C": C, "V": V}
        found = self._run("embedding", (B, T, C), given, {**dims, "MAXT": wpe.shape[0]})
        assert found is not None, f"no rung of embedding takes {dims}"
        return found

    def _embedding_at(
        self, places: torch.Tensor, tokens: torch.Tensor, wte: Linear, wpe: torch.Tensor, scale: float
    ) -> torch.Tensor:
        """Each token has its own place; the ladder's rungs place all sequences of a batch alike."""
        out = self.of.take(*tokens.shape, wte.weight.shape[1])
        read = [tokens, places, wte.weight, wpe, out]
        self.of.launch("embed_placed", tokens.numel(), read, (out.shape[2], float(scale)))
        return out

    def rotate(self, qkv: torch.Tensor, rotation: Rotation, past: object) -> torch.Tensor:
        self._rotations[qkv] = rotation
        return qkv

    def attention(self, qkv: torch.Tensor, how: Attention, layer: int, cache: Cache | None) -> torch.Tensor:
        B, T, width = self.of.ready(qkv).shape
        if not how.plain:
            return self._turned_attention(qkv, how, layer)
        dims: Values = {"B": B, "T": T, "C": width // 3, "NH": how.NH, "scale": how.scale}
        given = {"qkv": qkv, **dict(zip("qkv", heads_of(qkv, how), strict=True))}
        out = self._run("attention", (B, T, width // 3), given, dims)
        assert out is not None, f"no rung of attention takes {dims}"
        return out

    def _turned_attention(self, qkv: torch.Tensor, how: Attention, layer: int) -> torch.Tensor:
        """Of new texts' tokens; keys and values go to where `_kept` says."""
        (B, T, _), (NKV, HS) = qkv.shape, _heads(qkv, how)
        q, (k, v) = self.of.take(B, T, how.NH, HS), self._kept(layer, NKV, HS)
        self._turn("rope_append", qkv, how, {"k_cache": k, "v_cache": v}, {"past": self._past, "q": q}, {"T": T})
        given = {"q": q.transpose(1, 2), "k": k[:, :, :T], "v": v[:, :, :T]}
        dims: dict[str, Number] = {"B": B, "T": T, "NH": how.NH, "NKV": NKV, "HS": HS, "scale": how.scale}
        dims |= {} if how.window is None else {"window": how.window}
        out = None
        if how.softcap is None:
            out = self._run("grouped_attention", (B, T, how.NH * HS), given, dims)
        if out is not None:
            return out
        q, k, v = (self.of.operand(x) for x in given.values())
        mask = None if how.window is None else seen(self._past, T, T, how.window)
        return self.of.by_torch((B, T, how.NH * HS), lambda: attended(q, k, v, how, mask, mask is None))

    def _kept(self, layer: int, NKV: int, HS: int) -> tuple[torch.Tensor, torch.Tensor]:
        """Memory for keys and values, (B, NKV, S, HS) each."""
        shape = (self.of.B, NKV, self.of.T, HS)
        return self.of.take(*shape), self.of.take(*shape)

    def _turn(
        self, operation: str, qkv: torch.Tensor, how: Attention, caches: Tensors, more: Tensors,
        dims: Mapping[str, Number],
    ) -> None:  # fmt: skip
        """Records an operation that turns queries and keys as `rotate` said, or not at all."""
        _, NKV, S, HS = next(iter(caches.values())).shape
        r = self._rotations.get(qkv)
        if r is None:
            still = torch.ones(S, HS // 2, dtype=torch.float32, device=self.device)
            r = Rotation(how.NH, NKV, still, torch.zeros_like(still), None, None, self.of.config.eps)
        norms = {n: norm.weight for n, norm in (("q_weight", r.q_norm), ("k_weight", r.k_norm)) if norm is not None}
        qkv = qkv if "T" in dims else qkv.view(len(qkv), -1)
        given = {"qkv": qkv, "cosines": r.cosines[:S], "sines": r.sines[:S], **caches, **norms}
        sizes = {"B": self.of.B, "NH": how.NH, "NKV": NKV, "HS": HS, "S": S, "eps": r.eps}
        names = (*self.of.rungs.get(operation, ()), *last_resort(operation))
        recorded = self.of.record(operation, names, {**given, **more}, {**sizes, **dims})
        assert recorded, f"no rung of {operation} takes {sizes}"

    def activation(self, x: torch.Tensor, name: str) -> torch.Tensor:
        return super().activation(self.of.ready(x), name)

    def _gated(self, x: torch.Tensor, name: str) -> torch.Tensor:
        out = self.of.take(*x.shape[:-1], x.shape[-1] // 2)
        each = 8 // self.of.real.size if out.numel() % 4 == 0 else 1  # of a thread, from 16 bytes
        sizes = (out.numel(), each, place_of(name))
        self.of.launch("gate", -(-out.numel() // (each * THREADS)), [x, out], sizes)
        return out

    def residual(self, a: torch.Tensor, b: torch.Tensor) -> torch.Tensor:
        if not self._adds:
            return super().residual(a, b)
        total = self.of.take(*a.shape)
        self.of.deferred[total] = Sum(a, b)
        return total

    def layernorm(self, x: torch.Tensor, norm: Norm, eps: float) -> torch.Tensor:
        parts = self.of.deferred.get(x)
        if isinstance(parts, Sum):
            del self.of.deferred[x]
            operation, more = norm_of("residual_layernorm", norm)
            tensors = {"x": parts.b, "residual": parts.a, **more, "sum": x}
            out = self._run(operation, tuple(x.shape), tensors, {**dims_of(x), "eps": eps})
            if out is not None:
                return out
            self.compute(x, parts)
        return super().layernorm(x, norm, eps)

    def layernorm_matmul(self, x: torch.Tensor, norm: Norm, eps: float, linear: Linear) -> torch.Tensor:
        if isinstance(self.of.deferred.get(x), Sum):
            return self.matmul(self.layernorm(x, norm, eps), linear)
        return super().layernorm_matmul(x, norm, eps, linear)

    def residual_layernorm(
        self, a: torch.Tensor, b: torch.Tensor, norm: Norm, eps: float
    ) -> tuple[torch.Tensor, torch.Tensor]:
        total = self.residual(a, b)
        return total, self.layernorm(total, norm, eps)

    def matmul_residual_layernorm(
        self, x: torch.Tensor, linear: Linear, residual: torch.Tensor, norm: Norm, eps: float
    ) -> tuple[torch.Tensor, torch.Tensor]:
        total = self.matmul_residual(x, linear, residual)
        return total, self.layernorm(total, norm, eps)

    def logits(self, x: torch.Tensor, out: torch.Tensor) -> None:
        """The head's product for (B, 1, C), into (B, 1, V)."""
        given, dims = {"x": x, "weight": self.of.weights.head.weight}, {**dims_of(x), "OC": out.shape[2]}
        assert self._run("matmul", tuple(out.shape), given, dims, out=out) is not None


def _heads(qkv: torch.Tensor, how: Attention) -> tuple[int, int]:
    """Heads of keys, and a head's size."""
    NKV = how.NKV or how.NH
    return NKV, qkv.shape[-1] // (how.NH + 2 * NKV)


class RecordedPass:
    """One forward pass over `tokens` (B, T), recorded operation by operation: its `plan` records them. `run` reads
    `tokens`, and what subclasses add. `tensors` are the model's stacked weights and the pass's inputs and outputs. By
    default nothing is cached, and `end` gets what the LM head reads.
    """

    operations: type[PassPlan] = PassPlan
    step = False  # whether it is of one token per row

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
        self.real = next(d for d in DTYPES.values() if d.torch == tensors["wte"].dtype)
        self.device: Device = "cuda" if tokens.device.type == "cuda" else "emulator"
        self.rungs = prefill_rungs(self.device, self.real.name, self.B * self.T) if rungs is None else rungs
        self._buffers, self._budget = buffers or Buffers(), budget or self.B * self.T
        self._recorded: list[Step | Future[Step]] = []
        self._in_use: dict[str, str] = {}
        self._gates: dict[int, int] = {}  # before this step, this group of weights must have been loaded
        self._gated = -1
        self.deferred: MutableMapping[torch.Tensor, Sum | Normed] = by_tensor()  # recorded when something reads them
        self._graph: torch.cuda.CUDAGraph | None = None
        self.weights = as_weights(tensors, config)
        self._group_of: dict[int, int] = {}
        for number, group in enumerate(self.weights.groups()):
            for held in group:
                for tensor in [held] if isinstance(held, torch.Tensor) else [held.weight, held.bias]:
                    if tensor is not None:
                        self._group_of.setdefault(tensor.data_ptr(), number)
        self.plan = self.operations(self)
        guard = Guard(self.plan, config.family.title, [tokens, *self.weights.tensors()])
        # Launches are prepared in threads: most of it is compiling, and programs are compiled at the same time.
        self._pool = ThreadPoolExecutor(processors())
        with self._pool, torch.inference_mode(False), torch.no_grad():  # where a view keeps its base
            with guard:
                x = config.family.forward(guard, config, self.weights, tokens, None)
            self.end(x)
            del x
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
        return dict(self._in_use)

    # ---- recording --------------------------------------------------------------------------------------------------

    def record(
        self, operation: str, names: Sequence[str], tensors: Tensors, dims: Mapping[str, Number]
    ) -> bool:
        """Records the operation with the first of the rungs that takes it; False if none does."""
        values = catalogue.operation(ladder_of(operation)).complete(dims)
        given = {name: self.operand(tensor) for name, tensor in tensors.items()}
        for name in names:
            rung = find(operation, name)
            if not self._takes(rung, values, given):
                continue
            tuning = self._tuning(operation, rung, values)

            def prepared(rung: Rung = rung, tuning: dict[str, int] | None = tuning) -> Step:
                return rung.prepare(given, values, self.real, device=self.device, tuning=tuning).run

            self._recorded.append(self._later(prepared) if isinstance(rung, CudaRung) else prepared())
            self._in_use.setdefault(operation, rung.full_name)
            return True
        return False

    def ready(self, tensor: torch.Tensor) -> torch.Tensor:
        """The tensor, which is computed from here on."""
        what = self.deferred.pop(tensor, None)
        if what is not None:
            self.plan.compute(tensor, what)
        return tensor

    def operand(self, tensor: torch.Tensor) -> torch.Tensor:
        """What a step keeps of a tensor that it reads or writes."""
        self.ready(tensor)
        group = self._group_of.get(tensor.data_ptr())
        if group is None:
            return alias(tensor)
        if group > self._gated:
            self._gates[len(self._recorded)] = self._gated = group
        return aligned(tensor)

    def _takes(self, rung: Rung, values: Values, tensors: Tensors) -> bool:
        if (rung.emulate and self.device != "cuda") or rung.refusal(values, self.real, None, tensors, self.device):
            return False
        fits = rung.header.model.fits
        if not fits:
            return True
        names = rung.names(values, self.real, None, tensors, self.device).also(step=self.step)
        if any("tuned" in rule for rule in fits):
            names["tuned"] = tunings.best(rung, values, self.real.name, device=self.device) is not None
        return all(evaluate(rule, names) for rule in fits)

    def _tuning(self, operation: str, rung: Rung, values: Values) -> dict[str, int] | None:
        if self.device == "cuda" and rung.tune:
            best = tunings.best(rung, values, self.real.name, device=self.device)
            if best is not None:
                return best
        model = rung.header.model
        names = rung.names(values, self.real, None, None, self.device) if model.untuned else {}
        for when, tuning in model.untuned:
            if evaluate(when, names):
                return dict(tuning)
        if model.estimate:
            rows, columns, depth = (int(values[n]) for n in ("T", "OC", "C"))
            sms = device_facts(self.device)[1]
            return ESTIMATES[model.estimate](tuple(rung.tune.items()), self.B * rows, columns, depth, sms)
        return None

    def take(self, *shape: int, dtype: torch.dtype | None = None) -> torch.Tensor:
        """Memory for a result."""
        size = -(-math.prod(shape) * max(self._budget, self.B * self.T) // (self.B * self.T))
        return self._buffers.take(shape, dtype or self.real.torch, self.tokens.device, size)

    def by_torch(self, shape: tuple[int, ...], compute: Callable[[], torch.Tensor]) -> torch.Tensor:
        """Records what no rung computes; `compute` reads what `operand` returned."""
        out = self.take(*shape)
        after = alias(out)
        self.add(lambda: after.copy_(compute()))
        return out

    def copy(self, to: torch.Tensor, tensor: torch.Tensor) -> None:
        """Records a copy."""
        held = self.operand(tensor)
        self.add(lambda: to.copy_(held))

    def add(self, step: Step) -> None:
        """Records what torch computes."""
        self._recorded.append(step)

    def launch(self, kernel: str, blocks: int, tensors: Sequence[torch.Tensor], sizes: Sequence[int | float]) -> None:
        """Records a kernel without a ladder."""
        config = LaunchConfig(grid=(blocks, 1, 1), block=(THREADS, 1, 1), pdl=True)
        arguments: list[Argument] = [("pointer", self.operand(t)) for t in tensors]
        arguments += [("f32" if isinstance(n, float) else "i32", n) for n in sizes]

        def bound() -> Step:
            module = load_module(build(self.real), self.device)
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
        (B, T, _), (NKV, HS) = self.of.ready(qkv).shape, _heads(qkv, how)
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
        B, (_, HS), t = len(qkv), _heads(qkv, how), self.of.t
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
    kernels = ("keep", "keep_in_eight_bits", "last", "embed", "embed_placed", "gate", "best_of_parts", "best_of_all")
    return build_of(Path(__file__).with_name("prefill.cu"), kernels, (real.macro, 1))


# ---- launch parameters of a Triton matmul for which no sweep has found a tuning -------------------------------------

# Tiles of Triton's products, rows x columns, and their warps; the first that gives every multiprocessor a tile is used.
TILES = ((128, 128, 8), (64, 128, 8), (64, 64, 4), (32, 64, 4))
LEAST_DEPTH = 192  # minimum depth of a part, if parts share a tile's depth
# Fitted to the times of a hundred values at 16 shapes on an H200: bytes from the L2 and FLOPs per multiprocessor and
# nanosecond; nanoseconds per step, per part of the depth that is added up, and for sharing x.
L2_BYTES, FLOPS, LATENCY, PART, MEETING = 60, 2500, 30, 200, 800
SHARED_BYTES = 230400
Tunables = tuple[tuple[str, tuple[int, ...]], ...]


def tiles(tunables: Tunables, rows: int, columns: int, depth: int, sms: int) -> dict[str, int]:
    """Values for the tunables, so that every multiprocessor has a tile."""
    tune = dict(tunables)

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


ESTIMATES: dict[str, Callable[[Tunables, int, int, int, int], dict[str, int]]] = {
    "tiles": tiles,
    "few_rows": for_few_rows,
}  # by the names in headers
