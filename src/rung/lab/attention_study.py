"""Text without a cache in float32, attention rung by rung: how a case study of flash attention measured its steps.

Every token sends the whole text through the model again, so that attention over all positions counts. All
other operations go through torch.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator, Sequence
from typing import Any

import torch
import torch.nn.functional as F

from rung import catalogue
from rung.errors import RungError
from rung.gpt2.cache import Cache
from rung.gpt2.config import Config
from rung.gpt2.ladder_plan import LadderPlan
from rung.gpt2.model import Transformer
from rung.gpt2.torch_plan import TorchPlan
from rung.gpt2.weights import Weights
from rung.kernel import Device
from rung.lab.generation import converted

Row = dict[str, Any]
MARKS = (64, 128, 256, 512, 1024)  # tokens of text at which the time of a token is told


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


def run(
    config: Config,
    weights: Weights,
    prompt: Sequence[int],
    tokens: int,
    *,
    device: Device = "cuda",
    progress: Callable[[str], None] = lambda text: None,
) -> list[Row]:
    """A row for naive torch, torch's scaled_dot_product_attention and every rung of attention that takes float32."""
    if len(prompt) + tokens > config.context:
        raise RungError(f"{tokens} tokens behind the prompt are more than the context of {config.context}.")
    where = torch.device("cuda" if device == "cuda" else "cpu")
    torch_plans = [
        ("naive torch", NaivePlan(where, torch.float32, torch.float32)),
        ("torch SDPA", TorchPlan(where, torch.float32, torch.float32)),
    ]
    ways: list[tuple[str, Callable[[], TorchPlan]]] = [(name, lambda p=p: p) for name, p in torch_plans]  # type: ignore[misc]
    for rung in catalogue.rungs("attention", libraries=False):
        if "f32" in rung.dtypes:
            chosen = {"attention": rung.name}
            ways.append((rung.name, lambda c=chosen: LadderPlan(device, "float32", "study", c)))  # type: ignore[misc]
    rows: list[Row] = []
    truth: list[int] = []
    for name, make in ways:
        row: Row = {"name": name, "tokens": tokens, "verdict": "ok", "seconds": None}
        try:
            plan = make()
            model = Transformer(config, converted(weights, plan), plan)
            written = [token for token, _ in _write(model, prompt, tokens)]  # compiles, allocates, warms up
            truth = truth or written
            same = next((i for i, (a, b) in enumerate(zip(written, truth, strict=True)) if a != b), tokens)
            row["same"] = same
            if same < min(tokens, 128):
                row["verdict"] = f"its text leaves naive torch's at token {same + 1}"
            else:
                began = time.perf_counter()
                stamps = [stamp - began for _, stamp in _write(model, prompt, tokens)]
                row["seconds"] = stamps[-1]
                row["at"] = {
                    str(n): stamps[n - len(prompt) - 1] for n in MARKS if len(prompt) < n <= len(prompt) + tokens
                }
                row["curve"] = stamps[:: max(1, tokens // 64)]
        except (RungError, RuntimeError) as error:
            row["verdict"] = str(error).splitlines()[0][:200]
        progress(f"{name}: {row['seconds']:.2f} s" if row["seconds"] else f"{name}: {row['verdict']}")
        rows.append(row)
    return rows


@torch.inference_mode()
def _write(model: Transformer, prompt: Sequence[int], tokens: int) -> Iterator[tuple[int, float]]:
    ids = torch.zeros(1, len(prompt) + tokens, dtype=torch.int64, device=model.plan.device)
    ids[0, : len(prompt)] = torch.tensor(list(prompt))
    for end in range(len(prompt), len(prompt) + tokens):
        x = model.hidden(ids[:, :end])[:, -1:]
        ids[:, end] = model.plan.matmul(x, model.weights.head)[:, 0].argmax(-1)
        yield int(ids[0, end]), time.perf_counter()
