"""Prompts in, tokens out as they arrive: the host only reads, and the GPU runs some steps ahead."""

from __future__ import annotations

import os
import threading
import time
from collections.abc import Iterator, Mapping, Sequence

import torch

from rung.dtypes import dtype as named_dtype
from rung.errors import RungError
from rung.expressions import Number
from rung.models.gpt2.config import Config
from rung.models.gpt2.rungs import MAX_FEW_ROWS, decode_rungs, few_rows_rung, find
from rung.models.gpt2.weights import Weights
from rung.models.gpu.loading import Arrival
from rung.models.gpu.memory import refuse
from rung.models.gpu.operands import dims, stack
from rung.models.gpu.session import Session, Work
from rung.models.sampling import Sampling
from rung.operation import Tensors, Values
from rung.rungs import catalogue, tunings
from rung.rungs.base import Device, Rung, arch
from rung.rungs.cuda import CudaRung

AHEAD = 32  # steps launched before the host has seen their tokens
GRANULE = 64  # caches are made for multiples of this many tokens, so that sessions can be reused
DTYPES = {"float32": "f32", "tf32": "f32", "float16": "f16", "bfloat16": "bf16", "int8": "bf16"}


class Engine:
    """A model on the device. Sessions (batch size, capacity) are kept, with their graphs."""

    def __init__(
        self,
        config: Config,
        weights: Weights,
        dtype: str = "bfloat16",
        device: Device = "cuda",
        *,
        rung: str | None = None,
        sample: str | None = None,
        tuning: Mapping[str, int] | None = None,
        graph: bool = True,
        steps: int = 8,
        arrival: Arrival | None = None,
        cache: str | None = None,
    ) -> None:
        if dtype not in DTYPES:
            raise RungError(f"dtype {dtype!r} is not known on a GPU; use one of {', '.join(DTYPES)}.")
        self.config, self.dtype, self.device = config, dtype, device
        self.real = named_dtype(DTYPES[dtype])
        self.cache = cache  # "int8": keys and values of many rows in 8 bits
        self._rung, self._tuning, self._graph, self._steps = rung, dict(tuning or {}), graph, steps
        self.sample = sample  # the rung that samples tokens, instead of the default
        # Weights that are still being loaded already have their final addresses.
        self.arrival = arrival
        self.operands = self._stacked(weights) if arrival is None else arrival.operands
        self._sessions: dict[tuple[int, int], Session] = {}
        self._pid = os.getpid()
        self.lock = threading.RLock()  # one thread at a time launches or captures
        self._writing: Session | None = None
        self.reserve = 0  # minimum capacity of a session, in tokens

    def _stacked(self, weights: Weights) -> Tensors:
        if self.device == "cuda":
            refuse(
                weights.nbytes() * self.real.size // max(1, weights.wte.weight.element_size()),
                "stacking the model's weights",
                "use a smaller model, or the dtype bfloat16",
            )
        where = torch.device("cuda" if self.device == "cuda" else "cpu")
        return stack(weights, self.real.torch, where, int8=self.dtype == "int8")

    def arrive(self) -> None:
        """Wait until all weights are there."""
        if self.arrival is not None:
            self.arrival.finish()
            self.arrival = None

    def session(self, rows: int, tokens: int) -> Session:
        """A session for this many sequences of up to this many tokens."""
        tokens = max(tokens, self.reserve)
        capacity = min(self.config.context, -(-tokens // GRANULE) * GRANULE)
        key = (rows, capacity)
        if key not in self._sessions:
            self._sessions[key] = self._made(rows, capacity)
        if self.arrival is not None and not self.arrival.finished:
            self._sessions[key].follow(self.arrival)
        return self._sessions[key]

    def _made(self, rows: int, capacity: int) -> Session:
        values = dims(self.config, rows, capacity)
        return self._with(self.rung(values), values, rows, capacity)

    def _tuned_for(self, rung: Rung, complete: Values) -> dict[str, int]:
        tuning = {name: value for name, value in self._tuning.items() if name in rung.tune}
        if not tuning and self.device == "cuda":
            tuning = dict(tunings.best(rung, complete, self.real.name, device=self.device) or {})
        return tuning

    def _refusal(self, rung: Rung, values: Mapping[str, Number]) -> str | None:
        """Why the rung cannot be used here: a rule of its header, or a resource of its compiled code."""
        complete = rung.operation.complete(values)
        reason = rung.refusal(complete, self.real, device=self.device)
        if reason is None and self.device == "cuda" and isinstance(rung, CudaRung):
            reason = rung.unfit(complete, self.real, self._tuned_for(rung, complete), arch(self.device), self.device)
        return reason

    def _with(self, rung: Rung, values: Mapping[str, Number], rows: int, capacity: int) -> Session:
        tuning = self._tuned_for(rung, rung.operation.complete(values))
        work = Work(rung, tuning, self._graph, self._steps, self.sample)
        return Session(self.config, self.operands, self.real, self.device, rows, capacity, work)

    def few_rows(self) -> Session:
        """A session whose rows may be consecutive tokens of one text: as many as a step takes at once."""
        self.check_process()
        rung, reason = find("decode", few_rows_rung(self.dtype)), None
        for rows in (MAX_FEW_ROWS, 4, 2):
            values = dims(self.config, rows, self.config.context)
            reason = self._refusal(rung, values)
            if reason is None:
                return self._with(rung, values, rows, self.config.context)
        raise RungError(f"a draft cannot be read: {reason}; leave the draft out or choose another plan.")

    def open(self, rows: int) -> Session:
        """A separate session, without texts; each text may fill the context."""
        self.check_process()
        session = self._made(rows, self.config.context)
        session.open()
        return session

    @property
    def sessions(self) -> list[Session]:
        """The sessions that are kept, the latest last."""
        return list(self._sessions.values())

    def rung(self, values: Mapping[str, Number]) -> Rung:
        """The decode rung that serves a batch of this shape."""
        if self._rung is not None:
            return find("decode", self._rung)
        complete = catalogue.operation("decode").complete(values)
        rows, channels = int(values["B"]), int(values["C"])
        for name in decode_rungs(rows, channels, self.dtype, lambda name: self._tuned(name, complete), self.cache):
            rung = find("decode", name)
            if self._refusal(rung, values) is None:
                return rung
        raise RungError("no rung of decode takes this model.")

    def check_process(self) -> None:
        """RungError after a fork, which CUDA's state does not survive."""
        if self.device == "cuda" and os.getpid() != self._pid:
            raise RungError("a GPU cannot be used after a fork; start the process by spawn, and load the model there.")

    def takes(self, rows: int) -> bool:
        """Whether there is a decode rung for this many sequences that fill the context."""
        try:
            rung = self.rung(values := dims(self.config, rows, self.config.context))
        except RungError:
            return False
        return rung.refusal(rung.operation.complete(values), self.real, device=self.device) is None

    def _tuned(self, name: str, values: Mapping[str, Number]) -> bool:
        rung = find("decode", name)
        return self.device == "cuda" and bool(tunings.best(rung, values, self.real.name, device=self.device))

    def write(
        self,
        prompts: Sequence[Sequence[int]],
        limits: Sequence[int],
        *,
        stop_tokens: Sequence[int] = (),
        sampling: Sampling | None = None,
        seed: int = 0,
        sequences: Sequence[int] | None = None,
    ) -> Iterator[list[int]]:
        """For each step the tokens of all rows, -1 where a sequence has ended, until all have ended."""
        rows = len(prompts)
        reach = max(len(p) + n for p, n in zip(prompts, limits, strict=True))
        self.check_process()
        with self.lock:
            session = self._writing = self.session(rows, reach)
            session.begin(
                prompts, limits, stop_tokens, sampling or Sampling(temperature=0), seed, sequences or range(rows)
            )
        most, shown = max(limits), 0
        left = set(range(rows))
        ends = set(stop_tokens)
        while left and shown < most:
            if session.enqueued - shown <= AHEAD // 2:
                with self.lock:
                    session.enqueue(min(AHEAD, most - session.enqueued))
            self._await(session, shown)
            tokens = session.tokens(shown)
            shown += 1
            yield tokens
            left -= {b for b in left if tokens[b] in ends or shown >= limits[b] or tokens[b] < 0}

    @property
    def made(self) -> int:
        """Steps of the current text whose tokens have arrived, including those not yet delivered."""
        return self._writing.seen if self._writing else 0

    def logits_after(self, prompt: Sequence[int], text: Sequence[int]) -> torch.Tensor:
        """Logits (len(text), V) that follow each token of `text`, which is read token by token after the prompt."""
        session = self.session(1, len(prompt) + len(text))
        session.begin([prompt], [1 << 30], (), Sampling(temperature=0), 0, [0])
        found = []
        for at, token in enumerate(text, len(prompt)):
            session.tensors["tokens"].fill_(token)
            session.tensors["history"][0, at] = token  # rungs without a cache read it there again
            session.tensors["done"].zero_()
            session.step()
            found.append(session.tensors["logits"][0].clone())
        return torch.stack(found)

    def _await(self, session: Session, shown: int) -> None:
        polls = 0
        while session.seen <= shown:
            polls += 1
            if polls % 1000 == 0 and self.device == "cuda" and torch.cuda.current_stream().query():
                # Nothing is running any more: either it has just been published, or it never will be.
                torch.cuda.synchronize()
                if session.seen <= shown:
                    raise RungError("the GPU stopped before the requested tokens were written.")
            if polls > 20000:
                time.sleep(1e-5)
