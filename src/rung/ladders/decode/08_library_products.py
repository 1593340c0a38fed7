"""The products of many sequences are the library's, chosen for each shape; five kernels of ours compute the rest.

In attention, persistent blocks stream the cached keys and values of whole heads, through one ring per warp.
"""
# Bias and activation are the library's epilogues. The MLP's second product, deep and narrow, is computed in parts,
# which the following norm adds up. Attention reads the packed query, key and value, and writes the key and value into
# the caches; its first copies start before the product is finished. The head is our own product in Triton, because rows
# of logits begin at any address, which costs the library much of its speed; each tile's maximum is computed before the
# tile is stored.

from __future__ import annotations

import math
from collections import OrderedDict
from functools import cache
from pathlib import Path
from types import SimpleNamespace

import torch
import triton
import triton.language as tl
from torch.nn import functional

from gpuless.facts.limits import limits
from gpuless.launch import Build, LaunchConfig
from rung.dtypes import dtype as named_dtype
from rung.rungs.cuda import INCLUDE

EXPECT = (
    "At 256 sequences of 200 tokens on an H200 some 850 us per step against 1843 us for rung 7, of which attention is "
    "37 to 40 us per layer. At 64 sequences attention gains most from having all blocks resident at once: 11 us per "
    "layer instead of 14.2, and a step of about 500 us instead of 642 us (08.md)."
)
FOUND = (
    "On an H200, gpt2 in bf16: 259,320 tokens/s at 256 sequences (transformers static + compile 98,875 in the "
    "same run), 120,730 at 64 (36,719). Each of these gained 2 to 3 %: persistent blocks for attention, copies with "
    "the evict-first policy, the deep product in four parts, Triton's head. More bytes in flight, and prefetching keys "
    "into L2, were slower (08.md)."
)
PROVENANCE = "ours, over cuBLAS; products by the library are what any framework does"
FROM = "decode/7"
REWRITE = (
    "The products are the library's, so that the rung is a program that calls it, with the parent's kernels in between."
)
DTYPES = ("bf16", "f16")
NEEDS = (
    "sm >= 80",
    "C % 8 == 0 and F % 8 == 0",
    "HS % 8 == 0 and 32 % (HS // 8) == 0",
    "B <= 65535",
    "KEY_WARPS * KEY_SLOTS * KEY_LOADS <= 224",  # KB of shared memory
    "(128 + HEAD_N) * HEAD_K * 2 * HEAD_STAGES <= 227 * 1024",
)
TUNE = {
    "KEY_WARPS": (16, 8, 12, 24),  # per block; one block per multiprocessor
    "KEY_LOADS": (4, 8, 2),  # 16-byte pieces of a chunk's keys per lane: 4 make 16 keys of 64 numbers
    "KEY_SLOTS": (2, 4, 3),  # chunks in flight per warp, of KEY_LOADS KB with their values
    "FC2_SPLIT": (4, 1, 2, 3, 6),  # parts of the MLP's second product, which is deep and narrow
    "HEAD_N": (128, 64, 256),
    "HEAD_K": (64, 128, 32),
    "HEAD_WARPS": (8, 4),
    "HEAD_STAGES": (3, 4, 2),
}
BUFFERS = {
    "x": {"shape": ["B", "C"], "dtype": "f32"},
    "n": {"shape": ["B", "C"]},
    "qkv": {"shape": ["B", "3 * C"]},
    "y": {"shape": ["B", "C"]},
    "h": {"shape": ["B", "F"]},
    "product": {"shape": ["FC2_SPLIT", "B", "C"], "dtype": "f32"},
    "best_value": {"shape": ["B", "ceil_div(V, HEAD_N)"], "dtype": "f32"},
    "best_index": {"shape": ["B", "ceil_div(V, HEAD_N)"], "dtype": "i32"},
}

PICK_THREADS = 256
KERNELS = ("embed", "add_norm", "attend", "pick")
SOURCE = Path(__file__).with_name("library_products.cuh")
DIMS = ("B", "L", "C", "NH", "F", "V", "MAXT")
ACTIVATIONS = (lambda x: functional.gelu(x, approximate="tanh"), functional.gelu, functional.relu)
KEPT = 4
_steps: OrderedDict[tuple[object, ...], Step] = OrderedDict()


def run(
    tokens, lengths, wte, wpe, ln1_w, ln1_b, qkv_w, qkv_b, proj_w, proj_b, ln2_w, ln2_b, fc_w, fc_b, fc2_w, fc2_b,
    lnf_w, lnf_b, head_w, k_cache, v_cache, logits, next, x, n, qkv, y, h, product, best_value, best_index,
    B, L, C, NH, HS, F, V, MAXT, eps, scale, act, by_layer, dtype, sm, sms,
    KEY_WARPS, KEY_LOADS, KEY_SLOTS, FC2_SPLIT, HEAD_N, HEAD_K, HEAD_WARPS, HEAD_STAGES,
):  # fmt: skip
    given = dict(locals())
    key = tuple((v.data_ptr(), v.device) if isinstance(v, torch.Tensor) else v for v in given.values())
    if key not in _steps:
        if len(_steps) == KEPT:
            _steps.popitem(last=False)
        _steps[key] = Step(given)
    with torch.inference_mode():
        _steps[key].run()


class Step:
    """All launches of a step, bound once to the arguments of `run`."""

    def __init__(self, given):
        self.t = SimpleNamespace(**given)
        self.module = _module(build(_defines(given)), self.t.x.device)
        self.launches = []
        self._bind()

    def run(self):
        for launch in self.launches:
            launch()

    def _bind(self):
        t, ends = self.t, self.t.L - 1
        begin = [t.tokens, t.lengths, t.wte, t.wpe, t.ln1_w[0], t.ln1_b[0], t.x, t.n]
        self._kernel("embed", (t.B,), _row_threads(t.C), [*begin, ("f32", t.eps)])
        for layer in range(t.L):
            self._affine(t.n, t.qkv_w[layer], t.qkv_b[layer], t.qkv)
            scale = t.scale / (layer + 1 if t.by_layer else 1)
            rows = [t.lengths, t.qkv, t.k_cache, t.v_cache, t.y, ("i32", layer), ("f32", scale)]
            self._kernel("attend", (min(t.sms, t.B * t.NH),), t.KEY_WARPS * 32, rows, _ring_bytes(vars(t)))
            self._multiply(t.y, t.proj_w[layer], t.product[0])
            self._add_norm(1, t.proj_b[layer], t.ln2_w[layer], t.ln2_b[layer])
            self._affine(t.n, t.fc_w[layer], t.fc_b[layer], t.h, act=t.act)
            self._multiply_parts(t.h, t.fc2_w[layer], t.product[: _split(vars(t))])
            norm = (t.lnf_w, t.lnf_b) if layer == ends else (t.ln1_w[layer + 1], t.ln1_b[layer + 1])
            self._add_norm(_split(vars(t)), t.fc2_b[layer], *norm)
        self._head()

    def _add_norm(self, parts, bias, gain, shift):
        t = self.t
        rows = [t.product, ("i32", parts), bias, gain, shift, t.x, t.n, ("f32", t.eps)]
        self._kernel("add_norm", (t.B,), _row_threads(t.C), rows)

    def _head(self):
        t = self.t
        slots = t.best_value.shape[1]
        tile = {"BM": _head_rows(t.B), "BN": t.HEAD_N, "BK": t.HEAD_K}
        grid = (triton.cdiv(t.B, tile["BM"]) * slots,)
        x, weight, engine = t.n, t.head_w, t.sm >= 90
        if engine:
            from triton.tools.tensor_descriptor import TensorDescriptor

            x = TensorDescriptor.from_tensor(x, [tile["BM"], tile["BK"]])
            weight = TensorDescriptor.from_tensor(weight, [tile["BN"], tile["BK"]])
        given = (x, weight, t.logits, t.best_value, t.best_index, t.B, t.V, t.C, slots)
        how = {**tile, "DESCRIPTORS": engine, "num_warps": t.HEAD_WARPS, "num_stages": t.HEAD_STAGES}
        self.launches.append(lambda: head[grid](*given, **how))
        self._kernel("pick", (t.B,), PICK_THREADS, [t.best_value, t.best_index, t.next, ("i32", slots)])

    # ---- launches -----------------------------------------------------------------------------------------------

    def _kernel(self, name, grid, threads, given, shared=0):
        config = LaunchConfig(grid=(*grid, 1, 1)[:3], block=(threads, 1, 1), shared=shared, pdl=True)
        self.module.prepare(name, config)
        arguments = [("pointer", a) if isinstance(a, torch.Tensor) else a for a in given]
        self.launches.append(self.module.bind(name, config, arguments))

    def _multiply(self, x, w, out):
        call = multiply if x.device.type == "cuda" else multiply_on_cpu
        self.launches.append(lambda: call(x, w, out))

    def _multiply_parts(self, x, w, out):
        if len(out) == 1:
            self._multiply(x, w, out[0])
            return
        x, w = (t.view(len(t), len(out), -1).transpose(0, 1) for t in (x, w))
        self._multiply(x, w, out)

    def _affine(self, x, w, bias, out, act=None):
        call = affine if x.device.type == "cuda" else affine_on_cpu
        self.launches.append(lambda: call(x, w, bias, out, act))


def _defines(given):
    defines = {named_dtype(given["dtype"]).macro: 1, **{f"DIM_{name}": given[name] for name in DIMS}}
    defines |= {name: given[name] for name in ("KEY_WARPS", "KEY_LOADS", "FC2_SPLIT")} | {"KEY_SLOTS": _slots(given)}
    return defines | {"ROW_THREADS": _row_threads(given["C"])}


def build(defines):
    """The kernels for one shape, number format and choice of launch parameters."""
    return Build(
        source=SOURCE.read_text(encoding="utf-8"),
        origin=str(SOURCE),
        kernels=KERNELS,
        defines=tuple(sorted((name, str(value)) for name, value in defines.items())),
        include=(str(INCLUDE), str(SOURCE.parent)),
    )


@cache
def _module(build, device):
    if device.type == "cuda":
        from rung.cuda.driver import load_module

        with torch.cuda.device(device):
            return load_module(build)
    import gpuless

    return gpuless.load(build)


def _slots(given):
    """Slots of each warp's ring: as tuned, or fewer on a GPU with less shared memory."""
    room = limits(f"sm_{given['sm']}").shared_block // 1024 - 1  # the last is for the barriers
    return max(1, min(given["KEY_SLOTS"], room // (given["KEY_WARPS"] * given["KEY_LOADS"])))


def _ring_bytes(given):
    return given["KEY_WARPS"] * _slots(given) * given["KEY_LOADS"] * 1024


def _split(given):
    """The number of parts of the second product, each of aligned depth: as tuned, or the next smaller possible one."""
    return next(n for n in range(given["FC2_SPLIT"], 0, -1) if given["F"] % (8 * n) == 0)


def _row_threads(C):
    return min(1024, math.ceil(C / 4 / 32) * 32)


def _head_rows(B):
    return 128 if B > 64 else max(16, triton.next_power_of_2(B))


# ---- the head -------------------------------------------------------------------------------------------------------


@triton.jit
def head(
    x, weight, logits, best_value, best_index, B, V, C, SLOTS,
    BM: tl.constexpr, BN: tl.constexpr, BK: tl.constexpr, DESCRIPTORS: tl.constexpr,
):  # fmt: skip
    tiles_m = tl.cdiv(B, BM)
    m, n = tl.program_id(0) % tiles_m, tl.program_id(0) // tiles_m
    rows, columns = m * BM + tl.arange(0, BM), n * BN + tl.arange(0, BN)
    total = tl.zeros((BM, BN), dtype=tl.float32)
    if DESCRIPTORS:
        for c in range(0, C, BK):
            total = tl.dot(x.load([m * BM, c]), weight.load([n * BN, c]).T, total)
    else:
        depth = tl.arange(0, BK)
        # A row beyond the end reads the last one; what it gives is never stored.
        x_at = x + tl.minimum(rows, B - 1).to(tl.int64)[:, None] * C + depth[None, :]
        w_at = weight + tl.minimum(columns, V - 1).to(tl.int64)[None, :] * C + depth[:, None]
        for c in range(0, C, BK):
            inside = depth < C - c
            a = tl.load(x_at + c, mask=inside[None, :], other=0.0)
            total = tl.dot(a, tl.load(w_at + c, mask=inside[:, None], other=0.0), total)
    total = tl.where((columns < V)[None, :], total, -float("inf"))
    at = logits + rows.to(tl.int64)[:, None] * V + columns[None, :]
    tl.store(at, total, mask=(rows < B)[:, None] & (columns < V)[None, :])
    top = tl.max(total, axis=1)
    first = tl.min(tl.where(total == top[:, None], columns[None, :], V - 1), axis=1)
    tl.store(best_value + rows * SLOTS + n, top, mask=rows < B)
    tl.store(best_index + rows * SLOTS + n, first, mask=rows < B)


# ---- products -------------------------------------------------------------------------------------------------------


def multiply(x, w, out):
    """out = x w^T, in float32; of several such products at once, if there are three dimensions."""
    call = torch.ops.aten.mm.dtype_out if x.dim() == 2 else torch.ops.aten.bmm.dtype_out
    call(x, w.mT, torch.float32, out=out)


def affine(x, w, bias, out, act):
    """out = activation(x w^T + bias); GELU by tanh and ReLU are the library's epilogues, as the bias is."""
    if act in (0, 2):
        torch.ops.aten._addmm_activation.out(bias, x, w.t(), use_gelu=act == 0, out=out)
        return
    torch.addmm(bias, x, w.t(), out=out)
    if act == 1:
        torch.ops.aten.gelu.out(out, out=out)


# As on tensor cores: sums in float32, rounded once at the end. The CPU's own products do not guarantee this.


def multiply_on_cpu(x, w, out):
    torch.matmul(x.float(), w.float().mT, out=out)


def affine_on_cpu(x, w, bias, out, act):
    sums = torch.addmm(bias.float(), x.float(), w.float().t())
    if act == 1:
        sums = sums.to(out.dtype).float()  # there is no epilogue with erf
    out.copy_(sums if act is None else ACTIVATIONS[act](sums))
