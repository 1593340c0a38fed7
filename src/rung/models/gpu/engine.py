"""A model's weights on a device, the decode rungs that serve it, steps that verify drafts, and the plan `best`: the
engine writes whole texts, torch does the rest.
"""

from __future__ import annotations

import os
import threading
import weakref
from collections.abc import Mapping, Sequence
from pathlib import Path

import torch

from gpuless.base.expressions import Number
from rung.dtypes import dtype as named_dtype
from rung.errors import RungError
from rung.models.cache import Cache, Column
from rung.models.family import Config
from rung.models.gpu.device_copy import refuse, sent
from rung.models.gpu.loading import Arrival, arrival
from rung.models.gpu.scoring import GpuScorer
from rung.models.gpu.session import Session, Work, dims
from rung.models.gpu.step_pass import StepPass
from rung.models.operations import find
from rung.models.plan import Service, TorchPlan, WrappedPlan
from rung.models.weights import Linear, Weights, as_weights, share, stack
from rung.operation import Tensors, Values
from rung.rungs import catalogue, tunings
from rung.rungs.base import Device, Rung, arch
from rung.rungs.cuda import CudaRung

DTYPES = {"float32": "f32", "tf32": "f32", "float16": "f16", "bfloat16": "bf16", "int8": "bf16"}
MOST_IN_SIXTEEN_BITS = 32  # rows; keys and values of more may be kept in 8 bits
GRANULE = 64  # rows of sessions hold multiples of this many tokens, so that sessions can be reused


class GpuSteps:
    """A model on the device: its stacked weights, and sessions of the decode rung that serves a number of rows."""

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
        self._pid = os.getpid()
        self._latest: weakref.ref[Session] | None = None
        self.lock = threading.RLock()  # one thread at a time launches or captures

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

    def _with(self, rung: Rung | None, values: Mapping[str, Number], rows: int, capacity: int) -> Session:
        tuning = {} if rung is None else self._tuned_for(rung, rung.operation.complete(values))
        eight = rung is None and self.eight_bits(rows)
        work = Work(rung, tuning, self._graph, self._steps, self.sample, eight)
        return Session(self.config, self.operands, self.real, self.device, rows, capacity, work)

    def eight_bits(self, rows: int) -> bool:
        """Whether sessions of so many rows keep keys and values in 8 bits, where steps are made of the operations."""
        return self.cache == "int8" and self.config.family.steps is None and rows > MOST_IN_SIXTEEN_BITS

    def few_rows(self) -> Session:
        """A session whose rows may be consecutive tokens of one text: as many as a step takes at once."""
        self.check_process()
        if self.config.family.steps is None:
            raise RungError(f"a draft needs the decode ladder, which {self.config.family.title} has not; leave it out.")
        rung, reason = find("decode", self.config.family.steps.few_rows_rung(self.dtype)), None
        for rows in (self.config.family.steps.MAX_FEW_ROWS, 4, 2):
            values = dims(self.config, rows, self.config.context)
            reason = self._refusal(rung, values)
            if reason is None:
                return self._with(rung, values, rows, self.config.context)
        raise RungError(f"a draft cannot be read: {reason}; leave the draft out or choose another plan.")

    def capacity(self, reach: int) -> int:
        """The tokens of a row that is to hold texts of up to `reach` tokens; 0: the context."""
        return min(self.config.context, -(-reach // GRANULE) * GRANULE or self.config.context)

    def open(self, rows: int, reach: int = 0) -> Session:
        """A session without texts. The shorter its rows, the fewer parts of attention do the kernels merge."""
        self.check_process()
        capacity = self.capacity(reach)
        values = {} if self.config.family.steps is None else dims(self.config, rows, capacity)
        session = self._with(self.rung(values), values, rows, capacity)
        session.open()
        self._latest = weakref.ref(session)
        return session

    @property
    def latest(self) -> Session | None:
        """The session opened last, if it is still in use."""
        return self._latest() if self._latest is not None else None

    def rung(self, values: Mapping[str, Number]) -> Rung | None:
        """The decode rung that serves a batch of this shape; None if its step is made of the operations."""
        if self.config.family.steps is None:
            return None
        if self._rung is not None:
            return find("decode", self._rung)
        complete = catalogue.operation("decode").complete(values)
        rows, channels = int(values["B"]), int(values["C"])
        steps = self.config.family.steps
        for name in steps.decode_rungs(
            rows, channels, self.dtype, lambda name: self._tuned(name, complete), self.cache
        ):
            if name == steps.BY_OPERATIONS:
                if StepPass.fits(self.config):
                    return None
                continue
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
        if self.config.family.steps is None:
            return True
        try:
            rung = self.rung(values := dims(self.config, rows, self.config.context))
        except RungError:
            return False
        return rung is None or rung.refusal(rung.operation.complete(values), self.real, device=self.device) is None

    def _tuned(self, name: str, values: Mapping[str, Number]) -> bool:
        rung = find("decode", name)
        return self.device == "cuda" and bool(tunings.best(rung, values, self.real.name, device=self.device))


STATE = ("tokens", "lengths", "texts", "caches")


class Columns:
    """A session whose rows may be consecutive tokens of one text; it has one cache per text."""

    def __init__(self, engine: GpuSteps) -> None:
        self._engine, self._session = engine, engine.few_rows()
        self.columns_at_once = self._session.rows
        self._numbers = torch.zeros(len(STATE) + 1, self.columns_at_once, dtype=torch.int32, device=self._session.where)
        self.cache: Cache | None = Cache.over(self._session.tensors["k_cache"], self._session.tensors["v_cache"])

    @torch.inference_mode()
    def step(self, columns: Sequence[Column], cache: Cache, outputs: int) -> torch.Tensor:
        """Logits (outputs, V) of the columns that request them; those of a text are contiguous."""
        firsts: list[int] = []
        for i, column in enumerate(columns):
            firsts.append(firsts[-1] if i and columns[i - 1].row == column.row else i)
        # Surplus rows continue after the last text; their results are ignored.
        missing = self.columns_at_once - len(columns)
        order = [0] * outputs
        for i, column in enumerate(columns):
            if column.output >= 0:
                order[column.output] = i
        state = [
            [*(c.token for c in columns), *[0] * missing],
            [*(c.position for c in columns), *[0] * missing],
            [*firsts, *[firsts[-1]] * missing],
            [*(c.row for c in columns), *[0] * missing],
            [*order, *[0] * (self.columns_at_once - outputs)],
        ]
        session = self._session
        with self._engine.lock:
            self._engine.arrive()
            sent(state, self._numbers)  # one copy to the device, and from there to the step's inputs
            torch._foreach_copy_([session.tensors[name] for name in STATE], list(self._numbers[: len(STATE)]))
            session.decode.run()
            logits: torch.Tensor = session.tensors["logits"]
            return logits[self._numbers[-1, :outputs]]


COMPUTE = {"float32": torch.float32, "tf32": torch.float32, "float16": torch.float16}


class GpuPlan(WrappedPlan):
    """`kernels` may name rungs of decode and sample; with `overlapped`, computation starts while later weights are
    still being read. With the `cache` int8, sessions of many rows keep keys and values in 8 bits."""

    def __init__(
        self,
        device: Device,
        dtype: str,
        kernels: Mapping[str, str],
        *,
        overlapped: bool = True,
        cache: str | None = None,
    ) -> None:
        if device == "cuda" and not torch.cuda.is_available():
            raise RungError("No CUDA device was found; choose the device cpu, or emulator for rungs.")
        if dtype == "auto":
            dtype = "bfloat16" if device == "cuda" else "float32"
        if dtype not in DTYPES:
            raise RungError(f"the plan best has no {dtype}; use one of {', '.join(DTYPES)}.")
        self._compute = COMPUTE.get(dtype, torch.bfloat16)
        if cache is not None and self._compute == torch.float32:
            raise RungError(f"the cache {cache} is for models in 16 bits, and the dtype is {dtype}; choose bfloat16.")
        self._cache = cache
        self._eight_bits = dtype == "int8"
        where = torch.device("cuda" if device == "cuda" else "cpu")
        operations = TorchPlan(where, torch.int8 if self._eight_bits else self._compute, self._compute)
        operations.on, operations.dtype = device, dtype
        super().__init__(operations, "best")
        self._device: Device = device
        self._kernels, self._overlapped = dict(kernels), overlapped
        self.engine: GpuSteps | None = None
        self._arrival: Arrival | None = None

    def admit(self, config: Config) -> None:
        super().admit(config)
        real = named_dtype(DTYPES[self.dtype])
        by_operations = self._cache == "int8" and config.family.steps is None
        if by_operations and not StepPass.fits_eight_bits(config, real, self._device):
            raise RungError(
                f"no rung keeps keys and values of {config.family.title} in 8 bits, with heads of {config.HS}; "
                "leave the cache out."
            )

    def read(self, folder: Path, config: Config) -> Weights:
        if self._overlapped and not self._eight_bits:
            self._arrival = arrival(folder, config, self._compute, self.device)
        if self._arrival is None:
            return super().read(folder, config)
        self._arrival.start()
        return as_weights(self._arrival.operands, config)

    def serve(self, config: Config, weights: Weights) -> Service:
        rung, sample = self._kernels.get("decode"), self._kernels.get("sample")
        self.engine = GpuSteps(
            config,
            weights,
            self.dtype,
            self._device,
            rung=rung,
            sample=sample,
            arrival=self._arrival,
            cache=self._cache,
        )
        if self._arrival is None and not self._eight_bits:
            share(weights, self.engine.operands)
        return Service(engine=self.engine, rater=GpuScorer(config, self.engine.operands, ready=self.engine.arrive))

    def embedding(
        self, tokens: torch.Tensor, past: Sequence[int], wte: Linear, wpe: torch.Tensor | None, scale: float = 1.0
    ) -> torch.Tensor:
        if self.engine is not None:
            self.engine.arrive()  # a forward pass through torch begins
        return super().embedding(tokens, past, wte, wpe, scale)
