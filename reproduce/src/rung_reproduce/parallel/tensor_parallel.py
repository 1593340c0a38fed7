"""GPT-2 over several GPUs: each has some of the heads and a part of the MLP.

    torchrun --standalone --nproc-per-node 2 -m rung_reproduce.parallel.tensor_parallel gpt2 --tokens 64

There are two all-reduces per layer, after attention's projection and after the MLP's; embeddings, norms and the head
are computed redundantly by every GPU. The forward pass is the model's own.
"""

from __future__ import annotations

import argparse
import os
import time
from dataclasses import replace
from pathlib import Path
from typing import Any

import torch
import torch.distributed as dist

from rung.errors import RungError
from rung.models import family
from rung.models.cache import Cache
from rung.models.family import Attention, Config, read_config
from rung.models.folders import find
from rung.models.load import Model
from rung.models.plan import Plan, WrappedPlan
from rung.models.plans import make_plan
from rung.models.transformer import Transformer
from rung.models.weights import Linear, Weights, converted, read_weights, weights_of
from rung.models.weights import shard as part_of
from rung_reproduce.parallel.group import Group, joined
from rung_reproduce.parallel.ring import cuts

# Bound on the difference of logits from one GPU's, relative to their norm, due to another order of summation.
AGREEMENT = {"float32": 1e-5, "tf32": 2e-3, "float16": 4e-3, "bfloat16": 3e-2}


class ShardPlan(WrappedPlan):
    """Another plan, on this process's part of the weights."""

    def __init__(self, inner: Plan, rank: int, size: int) -> None:
        super().__init__(inner, f"{inner.name} over {size}")
        self.rank, self.size = rank, size

    def matmul(self, x: torch.Tensor, linear: Linear) -> torch.Tensor:
        if not linear.partial:
            return self.inner.matmul(x, linear)
        y = self.inner.matmul(x, Linear(linear.weight))
        dist.all_reduce(y)
        return y if linear.bias is None else y.add_(linear.bias.to(y.dtype))

    def attention(self, qkv: torch.Tensor, how: Attention, layer: int, cache: Cache | None) -> torch.Tensor:
        ours = cuts(how.NH, self.size)
        return self.inner.attention(qkv, replace(how, NH=ours[self.rank + 1] - ours[self.rank]), layer, cache)


class ShardedTransformer(Transformer):
    """A forward pass whose cache holds this process's heads."""

    def new_cache(self, rows: int, capacity: int) -> Cache:
        c = self.config
        assert isinstance(self.plan, ShardPlan)
        ours = cuts(c.NH, self.plan.size)
        heads = ours[self.plan.rank + 1] - ours[self.plan.rank]
        return Cache(c.layers, rows, heads, capacity, c.HS, getattr(torch, self.plan.cache_dtype), self.plan.device)


def shard(weights: Weights, config: Config, plan: ShardPlan) -> Weights:
    """Converts complete float32 weights to this process's part, in the plan's format."""
    if config.family.steps is None:
        raise RungError(f"a {config.family.title} cannot be split among processes; start one.")
    if plan.size > config.NH:
        raise RungError(f"{plan.size} processes are more than the model's {config.NH} heads; start fewer.")
    return converted(part_of(weights, plan.rank, plan.size, cuts), plan.matrix, plan.vector)


def read(model: str, device: torch.device, offline: bool = False) -> tuple[Config, Weights, Path]:
    """A model's whole weights in float32; `random:gpt2` has random ones of that size, the same everywhere."""
    if (config := family.requested(model)) is not None:
        return config, weights_of(config, str(device)), Path(model)
    folder = find(model, offline=offline)
    config = read_config(folder / "config.json")
    return config, read_weights(folder, config, lambda w: Linear(w.contiguous()), lambda t: t), folder


def load(model: str, group: Group, *, dtype: str = "float32", offline: bool = False) -> Model:
    """The model over all processes of the group. They all generate, and all get the same text."""
    return _split(group, dtype, model, *read(model, group.device, offline))


def _plan(group: Group, dtype: str) -> Plan:
    # Processes that share a CPU share its cores, too.
    return make_plan(group.device.type, dtype, "torch", {}, max(1, (os.cpu_count() or 1) // group.size))


def _split(group: Group, dtype: str, name: str, config: Config, weights: Weights, folder: Path) -> Model:
    if dtype not in AGREEMENT:
        raise RungError(f"a model can be split in {', '.join(AGREEMENT)}, not in {dtype}.")
    began = time.perf_counter()
    plan = ShardPlan(_plan(group, dtype), group.rank, group.size)
    transformer = ShardedTransformer(config, shard(weights, config, plan), plan)
    return Model(transformer, folder, name, time.perf_counter() - began)


def _alone(group: Group, dtype: str, name: str, config: Config, weights: Weights, folder: Path) -> Model:
    plan = _plan(group, dtype)
    return Model(Transformer(config, converted(weights, plan.matrix, plan.vector), plan), folder, name, 0.0)


# --- Measuring


def measure(group: Group, model: str, dtype: str, tokens: int, rows: int, offline: bool) -> dict[str, Any]:
    """Logits against one process's, and the times of a prompt and of a token on one and on all."""
    config, weights, folder = read(model, group.device, offline)
    split, alone = (make(group, dtype, model, config, weights, folder) for make in (_split, _alone))
    tokens = min(tokens, config.context - 9)
    ids = torch.randint(config.vocabulary, (rows, tokens), generator=torch.Generator().manual_seed(0))
    ours, theirs = split.logits(ids), alone.logits(ids)
    error = group.slowest(float((ours - theirs).norm() / theirs.norm()))
    if not error <= AGREEMENT[dtype]:
        raise RungError(
            f"logits over {group.size} processes are off by {error:.1e} of their norm; {AGREEMENT[dtype]:.0e} "
            "is allowed."
        )
    row: dict[str, Any] = {
        "model": model,
        "dtype": dtype,
        "processes": group.size,
        "rows": rows,
        "tokens": tokens,
        "error": error,
        "device": torch.cuda.get_device_name() if group.device.type == "cuda" else "cpu",
    }
    for name, one in (("split", split), ("alone", alone)):
        row[f"{name}_prompt_seconds"] = group.timed(lambda one=one: one.logits(ids))  # type: ignore[misc]
        row[f"{name}_token_seconds"] = _token(group, one, ids)
    row["prompt_speed_up"] = row["alone_prompt_seconds"] / row["split_prompt_seconds"]
    row["token_speed_up"] = row["alone_token_seconds"] / row["split_token_seconds"]
    greedy = [
        list(one.generate([ids[0].tolist()], max_new_tokens=8, temperature=0.0)[0].tokens) for one in (split, alone)
    ]
    row["same_greedy_tokens"] = greedy[0] == greedy[1]
    return row


def _token(group: Group, model: Model, ids: torch.Tensor) -> float:
    """Seconds of one token for every row, after the prompt."""
    transformer = model.transformer
    cache = transformer.new_cache(len(ids), ids.shape[1] + 8)
    transformer.advance(ids.tolist(), cache)
    lengths = list(cache.lengths)

    def again() -> None:
        cache.lengths = list(lengths)
        transformer.advance([[0]] * len(ids), cache)

    return group.timed(again)


def main() -> None:
    parser = argparse.ArgumentParser(description="GPT-2 over the processes of a torchrun job.")
    parser.add_argument("model", nargs="?", default="inner")
    parser.add_argument("--dtype", choices=tuple(AGREEMENT), default="float32")
    parser.add_argument("--tokens", type=int, default=256, help="of the prompt")
    parser.add_argument("--rows", type=int, default=1, help="sequences at once")
    parser.add_argument("--device", choices=("cpu", "cuda"))
    parser.add_argument("--offline", action="store_true")
    parser.add_argument("--patience", type=float, default=120.0, help="seconds that a wait may last")
    parser.add_argument("--output", type=Path)
    chosen = parser.parse_args()
    with joined(chosen.device, chosen.patience) as group:
        row = measure(group, chosen.model, chosen.dtype, chosen.tokens, chosen.rows, chosen.offline)
        group.report(row, chosen.output)


if __name__ == "__main__":
    main()
