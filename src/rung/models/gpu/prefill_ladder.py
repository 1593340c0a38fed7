"""A prompt's forward pass as operations of the ladders, bound once to fixed addresses for a bucket of lengths."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from pathlib import Path

import torch
import torch.nn.functional as F

from rung.cuda.launch import Argument, Build, LaunchConfig
from rung.dtypes import DTYPES, Dtype
from rung.expressions import Number
from rung.models.binding import aligned, dims_of
from rung.models.gpt2.config import Config
from rung.models.gpt2.rungs import OVERLAPPED, Rungs, find, ladder_of, last_resort, prefill_rungs
from rung.models.gpu.memory import CACHES, EIGHT_BIT_CACHES, refuse
from rung.models.gpu.tiles import for_few_rows, tiles
from rung.operation import Tensors, Values
from rung.rungs import catalogue, tunings
from rung.rungs.base import Device, Rung, device_facts
from rung.rungs.cuda import INCLUDE, load_module

THREADS = 256
HELD = 32 << 20  # bytes of qkv that are buffered before they are written to the caches, while they are still in L2
LEAST_ROWS = 16  # for a product in tiles: with one row, 15 of 16 rows of a tile would be empty
FEW_ROWS = 1024  # up to this many rows, one warp per row in blocks of several warps leaves multiprocessors idle
LN1, LN2 = ("ln1_w", "ln1_b"), ("ln2_w", "ln2_b")
LAST = ("lnf_w", "lnf_b")
Step = Callable[[], object]


class LadderPass:
    """One length, `rows` prompts: `run` reads `tokens` and lengths, and leaves caches and logits.

    Each layer consists of: QKV, attention, projection, sum and layernorm, FC with its activation, projection,
    sum and layernorm. Caches are written for several layers at once, and the last layer ends with one token per row.
    """

    def __init__(
        self, config: Config, tensors: Tensors, rows: int, length: int, capacity: int, rungs: Rungs | None = None
    ) -> None:
        self.config, self.t, self.B, self.T, self.capacity = config, tensors, rows, length, capacity
        self._where = tensors["lengths"].device
        self._device: Device = "cuda" if self._where.type == "cuda" else "emulator"
        self._real = next(d for d in DTYPES.values() if d.torch == tensors["wte"].dtype)
        self._rungs = prefill_rungs(self._device, self._real.name, rows * length) if rungs is None else rungs
        self._buffers: Tensors = {}
        self._steps: list[Step] = []
        self._gates: dict[int, int] = {}  # before this step, this group of weights must have been loaded
        self._gated = -1
        self.rungs_in_use: dict[str, str] = {}
        self._layers_at_once = max(1, min(config.layers, HELD // (rows * length * 3 * config.C * self._real.size)))
        if self._device == "cuda":
            width = 3 * self._layers_at_once * config.C + 5 * config.C + 2 * config.F
            refuse(
                rows * length * width * self._real.size,
                f"reading {rows} prompts of {length:,} tokens",
                "write fewer texts at a time",
            )
        history = tensors["history"]
        whole = rows == 1 or length == history.shape[1]
        self.tokens = history[:, :length] if whole else self._buffer("tokens", rows, length, dtype=torch.int32)
        self._build()

    def run(self, before: Callable[[int], None] | None = None) -> None:
        """Runs everything in stream order; `before` is called with each group of weights when it is needed."""
        for number, step in enumerate(self._steps):
            if before is not None and number in self._gates:
                before(self._gates[number])
            step()

    # ---- the model ----------------------------------------------------------------------------------------------

    def _build(self) -> None:
        c, t, B, T = self.config, self.t, self.B, self.T
        x = self._buffer("embedded", B, T, c.C)
        embedded = {"tokens": self.tokens, "wte": self._aligned("wte"), "wpe": self._aligned("wpe"), "out": x}
        dims: Values = {"B": B, "T": T, "C": c.C, "V": t["wte"].shape[0], "MAXT": t["wpe"].shape[0]}
        self._must("embedding", embedded, dims)
        n = None if "layernorm_matmul" in self._rungs else self._norm(x, LN1, 0)
        packed = self._buffer("qkv", self._layers_at_once, B, T, 3 * c.C)
        for layer in range(c.layers):
            place, ends = layer % self._layers_at_once, layer == c.layers - 1
            y = self._attention(self._qkv(n, x, layer, packed[place]), layer)
            if ends or place == self._layers_at_once - 1:
                self._store_kv(packed, layer - place, place + 1)
            if ends:
                y, x = self._last(y, x)
            x, n = self._sum("proj", y, x, layer, (LN2, layer))
            assert n is not None
            h = self._fc(n, layer)
            x, n = self._sum("fc2", h, x, layer, (LAST, None) if ends else (LN1, layer + 1))
        assert n is not None
        self._end(n)

    def _end(self, n: torch.Tensor) -> None:
        """The logits that follow each prompt."""
        logits = self.t["logits"].view(self.B, 1, -1)
        if logits.dtype == self._real.torch:
            self._matmul(n, self._aligned("head_w"), None, logits)
            return
        narrow = self._buffer("logits", *logits.shape)
        self._matmul(n, self._aligned("head_w"), None, narrow)
        self._steps.append(lambda: logits.copy_(narrow))

    def _qkv(self, n: torch.Tensor | None, x: torch.Tensor, layer: int, out: torch.Tensor) -> torch.Tensor:
        weight, bias = self._linear("qkv", layer)
        if n is not None:
            self._matmul(n, weight, bias, out)
            return out
        ln_weight, ln_bias = self._aligned("ln1_w", layer), self._aligned("ln1_b", layer)
        tensors = {"x": x, "ln_weight": ln_weight, "ln_bias": ln_bias, "weight": weight, "bias": bias, "out": out}
        dims = {**dims_of(x), "OC": out.shape[2], "eps": self.config.eps}
        if not self._op("layernorm_matmul", tensors, dims):
            self._matmul(self._norm(x, LN1, layer), weight, bias, out)
        return out

    def _attention(self, qkv: torch.Tensor, layer: int) -> torch.Tensor:
        c, B, T = self.config, self.B, self.T
        q, k, v = qkv.view(B, T, 3, c.NH, c.HS).permute(2, 0, 3, 1, 4).unbind()  # (B, NH, T, HS)
        out = self._buffer("attended", B, T, c.C)
        dims: Values = {"B": B, "T": T, "C": c.C, "NH": c.NH, "scale": c.attention_scale(layer)}
        self._must("attention", {"qkv": qkv, "q": q, "k": k, "v": v, "out": out}, dims)
        return out

    def _sum(
        self, name: str, x: torch.Tensor, stream: torch.Tensor, layer: int, norm: tuple[tuple[str, str], int | None]
    ) -> tuple[torch.Tensor, torch.Tensor | None]:
        """The residual stream plus a product, and its norm: None if the next product computes the norm itself."""
        B, T, C = stream.shape
        weight, bias = self._linear(name, layer)
        out = self._buffer(f"stream after {name}", B, T, C)
        tensors = {"x": x, "weight": weight, "bias": bias, "residual": stream, "out": out}
        added = self._op("matmul_residual", tensors, {**dims_of(x), "OC": C})
        product = out if added else self._buffer("product", B, T, C)
        if not added:
            self._matmul(x, weight, bias, product)
            normed = self._buffer("normed", B, T, C)
            ln_weight, ln_bias = (self._aligned(n, norm[1]) for n in norm[0])
            both = {"x": product, "residual": stream, "weight": ln_weight, "bias": ln_bias, "sum": out, "out": normed}
            if self._op("residual_layernorm", both, {**dims_of(stream), "eps": self.config.eps}):
                return out, normed
            self._must("residual", {"a": stream, "b": product, "out": out}, dims_of(stream))
        if norm[0] == LN1 and "layernorm_matmul" in self._rungs:
            return out, None
        return out, self._norm(out, *norm)

    def _fc(self, x: torch.Tensor, layer: int) -> torch.Tensor:
        B, T, _ = x.shape
        weight, bias = self._linear("fc", layer)
        out = self._buffer("h", B, T, self.config.F)
        kind = self.config.activation
        tensors = {"x": x, "weight": weight, "bias": bias, "out": out}
        if kind == "gelu_tanh" and self._op("matmul_gelu", tensors, {**dims_of(x), "OC": self.config.F}):
            return out
        before = self._buffer("before activation", B, T, self.config.F)
        self._matmul(x, weight, bias, before)
        if kind == "gelu_tanh":
            self._must("gelu", {"x": before, "out": out}, dims_of(before))
        elif kind == "relu":
            flat = {"x": before.view(-1), "out": out.view(-1)}
            self._must("relu", flat, {"N": before.numel()})
        else:  # no ladder has the erf form
            self._steps.append(lambda: out.copy_(F.gelu(before)))
        return out

    def _norm(self, x: torch.Tensor, names: tuple[str, str], layer: int | None) -> torch.Tensor:
        out = self._buffer("normed", *x.shape)
        weight, bias = (self._aligned(name, layer) for name in names)
        self._must(
            "layernorm", {"x": x, "weight": weight, "bias": bias, "out": out}, {**dims_of(x), "eps": self.config.eps}
        )
        return out

    def _matmul(self, x: torch.Tensor, weight: torch.Tensor, bias: torch.Tensor | None, out: torch.Tensor) -> None:
        tensors = {"x": x, "weight": weight, "out": out} | ({} if bias is None else {"bias": bias})
        self._must("matmul", tensors, {**dims_of(x), "OC": weight.shape[0]})

    # ---- kernels without a ladder
    # -------------------------------------------------------------------------------------

    def _store_kv(self, qkv: torch.Tensor, first: int, layers: int) -> None:
        c = self.config
        eight = "k_cache_q" in self.t
        caches = [self.t[name][first : first + layers] for name in (EIGHT_BIT_CACHES if eight else CACHES)]
        sizes = (layers, self.B, self.T, c.NH, c.HS, self.capacity)
        if eight:
            lanes = layers * self.B * self.T * 2 * c.C // 16
            self._launch("keep_in_eight_bits", -(-lanes // THREADS), [qkv, *caches], sizes)
            return
        numbers = layers * self.B * self.T * 2 * c.C
        vector = 16 // self._real.size
        if c.HS % vector == 0:
            numbers //= vector
        self._launch("keep", -(-numbers // THREADS), [qkv, *caches], sizes)

    def _last(self, y: torch.Tensor, x: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
        shape = (self.B, 1, self.config.C)
        found = self._buffer("last attended", *shape), self._buffer("last of the stream", *shape)
        self._launch("last", self.B, [y, x, self.t["lengths"], *found], (self.T, self.config.C))
        return found

    def _launch(self, kernel: str, blocks: int, tensors: list[torch.Tensor], sizes: tuple[int, ...]) -> None:
        module = load_module(build(self._real), self._device)
        config = LaunchConfig(grid=(blocks, 1, 1), block=(THREADS, 1, 1), pdl=True)
        arguments: list[Argument] = [*(("pointer", t) for t in tensors), *(("i32", n) for n in sizes)]
        module.prepare(kernel, config)
        self._steps.append(module.bind(kernel, config, arguments))

    # ---- which rung ---------------------------------------------------------------------------------------------

    def _must(self, operation: str, tensors: Tensors, dims: Mapping[str, Number]) -> None:
        result = self._op(operation, tensors, dims, (*self._rungs.get(operation, ()), *last_resort(operation)))
        assert result, f"no rung of {operation} takes {dims}"

    def _op(
        self, operation: str, tensors: Tensors, dims: Mapping[str, Number], names: tuple[str, ...] | None = None
    ) -> bool:
        """Append the operation, with the first named rung that supports it; False if none does."""
        values = catalogue.operation(ladder_of(operation)).complete(dims)
        for name in self._rungs.get(operation, ()) if names is None else names:
            rung = find(operation, name)
            if not self._takes(rung, values, tensors):
                continue
            tuning = self._tuning(operation, rung, values)
            prepared = rung.prepare(tensors, values, self._real, device=self._device, tuning=tuning)
            self._steps.append(prepared.run)
            self.rungs_in_use.setdefault(operation, rung.full_name)
            return True
        return False

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
        if "SHARE" in rung.tune:
            rows, columns, depth = (int(values[n]) for n in ("T", "OC", "C"))
            return for_few_rows(tuple(rung.tune.items()), self.B * rows, columns, depth, device_facts(self._device)[1])
        if {"BM", "BN", "num_warps"} <= rung.tune.keys() and "OC" in values:
            rows, columns, depth = (int(values[n]) for n in ("T", "OC", "C"))
            return tiles(rung.tune, self.B * rows, columns, depth, device_facts(self._device)[1])
        return None

    # ---- memory -------------------------------------------------------------------------------------------------

    def _linear(self, name: str, layer: int) -> tuple[torch.Tensor, torch.Tensor]:
        return self._aligned(f"{name}_w", layer), self._aligned(f"{name}_b", layer)

    def _aligned(self, name: str, layer: int | None = None) -> torch.Tensor:
        """A weight that the next step reads."""
        group = {"wte": 0, "wpe": 0}.get(name, 1 + (self.config.layers if layer is None else layer))
        if group > self._gated:
            self._gates[len(self._steps)] = self._gated = group
        return aligned(self.t[name] if layer is None else self.t[name][layer])

    def _buffer(self, name: str, *shape: int, dtype: torch.dtype | None = None) -> torch.Tensor:
        key = f"{name} {shape}"
        if key not in self._buffers:
            self._buffers[key] = torch.empty(shape, dtype=dtype or self._real.torch, device=self._where)
        return self._buffers[key]


def build(real: Dtype) -> Build:
    """The kernels without a ladder."""
    source = Path(__file__).with_name("prefill.cu")
    return Build(
        source=source.read_text(encoding="utf-8"),
        origin=str(source),
        kernels=("keep", "keep_in_eight_bits", "last"),
        defines=((real.macro, "1"),),
        include=(str(INCLUDE),),
    )
