"""Text without a cache in float32, attention rung by rung: how a case study of flash attention measured its steps.

Every token sends the whole text through the model again, so that attention over all positions is measured. All
other operations go through torch. A slow variant writes as many tokens as fit its time.
"""

from __future__ import annotations

import gc
import math
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

import torch
import torch.nn.functional as F

from rung.arrays import dtype_of
from rung.dtypes import dtype as named_dtype
from rung.errors import RungError, first_line
from rung.models.cache import Cache
from rung.models.family import Attention, Config
from rung.models.ladder_plan import SHORT_NAMES, LadderPlan
from rung.models.plan import Plan, TorchPlan, heads_of
from rung.models.transformer import Transformer
from rung.models.weights import Linear, Norm, Weights, converted
from rung.operation import Tensors, Values
from rung.profile.trace import kernel_seconds
from rung.results import machine
from rung.results.row import Row
from rung.rungs import catalogue, identity, tunings
from rung.rungs.base import Device, Prepared, Rung
from rung_reproduce.climbs.model import IDENTICAL
from rung_reproduce.show.attention_text_chart import KERNELS

NEAR = 0.03  # of the norm, by which logits of 16-bit variants may differ
MARKS = (64, 128, 256, 512, 1024)  # lengths of text at which the elapsed time is reported
POINTS = 64  # of a curve, approximately
STRIDE = 16  # of the lengths of text whose kernels are timed
Fields = dict[str, Any]


class NaivePlan(TorchPlan):
    """Attention by its formula, with the matrix of scores in memory."""

    name = "naive torch"

    def attention(self, qkv: torch.Tensor, how: Attention, layer: int, cache: Cache | None) -> torch.Tensor:
        B, T, width = qkv.shape
        q, k, v = heads_of(qkv, how)
        scores = q @ k.transpose(2, 3) * how.scale
        later = torch.ones(T, T, dtype=torch.bool, device=qkv.device).triu(1)
        y = F.softmax(scores.masked_fill(later, -torch.inf), -1) @ v
        return y.transpose(1, 2).reshape(B, T, width // 3)


class RungPlan(LadderPlan):
    """Attention by a rung. The packed QKV product is written to the rung's input, which avoids a copy.

    Texts of all lengths use the memory of the longest one, which has to come first: a peak is then that of its pass.
    """

    def __init__(self, device: Device, chosen: Mapping[str, str], dtype: str = "float32") -> None:
        super().__init__(device, dtype, "study", chosen)
        self._memory: dict[str, torch.Tensor] = {}

    def _allocate(self, label: str, shape: tuple[int, ...], dtype: torch.dtype) -> torch.Tensor:
        name = f"{label} {shape[0]} {shape[2:]} {dtype}"  # without the length, which is constant within a pass
        return self._part(name, shape, dtype)

    def _bind(self, rung: Rung, given: Tensors, values: Values) -> Prepared:
        def empty(name: str, shape: tuple[int, ...], kind: str) -> torch.Tensor:
            return self._part(f"{rung.full_name} {name} {kind}", shape, dtype_of(kind, torch))

        real = self._format(rung)
        tuning = tunings.best(rung, values, real.name) if self.on == "cuda" else None
        return rung.prepare(given, values, real, device=self._device, tuning=tuning, empty=empty)

    def _part(self, name: str, shape: tuple[int, ...], dtype: torch.dtype) -> torch.Tensor:
        count = math.prod(shape)
        if name not in self._memory or self._memory[name].numel() < count:
            self._memory[name] = torch.empty(count, dtype=dtype, device=self.device)
        return self._memory[name][:count].view(shape)

    def layernorm_matmul(self, x: torch.Tensor, norm: Norm, eps: float, linear: Linear) -> torch.Tensor:
        assert linear.bias is not None
        B, T, C = x.shape
        qkv = self._output("qkv", (B, T, 3 * C))
        normed = self.layernorm(x, norm, eps).view(B * T, C)
        torch.addmm(linear.bias, normed, linear.weight.T, out=qkv.view(B * T, 3 * C))
        return qkv


@dataclass(frozen=True)
class Variant:
    """One variant of attention."""

    name: str
    make: Callable[[], Plan]
    what: str = ""
    kind: str = "torch"  # or a rung's kind: "python" runs on the host
    flash: bool = False
    rung: Rung | None = None


def variants(device: Device, only: Sequence[str] | None = None, dtype: str = "float32") -> list[Variant]:
    """Naive torch, torch's scaled_dot_product_attention, and every rung that takes the dtype, or `only` these."""
    where, real = torch.device("cuda" if device == "cuda" else "cpu"), named_dtype(SHORT_NAMES[dtype])
    found = [
        Variant("naive torch", lambda: NaivePlan(where, real.torch, real.torch), "The formula, scores in memory."),
        Variant("torch SDPA", lambda: TorchPlan(where, real.torch, real.torch), "torch's fused attention."),
    ]
    if only is None:
        rungs = [rung for rung in catalogue.rungs("attention", libraries=False) if real.name in rung.dtypes]
    else:
        rungs = [catalogue.find(f"attention/{name}") for name in only]
    return [*found, *(_of_rung(rung, device, dtype) for rung in rungs)]


def _of_rung(rung: Rung, device: Device, dtype: str) -> Variant:
    # Only the flash attention kernels can return each row's logsumexp.
    flash = rung.kind in ("cuda", "triton") and "lse" in rung.binds
    chosen = {"attention": rung.name}
    return Variant(rung.name, lambda: RungPlan(device, chosen, dtype), rung.idea, rung.kind, flash, rung)


def run(
    config: Config,
    weights: Weights,
    prompt: Sequence[int],
    tokens: int,
    chosen: Sequence[Variant],
    *,
    batch: int = 1,
    seconds: float = 12.0,
    model: str = "gpt2",
    trained: str = "random",
    dtype: str = "float32",
) -> Iterator[Row]:
    """A row for each variant, as soon as it is measured, and one of its kernels' time and of its memory, which do not
    depend on the host; the others are compared with the first.

    A `batch` writes this many copies of the text at once; all its rows must be the same.
    In another dtype than float32 all read the first one's text, and their logits must be near.
    Each writes the text once to warm up, for at most `seconds`, and then as many tokens again by the clock.
    None writes more tokens than the first, which the others are compared with.
    """
    if len(prompt) + tokens > config.context:
        raise RungError(f"{tokens} tokens after the prompt are more than the context of {config.context}.")
    study = _Study(config, weights, prompt, tokens, seconds, batch, exact=dtype == "float32")
    for step, variant in enumerate(chosen):
        row: Fields = {
            "name": variant.name, "what": variant.what, "kind": variant.kind, "flash": variant.flash,
            "tokens": tokens, "batch": batch, "written": 0, "verdict": "ok", "seconds": None,
        }  # fmt: skip
        try:
            study.measure(variant, row)
        except (RungError, RuntimeError) as error:
            row["verdict"] = first_line(error)
        gc.collect()
        if study.cuda:
            torch.cuda.empty_cache()  # buffers of every length of text
        result = _result(model, trained, step, variant, row, dtype)
        yield result
        if "kernels" in row:
            options, detail = {**result.options, "study": KERNELS}, {"step": step, "idea": variant.what}
            alone = replace(result, options=options, detail=detail, metrics={})
            yield alone.with_metrics(tokens=row["written"], kernel_seconds=row["kernels"], peak_bytes=row["peak"])
        if not study.stamps:
            return  # the others are compared with the first one's text and time


def _result(model: str, trained: str, step: int, variant: Variant, found: Fields, dtype: str) -> Row:
    """A variant as the results store keeps it."""
    right = found["verdict"] == "ok"
    several = {"batch": found["batch"]} if found["batch"] > 1 else {}
    detail = {"step": step, "idea": variant.what, "language": variant.kind, "flash": variant.flash}
    row = Row(
        kind="climb", what=model, part=variant.name, dtype=dtype, weights=trained,
        options={"study": "attention", "new_tokens": found["tokens"], **several},
        texts={variant.rung.full_name: identity.text(variant.rung)} if variant.rung else {},
        verdict="ok" if right else "failed", reason="" if right else found["verdict"],
        detail={**detail, **{name: found[name] for name in ("at", "curve") if name in found}},
        machine=machine.facts(), state=machine.state(),
    )  # fmt: skip
    figures = {"tokens": found["written"] or None, "seconds": found["seconds"], "vs_naive": found.get("against_naive")}
    return row.with_metrics(**figures, same_tokens=found.get("same"))


class _Study:
    def __init__(
        self,
        config: Config,
        weights: Weights,
        prompt: Sequence[int],
        tokens: int,
        seconds: float,
        batch: int,
        exact: bool,
    ) -> None:
        self.batch, self.exact = batch, exact
        self.config, self.weights, self.prompt, self.tokens, self.seconds = config, weights, prompt, tokens, seconds
        self.truth: list[int] = []  # the first variant's text, and the time of each of its tokens
        self.stamps: list[float] = []
        self.logits: torch.Tensor | None = None
        self.cuda = False

    def measure(self, variant: Variant, row: Fields) -> None:
        """Fill in the measurements; a variant whose text differs gets no time."""
        plan = variant.make()
        self.cuda = plan.device.type == "cuda"
        model = Transformer(self.config, converted(self.weights, plan.matrix, plan.vector), plan)
        first = not self.stamps
        if self.cuda:
            self._passes(model, [len(self.prompt) + self.tokens])
        if not self.exact and not self._near(model, row):
            return
        written = self._warm(model, len(self.truth) or self.tokens)
        self.truth = self.truth or written
        if not self._writes_the_same(written, row):
            return
        if self.cuda:
            torch.cuda.reset_peak_memory_stats()
        began = time.perf_counter()
        timed = list(_write(model, self.prompt, len(written), self.batch, self._given))
        if self.cuda:
            row["peak"] = torch.cuda.max_memory_allocated()  # weights and all
        if not self._writes_the_same([token for token, _ in timed], row):
            return
        stamps = [stamp - began for _, stamp in timed]
        if first:
            self.stamps = stamps
        start = len(self.prompt)
        row["written"], row["seconds"] = len(stamps), stamps[-1]
        row["against_naive"] = self.stamps[len(stamps) - 1] / stamps[-1]  # at the same length of text
        row["at"] = {str(n): stamps[n - start - 1] for n in MARKS if start < n <= start + len(stamps)}
        row["curve"] = _curve(start, stamps)
        if self.cuda:
            lengths = range(start + min(STRIDE, len(stamps)) // 2, start + len(stamps), STRIDE)
            row["kernels"] = len(stamps) * kernel_seconds(lambda: self._passes(model, lengths))

    @torch.inference_mode()
    def _passes(self, model: Transformer, lengths: Sequence[int]) -> int:
        """Forward passes over texts of these lengths: how many."""
        for length in lengths:
            ids = torch.zeros(self.batch, length, dtype=torch.int64, device=model.plan.device)
            model.plan.matmul(model.hidden(ids)[:, -1:], model.weights.head)
        return len(lengths)

    @property
    def _given(self) -> Sequence[int]:
        """Low precision decides near ties at random: then all variants are given the first one's text."""
        return () if self.exact else self.truth

    @torch.inference_mode()
    def _near(self, model: Transformer, row: Fields) -> bool:
        """Whether the logits after the prompt are the first variant's, within the rounding of 16 bits."""
        ids = torch.tensor([self.prompt], device=model.plan.device)
        logits = model.plan.matmul(model.hidden(ids)[:, -1:], model.weights.head).double().cpu()
        if self.logits is None:
            self.logits = logits
        off = float((logits - self.logits).norm() / self.logits.norm())
        if not off <= NEAR:
            row["verdict"] = f"its logits differ from naive torch's by {off:.2g} of their norm"
        return bool(off <= NEAR)

    def _warm(self, model: Transformer, most: int) -> list[int]:
        """Writes as much of the text as the time allows; compiles and allocates on the way."""
        written: list[int] = []
        end = math.inf
        for token, stamp in _write(model, self.prompt, most, self.batch, self._given):
            if not written:
                end = stamp + self.seconds  # compile time is not counted: kernels are compiled for the first token
            written.append(token)
            if stamp >= end:
                break
        return written

    def _writes_the_same(self, written: Sequence[int], row: Fields) -> bool:
        pairs = zip(written, self.truth, strict=False)
        row["same"] = next((i for i, (a, b) in enumerate(pairs) if a != b), len(written))
        right = not self.exact or bool(row["same"] >= min(len(written), IDENTICAL))
        if not right:
            row["verdict"] = f"its text differs from naive torch's at token {row['same'] + 1}"
        return right


@torch.inference_mode()
def _write(
    model: Transformer, prompt: Sequence[int], tokens: int, batch: int = 1, given: Sequence[int] = ()
) -> Iterator[tuple[int, float]]:
    """Each token of the first row, and its time; -1 where another row's differs. A given text is read on instead."""
    ids = torch.zeros(batch, len(prompt) + tokens, dtype=torch.int64, device=model.plan.device)
    ids[:, : len(prompt)] = torch.tensor(list(prompt))
    for end in range(len(prompt), len(prompt) + tokens):
        x = model.hidden(ids[:, :end])[:, -1:]
        ids[:, end] = model.plan.matmul(x, model.weights.head)[:, 0].argmax(-1)
        first, *others = ids[:, end].tolist()
        if given:
            ids[:, end] = given[end - len(prompt)]
        yield (first if others.count(first) == len(others) else -1), time.perf_counter()


def _curve(start: int, stamps: Sequence[float]) -> list[tuple[int, float]]:
    """Tokens of text and seconds, from the prompt to the last token."""
    step = max(1, len(stamps) // POINTS)
    steps = sorted({*range(step - 1, len(stamps), step), len(stamps) - 1})
    return [(start, 0.0), *((start + i + 1, stamps[i]) for i in steps)]
