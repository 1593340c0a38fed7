"""A family's forward pass recorded once as launches at fixed addresses, and run any number of times: for prompts, for
scores, and for steps of families without a decode ladder. On a GPU the launches are captured in one CUDA graph.
"""

from __future__ import annotations

import math
from abc import ABC, abstractmethod
from collections.abc import Callable, Mapping, MutableMapping, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from functools import cache
from pathlib import Path
from typing import TYPE_CHECKING

import torch

from gpuless.base.expressions import evaluate
from gpuless.base.processors import processors
from gpuless.launch import Argument, Build, LaunchConfig
from rung.dtypes import DTYPES, Dtype
from rung.models.cache import Cache
from rung.models.family import Attention, Config
from rung.models.gpu.launch_estimates import ESTIMATES
from rung.models.gpu.recording import Buffers, Guard, Normed, Step, Sum, alias, by_tensor, captured
from rung.models.ladder_plan import LadderCalls, norm_of
from rung.models.operations import Rungs, aligned, dims_of, find, ladder_of, last_resort, prefill_rungs
from rung.models.plan import Rotation, TorchPlan, attended, heads_of, place_of, seen
from rung.models.weights import Linear, Norm, as_weights
from rung.operation import Tensors, Values
from rung.rungs import catalogue, tunings
from rung.rungs.base import Device, Rung, device_facts
from rung.rungs.cuda import CudaRung, build_of, load_module

if TYPE_CHECKING:
    from gpuless.base.expressions import Number

THREADS = 256


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
        (B, T, _), (NKV, HS) = qkv.shape, heads_and_size(qkv, how)
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

    def matmul_residual_layernorm(
        self, x: torch.Tensor, linear: Linear, residual: torch.Tensor, norm: Norm, eps: float
    ) -> tuple[torch.Tensor, torch.Tensor]:
        total = self.matmul_residual(x, linear, residual)
        return total, self.layernorm(total, norm, eps)

    def logits(self, x: torch.Tensor, out: torch.Tensor) -> None:
        """The head's product for (B, 1, C), into (B, 1, V)."""
        given, dims = {"x": x, "weight": self.of.weights.head.weight}, {**dims_of(x), "OC": out.shape[2]}
        assert self._run("matmul", tuple(out.shape), given, dims, out=out) is not None


def heads_and_size(qkv: torch.Tensor, how: Attention) -> tuple[int, int]:
    """Heads of keys, and a head's size."""
    NKV = how.NKV or how.NH
    return NKV, qkv.shape[-1] // (how.NH + 2 * NKV)


class RecordedPass(ABC):
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

    @abstractmethod
    def end(self, x: torch.Tensor) -> None:
        """Record what follows the forward pass."""

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

    def record(self, operation: str, names: Sequence[str], tensors: Tensors, dims: Mapping[str, Number]) -> bool:
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


@cache
def build(real: Dtype) -> Build:
    """The kernels without a ladder."""
    kernels = ("keep", "keep_in_eight_bits", "last", "embed", "embed_placed", "gate", "best_of_parts", "best_of_all")
    return build_of(Path(__file__).with_name("prefill.cu"), kernels, (real.macro, 1))
