"""Text without a cache in float32, attention rung by rung: how a case study of flash attention measured its steps.

Every token sends the whole text through the model again, so that attention over all positions counts. All
other operations go through torch. A way of attention that is slow writes as many tokens as fit its time.
"""

from __future__ import annotations

import gc
import math
import re
import time
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from typing import Any

import torch
import torch.nn.functional as F

from rung.climb.model import IDENTICAL
from rung.errors import RungError
from rung.gpt2.cache import Cache
from rung.gpt2.config import Config
from rung.gpt2.ladder_plan import LadderPlan
from rung.gpt2.model import Transformer
from rung.gpt2.torch_plan import TorchPlan
from rung.gpt2.weights import Linear, Norm, Weights, converted
from rung.rungs import catalogue
from rung.rungs.base import Device, Rung
from rung.show import charts
from rung.show.charts import Bar, Mark, Panel, Series

Row = dict[str, Any]
MARKS = (64, 128, 256, 512, 1024)  # tokens of text at which the time so far is told
POINTS = 64  # of a curve, about


class NaivePlan(TorchPlan):
    """Attention as its formula reads, the matrix of scores in memory."""

    name = "naive torch"

    def attention(self, qkv: torch.Tensor, NH: int, scale: float, layer: int, cache: Cache | None) -> torch.Tensor:
        B, T, width = qkv.shape
        q, k, v = qkv.view(B, T, 3, NH, width // (3 * NH)).permute(2, 0, 3, 1, 4).unbind()
        scores = q @ k.transpose(2, 3) * scale
        later = torch.ones(T, T, dtype=torch.bool, device=qkv.device).triu(1)
        y = F.softmax(scores.masked_fill(later, -torch.inf), -1) @ v
        return y.transpose(1, 2).reshape(B, T, width // 3)


class RungPlan(LadderPlan):
    """Attention by a rung. The packed product goes where the rung read it before, else it would be copied there."""

    def layernorm_matmul(self, x: torch.Tensor, norm: Norm, eps: float, linear: Linear) -> torch.Tensor:
        assert linear.bias is not None
        B, T, C = x.shape
        qkv = self._output("qkv", (B, T, 3 * C))
        normed = self.layernorm(x, norm, eps).view(B * T, C)
        torch.addmm(linear.bias, normed, linear.weight.T, out=qkv.view(B * T, 3 * C))
        return qkv


@dataclass(frozen=True)
class Way:
    """One way to compute attention."""

    name: str
    make: Callable[[], TorchPlan]
    what: str = ""
    kind: str = "torch"  # or that of a rung: "python" is the one that runs on the host
    flash: bool = False


def ways(device: Device, only: Sequence[str] | None = None) -> list[Way]:
    """Naive torch, torch's scaled_dot_product_attention, and every rung that takes float32, or `only` these."""
    where = torch.device("cuda" if device == "cuda" else "cpu")
    found = [
        Way("naive torch", lambda: NaivePlan(where, torch.float32, torch.float32), "The formula, scores in memory."),
        Way("torch SDPA", lambda: TorchPlan(where, torch.float32, torch.float32), "torch's fused attention."),
    ]
    if only is None:
        rungs = [rung for rung in catalogue.rungs("attention", libraries=False) if "f32" in rung.dtypes]
    else:
        rungs = [catalogue.find(f"attention/{name}") for name in only]
    return [*found, *(_of_rung(rung, device) for rung in rungs)]


def _of_rung(rung: Rung, device: Device) -> Way:
    # Of the kernels only flash attention has each row's logsumexp at hand, and can give it.
    flash = rung.kind in ("cuda", "triton") and "lse" in rung.binds
    chosen = {"attention": rung.name}
    return Way(rung.name, lambda: RungPlan(device, "float32", "study", chosen), rung.idea, rung.kind, flash)


def run(
    config: Config,
    weights: Weights,
    prompt: Sequence[int],
    tokens: int,
    chosen: Sequence[Way],
    *,
    seconds: float = 12.0,
) -> Iterator[Row]:
    """A row for each way, as soon as it is measured; the first is the one that the others are held against.

    Each writes the text once to warm up, for at most `seconds`, and then as many tokens again by the clock.
    None writes further than the first did: nothing would say whether it is right there.
    """
    if len(prompt) + tokens > config.context:
        raise RungError(f"{tokens} tokens behind the prompt are more than the context of {config.context}.")
    study = _Study(config, weights, prompt, tokens, seconds)
    for way in chosen:
        row: Row = {
            "name": way.name, "what": way.what, "kind": way.kind, "flash": way.flash,
            "tokens": tokens, "written": 0, "verdict": "ok", "seconds": None,
        }  # fmt: skip
        try:
            study.measure(way, row)
        except (RungError, RuntimeError) as error:
            row["verdict"] = (str(error) or type(error).__name__).splitlines()[0][:200]
        gc.collect()
        if study.cuda:
            torch.cuda.empty_cache()  # buffers of every length of text
        yield row
        if not study.stamps:
            return  # without the first one's text and time nothing can be held against it


class _Study:
    def __init__(
        self, config: Config, weights: Weights, prompt: Sequence[int], tokens: int, seconds: float
    ) -> None:
        self.config, self.weights, self.prompt, self.tokens, self.seconds = config, weights, prompt, tokens, seconds
        self.truth: list[int] = []  # the text of the first way, and when each token of it was there
        self.stamps: list[float] = []
        self.cuda = False

    def measure(self, way: Way, row: Row) -> None:
        """Fill in what is measured; of a way whose text is another, no time."""
        plan = way.make()
        self.cuda = plan.device.type == "cuda"
        model = Transformer(self.config, converted(self.weights, plan.matrix, plan.vector), plan)
        first = not self.stamps
        written = self._warm(model, len(self.truth) or self.tokens)
        self.truth = self.truth or written
        if not self._same(written, row):
            return
        began = time.perf_counter()
        timed = list(_write(model, self.prompt, len(written)))
        if not self._same([token for token, _ in timed], row):
            return
        stamps = [stamp - began for _, stamp in timed]
        if first:
            self.stamps = stamps
        start = len(self.prompt)
        row["written"], row["seconds"] = len(stamps), stamps[-1]
        row["against_naive"] = self.stamps[len(stamps) - 1] / stamps[-1]  # at the same length of text
        row["at"] = {str(n): stamps[n - start - 1] for n in MARKS if start < n <= start + len(stamps)}
        row["curve"] = _curve(start, stamps)

    def _warm(self, model: Transformer, most: int) -> list[int]:
        """The text, as far as it gets in time; compiles and allocates on the way."""
        written: list[int] = []
        end = math.inf
        for token, stamp in _write(model, self.prompt, most):
            if not written:
                end = stamp + self.seconds  # kernels are compiled for the first token, which is no fault of theirs
            written.append(token)
            if stamp >= end:
                break
        return written

    def _same(self, written: Sequence[int], row: Row) -> bool:
        pairs = zip(written, self.truth, strict=False)
        row["same"] = next((i for i, (a, b) in enumerate(pairs) if a != b), len(written))
        right = bool(row["same"] >= min(len(written), IDENTICAL))
        if not right:
            row["verdict"] = f"its text leaves naive torch's at token {row['same'] + 1}"
        return right


@torch.inference_mode()
def _write(model: Transformer, prompt: Sequence[int], tokens: int) -> Iterator[tuple[int, float]]:
    ids = torch.zeros(1, len(prompt) + tokens, dtype=torch.int64, device=model.plan.device)
    ids[0, : len(prompt)] = torch.tensor(list(prompt))
    for end in range(len(prompt), len(prompt) + tokens):
        x = model.hidden(ids[:, :end])[:, -1:]
        ids[:, end] = model.plan.matmul(x, model.weights.head)[:, 0].argmax(-1)
        yield int(ids[0, end]), time.perf_counter()


def _curve(start: int, stamps: Sequence[float]) -> list[tuple[int, float]]:
    """Tokens of text and seconds, from the prompt to the last token."""
    step = max(1, len(stamps) // POINTS)
    kept = sorted({*range(step - 1, len(stamps), step), len(stamps) - 1})
    return [(start, 0.0), *((start + i + 1, stamps[i]) for i in kept)]


# ---- shown ----------------------------------------------------------------------------------------------------------


def told(row: Row) -> str:
    """How far it came: 2.80 s, or 19 of 512 tokens in 12.10 s, or why there is no time."""
    if row["seconds"] is None:
        return str(row["verdict"])
    spent = f"{row['seconds']:.2f} s"
    return spent if _whole(row) else f"{row['written']} of {row['tokens']} tokens in {spent}"


def telling(rows: Sequence[Row]) -> list[Row]:
    """At most six rows, no more than curves can be told apart: torch's, the first rung on the GPU, the fastest that
    is no flash attention, the slowest that is, and the fastest of all."""
    timed = [row for row in rows if row["seconds"] is not None]
    kernels = [row for row in timed if row["kind"] in ("cuda", "triton")]
    plain = [row for row in kernels if not row["flash"]]
    flash = [row for row in kernels if row["flash"]]
    found = [row for row in timed if row["kind"] == "torch"][:2] + kernels[:1]
    found += sorted(plain, key=_gain)[-1:] + sorted(flash, key=_gain)[:1] + sorted(kernels, key=_gain)[-1:]
    return list({row["name"]: row for row in found}.values())


def _gain(row: Row) -> float:
    return float(row["against_naive"])


WIDTH = 860.0
COLOURS = ("ink", "library", "limit", "f16", "bf16", "f32")


def chart(model: str, rows: Sequence[Row]) -> str:
    """Time against tokens of text for the rows that tell most, and the time of every row as a bar (an SVG)."""
    some = telling(rows)
    what = f"{rows[0]['tokens']} tokens by {model} in float32, without a cache"
    text = ", ".join(f"{_label(row)} {told(row)}" for row in some)
    top = max((1.1 * row["seconds"] for row in some if _whole(row)), default=math.inf)
    series = [
        Series(
            _label(row) if _whole(row) else f"{_label(row)}: {told(row)}", _up_to(top, row["curve"]), colour
        )
        for row, colour in zip(some, COLOURS, strict=False)
    ]
    above = charts.curves(
        series, title="Time against tokens", description=f"{what}: {text}.",
        x_label="tokens of text", y_label="seconds", width=WIDTH, height=440, log_x=False, log_y=False, marks=False,
    )  # fmt: skip
    if not any(_whole(row) for row in rows):  # bars of different lengths of text would compare nothing
        return above
    return _stacked(above, _bars(what, rows), "Attention rung by rung", f"{what}: {text}.")


def _up_to(top: float, curve: Sequence[tuple[int, float]]) -> list[tuple[float, float]]:
    """A way that was cut off leaves the picture, rather than pressing the others together at its bottom."""
    inside: list[tuple[float, float]] = []
    for n, seconds in curve:
        if seconds > top:
            before, low = inside[-1]
            return [*inside, (before + (n - before) * (top - low) / (seconds - low), top)]
        inside.append((n, seconds))
    return inside


def _whole(row: Row) -> bool:
    return row["seconds"] is not None and bool(row["written"] == row["tokens"])


def _bars(what: str, rows: Sequence[Row]) -> str:
    drawn: list[Bar] = []
    for row in rows:
        gain = "" if row["seconds"] is None else f"{row['against_naive']:.2f}×"
        colour = "library" if row["kind"] == "torch" else "f32"
        notes = (told(row) if row["seconds"] is not None else "no time", gain)
        drawn.append(Bar(_label(row), row["seconds"] if _whole(row) else None, notes, colour, tip=row["what"]))
    naive = [Mark(_label(rows[0]), rows[0]["seconds"], "library", dashed=True)] if drawn[0].value else []
    return charts.bars(
        [Panel(what, drawn, naive)],
        title="Time of every rung", description="A bar for each that wrote all tokens.", unit="seconds",
        columns=("time", "vs naive, same length"), width=WIDTH,
    )  # fmt: skip


def _label(row: Row) -> str:
    return str(row["name"]).replace("_", " ")


def _stacked(above: str, below: str, title: str, description: str) -> str:
    """One picture over another."""
    heights = [float(re.findall(r' height="([\d.]+)"', picture)[0]) for picture in (above, below)]
    canvas = charts.Canvas(WIDTH, sum(heights) + 24)
    canvas.elements += [above, below.replace("<svg ", f'<svg y="{heights[0] + 24:g}" ', 1)]
    return canvas.svg(title, description)
