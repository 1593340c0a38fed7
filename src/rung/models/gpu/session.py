"""The state of a batch being written, at fixed addresses: graphs captured once are used for every token."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from typing import Any

import numpy as np
import torch

from rung.cuda.launch import Argument, Build, LaunchConfig, Module
from rung.dtypes import Dtype
from rung.errors import RungError
from rung.models.gpt2.config import Config
from rung.models.gpu.choice import Choice
from rung.models.gpu.loading import Arrival
from rung.models.gpu.memory import CACHES, EIGHT_BIT_CACHES, refuse
from rung.models.gpu.operands import dims
from rung.models.gpu.prefill import Prefill
from rung.models.options import MOST_STOPS
from rung.models.sampling import Sampling
from rung.operation import Tensors
from rung.rungs.base import Device, Prepared, Rung
from rung.rungs.cuda import INCLUDE, load_module

RING = 4096  # steps that the host may lag behind
THREADS = 256


@dataclass(frozen=True)
class Work:
    """How steps are executed: by which rung, and whether launches are captured in a graph of one or several steps."""

    rung: Rung
    tuning: Mapping[str, int]
    graph: bool = True
    steps: int = 8  # tokens per graph launch
    sample: str | None = None  # the rung that samples tokens, instead of the default


class Session:
    """`rows` sequences of up to `capacity` tokens: `begin`, then `enqueue`; `seen` reports the GPU's progress."""

    def __init__(
        self, config: Config, operands: Tensors, real: Dtype, device: Device, rows: int, capacity: int, work: Work
    ) -> None:
        self.config, self.rows, self.capacity, self.work = config, rows, capacity, work
        self.device: Device = device
        self.where = torch.device("cuda" if device == "cuda" else "cpu")
        self.real = real
        self.tensors = {**operands, **self._state()}
        self.tensors["wpe"] = operands["wpe"][:capacity]
        self.values = work.rung.operation.complete(dims(config, rows, capacity))
        bound = {o.name for o in work.rung.operation.operands}
        self.decode: Prepared = work.rung.prepare(
            {n: t for n, t in self.tensors.items() if n in bound}, self.values, real, device=device, tuning=work.tuning
        )
        self._ring = self._host((RING, rows))
        self._published = self._host((1,))
        self._counter = self._published.numpy()
        self._advance = {grown: self._bind_advance(grown) for grown in (0, 1)}
        self._prefill = Prefill(config, self.tensors, rows, capacity)
        self.choice = Choice(self.tensors, rows, config.vocabulary, device, work.sample)
        self._graphs: dict[tuple[bool, int], torch.cuda.CUDAGraph] = {}
        self.enqueued = 0

    def _state(self) -> Tensors:
        c, rows, T = self.config, self.rows, self.capacity
        eight = "k_cache_q" in self.work.rung.binds  # keys and values in eight bits, and a scale for each
        if self.device == "cuda":
            of_key = c.HS + 4 if eight else c.HS * self.real.size
            needed = 2 * c.layers * rows * T * c.NH * of_key + 12 * rows * c.vocabulary
            refuse(needed, f"a cache for {rows} texts of {T:,} tokens", "write fewer texts at a time or shorter ones")

        def whole(*shape: int) -> torch.Tensor:
            return torch.zeros(shape, dtype=torch.int32, device=self.where)

        def zeros(kind: torch.dtype, *shape: int) -> torch.Tensor:
            return torch.zeros(c.layers, rows, c.NH, T, *shape, dtype=kind, device=self.where)

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

    def follow(self, arrival: Arrival) -> None:
        """Prompts are read layer by layer, as the weights arrive."""
        self._prefill.arrival = arrival

    def begin(
        self,
        prompts: Sequence[Sequence[int]],
        limits: Sequence[int],
        stop_tokens: Sequence[int],
        sampling: Sampling,
        seed: int,
        sequences: Sequence[int],
    ) -> None:
        """Prompts in, first tokens out (they are published as step 0)."""
        if len(stop_tokens) > MOST_STOPS:
            raise RungError(f"{len(stop_tokens)} stop tokens are more than the {MOST_STOPS} that a step checks.")
        t, missing = self.tensors, self.rows - len(prompts)
        # Unused rows repeat the last prompt, marked as ended.
        prompts = [*prompts, *[prompts[-1]] * missing]
        self._synchronize()
        self._published.zero_()
        t["limits"].copy_(torch.tensor([*limits, *[0] * missing], dtype=torch.int32, device="cpu"))
        t["done"].copy_(torch.tensor([0] * len(limits) + [1] * missing, dtype=torch.int32, device="cpu"))
        t["steps"].zero_()
        t["stops"].fill_(len(stop_tokens))
        if stop_tokens:
            t["stop_tokens"][:, : len(stop_tokens)] = self._whole(stop_tokens)
        self.choice.begin(sampling, seed, [*sequences, *[0] * missing], prompts)
        self._prefill.run(prompts)
        self.choice.run(picked=False)
        self._advance[0]()
        self.enqueued = 1

    # ---- single rows ---------------------------------------------------------------------------------------

    def open(self) -> None:
        """Begin without any text; seating.py adds them."""
        self._synchronize()
        self._published.zero_()
        self.tensors["steps"].zero_()
        self.enqueued = 0
        self.tensors["done"].fill_(1)
        self.tensors["lengths"].zero_()

    def _whole(self, numbers: Sequence[Any]) -> torch.Tensor:
        return torch.tensor(list(numbers), dtype=torch.int32, device=self.where)

    def publish(self) -> None:
        """End a step that was run part by part."""
        self._advance[1]()
        self.enqueued += 1

    def _synchronize(self) -> None:
        if self.device == "cuda":
            torch.cuda.synchronize()

    def step(self) -> None:
        """One token for each row, launch by launch."""
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
            self.decode.run()  # a Python rung's set-up at its first call happens before the capture
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

    def block(self, first: int, count: int) -> list[list[int]]:
        """For each row the tokens of this many steps that were seen; -1 after its sequence has ended."""
        steps = np.arange(first, first + count) % RING
        rows: list[list[int]] = self._ring.numpy()[steps].T.tolist()
        return rows

    def tokens(self, step: int) -> list[int]:
        """The rows' tokens of a step that was seen; -1 where a sequence had ended."""
        row: list[int] = self._ring[step % RING].tolist()
        return row


@cache
def _advance_module(device: Device) -> Module:
    source = Path(__file__).parent / "advance.cu"
    build = Build(
        source=source.read_text(encoding="utf-8"),
        origin=str(source),
        kernels=("advance",),
        defines=(("RUNG_F32", "1"),),
        include=(str(INCLUDE),),
    )
    return load_module(build, device)
