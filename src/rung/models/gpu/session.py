"""The state of a batch being written, at fixed addresses: graphs captured once are used for every token."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from functools import cache
from pathlib import Path

import numpy as np
import torch

from gpuless.launch import Argument, LaunchConfig, Module
from rung.dtypes import Dtype
from rung.models.family import Config
from rung.models.gpu.device_copy import refuse
from rung.models.gpu.step_pass import StepPass
from rung.models.gpu.token_sampler import TokenSampler
from rung.models.options import MOST_STOPS
from rung.models.plan import place_of
from rung.operation import Tensors, Values
from rung.quantised import CACHES, EIGHT_BIT_CACHES
from rung.rungs.base import Device, Prepared, Rung
from rung.rungs.cuda import build_of, load_module

RING = 4096  # steps that the host may lag behind
THREADS = 256


def dims(config: Config, rows: int, capacity: int) -> Values:
    """The decode ladder's dims and scalars for this model."""
    return {
        "B": rows, "L": config.layers, "C": config.C, "NH": config.NH, "F": config.F, "V": config.vocabulary,
        "MAXT": capacity, "eps": config.eps, "scale": config.attention_scale(0),
        "act": place_of(config.activation), "by_layer": int(config.scale_by_layer),
    }  # fmt: skip


@dataclass(frozen=True)
class Work:
    """How steps are executed: by which rung, and whether launches are captured in a graph of one or several steps."""

    rung: Rung | None  # None: the operations one by one
    tuning: Mapping[str, int]
    graph: bool = True
    steps: int = 8  # tokens per graph launch
    sample: str | None = None  # the rung that samples tokens, instead of the default
    eight_bits: bool = False  # keys and values in eight bits, and a scale for each; a rung may say so itself


class Session:
    """`rows` sequences of up to `capacity` tokens: `open`, then `enqueue`; `seen` reports the GPU's progress. Texts are
    copied into rows by row_transfer.py."""

    def __init__(
        self, config: Config, operands: Tensors, real: Dtype, device: Device, rows: int, capacity: int, work: Work
    ) -> None:
        self.config, self.rows, self.capacity, self.work = config, rows, capacity, work
        self.device: Device = device
        self.where = torch.device("cuda" if device == "cuda" else "cpu")
        self.real = real
        self.tensors = {**operands, **self._state()}
        if "wpe" in operands:
            self.tensors["wpe"] = operands["wpe"][:capacity]
        self.values: Values = {}
        self.decode: Prepared | StepPass
        if work.rung is None:
            self.decode = StepPass(config, self.tensors)
        else:
            self.values = work.rung.operation.complete(dims(config, rows, capacity))
            bound = {o.name for o in work.rung.operation.operands}
            self.decode = work.rung.prepare(
                {n: t for n, t in self.tensors.items() if n in bound}, self.values, real, device=device,
                tuning=work.tuning,
            )  # fmt: skip
        self._ring = self._host((RING, rows))
        self._published = self._host((1,))
        self._counter = self._published.numpy()
        self._advance = {grown: self._bind_advance(grown) for grown in (0, 1)}
        self.choice = TokenSampler(self.tensors, rows, config.vocabulary, device, work.sample)
        self._graphs: dict[tuple[bool, int], torch.cuda.CUDAGraph] = {}
        self.enqueued = 0

    def _state(self) -> Tensors:
        c, rows, T = self.config, self.rows, self.capacity
        eight = self.work.eight_bits or (self.work.rung is not None and "k_cache_q" in self.work.rung.binds)
        if self.device == "cuda":
            of_key = c.HS + 4 if eight else c.HS * self.real.size
            needed = 2 * c.layers * rows * T * c.NKV * of_key + 12 * rows * c.vocabulary
            refuse(needed, f"a cache for {rows} texts of {T:,} tokens", "write fewer texts at a time or shorter ones")

        def whole(*shape: int) -> torch.Tensor:
            return torch.zeros(shape, dtype=torch.int32, device=self.where)

        def zeros(kind: torch.dtype, *shape: int) -> torch.Tensor:
            return torch.zeros(c.layers, rows, c.NKV, T, *shape, dtype=kind, device=self.where)

        if eight:
            made = (zeros(torch.int8, c.HS), zeros(torch.int8, c.HS), zeros(torch.float32), zeros(torch.float32))
            caches = dict(zip(EIGHT_BIT_CACHES, made, strict=True))
        else:
            caches = {name: zeros(self.real.torch, c.HS) for name in CACHES}
        return {
            **caches,
            "tokens": whole(rows),
            "lengths": whole(rows),
            "history": whole(rows, T),
            "logits": torch.empty(rows, c.vocabulary, dtype=torch.float32, device=self.where),
            "next": whole(rows),
            "texts": torch.arange(rows, dtype=torch.int32, device=self.where),  # each row is a separate text
            "caches": torch.arange(rows, dtype=torch.int32, device=self.where),
            "done": whole(rows),
            "steps": whole(1),
            "limits": whole(rows),
            "stop_tokens": whole(rows, MOST_STOPS),
            "stops": whole(rows),
        }

    def _host(self, shape: tuple[int, ...]) -> torch.Tensor:
        # The GPU writes to it directly; with unified addresses it has one address on both sides.
        return torch.zeros(shape, dtype=torch.int32, device="cpu", pin_memory=self.device == "cuda")

    def _bind_advance(self, grown: int) -> Callable[[], None]:
        module = _advance_module(self.device)
        names = ("next", "tokens", "lengths", "history", "done", "steps", "limits", "stop_tokens", "stops")
        arguments: list[Argument] = [("pointer", self.tensors[n]) for n in names]
        arguments += [("u64", self._ring.data_ptr()), ("u64", self._published.data_ptr())]
        arguments += [("i32", n) for n in (self.rows, self.capacity, self.config.vocabulary, RING, MOST_STOPS, grown)]
        config = LaunchConfig(grid=(1, 1, 1), block=(THREADS, 1, 1), pdl=True)
        module.prepare("advance", config)
        return module.bind("advance", config, arguments)

    # ---- a batch ------------------------------------------------------------------------------------------------

    def open(self) -> None:
        """Begin without any text."""
        self._synchronize()
        self._published.zero_()
        self.tensors["steps"].zero_()
        self.enqueued = 0
        self.tensors["done"].fill_(1)
        self.tensors["lengths"].zero_()

    def publish(self) -> None:
        """End a step that was run part by part."""
        self._advance[1]()
        self.enqueued += 1

    def _synchronize(self) -> None:
        if self.device == "cuda":
            torch.cuda.synchronize()

    def step(self, *, logits: bool = False) -> None:
        """One token for each row, launch by launch; the logits are not kept where nothing is chosen from them."""
        if isinstance(self.decode, StepPass):
            self.decode.run(logits=logits or not self.choice.greedy)
        else:
            self.decode.run()
        self.choice.run(picked=True)
        self._advance[1]()

    def enqueue(self, steps: int) -> None:
        """Launch this many steps, in as few launches as possible."""
        while steps > 0:
            together = self.work.steps if self.work.graph and steps >= self.work.steps else 1
            self._enqueue(together)
            self.enqueued += together
            steps -= together

    def _enqueue(self, together: int) -> None:
        if not self.work.graph or self.device != "cuda":
            for _ in range(together):
                self.step()
            return
        self.graph(together).replay()

    def graph(self, together: int) -> torch.cuda.CUDAGraph:
        """This many steps as one launch, captured at first use."""
        key = (self.choice.greedy, together)
        if key not in self._graphs:
            self.decode.run()  # set-up and compiling at a first call happen before the capture
            if not self.choice.greedy:
                self.choice.prepare()
            torch.cuda.synchronize()
            graph = torch.cuda.CUDAGraph()
            with torch.cuda.graph(graph, capture_error_mode="thread_local"):
                for _ in range(together):
                    self.step()
            self._graphs[key] = graph
        return self._graphs[key]

    @property
    def seen(self) -> int:
        """Steps whose tokens the host can read."""
        return int(self._counter[0])

    @property
    def ahead(self) -> int:
        """Steps that were launched and have not ended."""
        return self.enqueued - self.seen

    def block(self, first: int, count: int) -> list[list[int]]:
        """For each row the tokens of this many steps that were seen; -1 after its sequence has ended."""
        steps = np.arange(first, first + count) % RING
        rows: list[list[int]] = self._ring.numpy()[steps].T.tolist()
        return rows


@cache
def _advance_module(device: Device) -> Module:
    return load_module(build_of(Path(__file__).with_name("advance.cu"), ("advance",), ("RUNG_F32", 1)), device)
