"""The climb of a course project: a model of rungs only, without a cache, one prompt and length, step by step.

For every token the whole text goes through the model and the head, as in the project, which went from 5 to 43.9
tokens/s; its last step keeps keys and values inside the QKV projection (69). The steps are those of the two reports in
their order, each by the kernel that the report describes; where one is not, the step says so. Torch only holds the
tensors, calls cuBLAS and picks the largest logit.
"""

from __future__ import annotations

import itertools
import statistics
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field

import torch

from rung.arrays import Array, dtype_of
from rung.dtypes import Dtype
from rung.dtypes import dtype as named_dtype
from rung.models.family import Config
from rung.models.ladder_plan import LadderPlan
from rung.models.transformer import Transformer
from rung.models.weights import Linear, Norm, converted
from rung.operation import Empty, Tensors, Values
from rung.rungs.base import Device, Prepared, Rung
from rung.rungs.compile_ahead import Compilers, finish
from rung_reproduce.climbs.model import Climber, Step, Variant

PROMPT = "The city with the largest population is"
NEW_TOKENS = 50
WINDOW = 128
PROJECTION = "cached_projection"
CALLS = 5  # for choosing a block size

BASELINE = {"embedding": "1", "layernorm": "1", "matmul": "1", "attention": "2", "gelu": "1", "residual": "1"}
PREPARE_OUT = "bias"  # the course's kernel after cuBLAS's product


@dataclass(frozen=True)
class Change:
    """A step: what it is and what it replaces, the format of its products, the rungs that change (None removes one),
    and tunables that are not the rung's usual ones."""

    what: str
    dtype: str
    rungs: Mapping[str, str | None]
    tunings: Mapping[str, Mapping[str, int]] = field(default_factory=dict)


# In the order of the two reports. Milestone 2 and milestone 3 are by different groups of the course.
CHANGES: dict[str, Change] = {
    "baseline": Change("The first version of every operation; attention's loops in one block.", "float32", BASELINE),
    "milestone 2: reductions": Change(
        "Layernorm by a two-stage warp reduction. The report's softmax changes too; in rung 2's launch it has no rung "
        "of its own, and comes with the next step.", "float32", {"layernorm": "6"},
    ),
    "milestone 2: joint tiling": Change(
        "One operand in shared memory, the other in registers, in the linear layers and in attention.", "float32",
        {"matmul": "32", "attention": "41"},
    ),
    "milestone 2: tensor cores": Change(
        "WMMA in tf32, one warp per block, the bias added after the store.", "tf32",
        {"matmul": "33", "attention": "10"},
    ),
    "milestone 2: cuBLAS": Change(
        "cublasLt in place of cublasSgemmStridedBatched, in the linear layers and in attention.", "tf32",
        {"matmul": "cublaslt", "attention": "11"},
    ),
    "loop unrolling": Change(
        "The baseline's attention and layernorm with their loops unrolled by 8, and layernorm's by 32; the linear "
        "layers stay with cuBLAS, as in the report's table of times.", "tf32",
        {"layernorm": "2", "attention": "36"}, {"attention": {"UNROLL": 8, "OUTER": 8}, "layernorm": {"UNROLL": 32}},
    ),
    "constant memory": Change(
        "The baseline's layernorm with weight and bias in constant memory; the baseline's attention.", "tf32",
        {"layernorm": "16", "attention": "2"},
    ),
    "restrict": Change(
        "The baseline's layernorm and attention with __restrict__.", "tf32", {"layernorm": "17", "attention": "42"},
    ),
    "reductions": Change(
        "Trees with one thread per column in layernorm and for every output of attention.", "tf32",
        {"layernorm": "18", "attention": "6"},
    ),
    "local attention": Change(
        f"Attention in one kernel over a window of {WINDOW} keys, its own among them.", "tf32",
        {"attention": None, "local_attention": "10"},
    ),
    "flash attention 2": Change(
        "Attention over all keys whose scores stay on chip.", "tf32", {"local_attention": None, "attention": "25"},
    ),
    "flash attention 2, improved": Change(
        "One shared buffer, reductions by shuffles, fused loops.", "tf32", {"attention": "26"},
    ),
    "fp16 tensor cores": Change(
        "WMMA in 16 bits, 32 warps per block along the rows as in the report's code, summed in 32 bits.",
        "tf32", {"matmul": "29"},
    ),
    "swept blocks": Change("Block sizes by trial, of every rung that has some.", "tf32", {}),
    "fused kernels": Change(
        "cuBLAS again, and prepareOut: the bias alone, the bias with GELU, and bias and residual written first for "
        "cuBLAS to add to.", "tf32",
        {"matmul": "cublaslt", PREPARE_OUT: "1", "bias_gelu": "1", "matmul_residual": "cublas_accumulate"},
    ),
    "KV cache": Change(
        "prepare_qkv: a naive projection that takes keys and values of earlier tokens from a cache. The whole text "
        "still goes through all other operations.", "tf32", {PROJECTION: "1"},
    ),
}  # fmt: skip


class CoursePlan(LadderPlan):
    """One rung per operation, by name; an unsupported shape ends the run. All lengths share scratch memory."""

    def __init__(
        self,
        device: Device,
        dtype: str,
        rungs: Mapping[str, str],
        swept: bool,
        tunings: Mapping[str, Mapping[str, int]] | None = None,
    ) -> None:
        super().__init__(device, dtype, "course", rungs, WINDOW if "local_attention" in rungs else None)
        self.swept = swept
        self.tunings = {self.requested[o].full_name: dict(chosen) for o, chosen in (tunings or {}).items()}
        self._chosen: dict[tuple[object, ...], dict[str, int]] = {}
        self._scratch: Tensors = {}
        self._cache: list[tuple[torch.Tensor, torch.Tensor]] = []  # keys and values (1, MAXT, C), layer by layer
        self._layer = self._length = self._known = 0

    def remember(self, config: Config) -> None:
        """Allocate keys and values, if a rung keeps them."""
        if PROJECTION in self.requested:
            shape = (1, config.context, config.C)
            self._cache = [(self._output(f"k {i}", shape), self._output(f"v {i}", shape)) for i in range(config.layers)]

    def begin(self) -> None:
        """A new text: the previous one is forgotten."""
        self._length = 0

    def embedding(
        self, tokens: torch.Tensor, past: Sequence[int], wte: Linear, wpe: torch.Tensor | None, scale: float = 1.0
    ) -> torch.Tensor:
        self._layer, self._known, self._length = 0, self._length, tokens.shape[1]
        return super().embedding(tokens, past, wte, wpe, scale)

    def layernorm_matmul(self, x: torch.Tensor, norm: Norm, eps: float, linear: Linear) -> torch.Tensor:
        if not self._cache:
            return super().layernorm_matmul(x, norm, eps, linear)
        B, T, C = x.shape
        k, v = self._cache[self._layer]
        self._layer += 1
        assert linear.bias is not None
        y = self.layernorm(x, norm, eps)
        given = {"x": y, "weight": linear.weight, "bias": linear.bias, "k_cache": k, "v_cache": v}
        dims = {"B": B, "T": T, "C": C, "MAXT": k.shape[1], "past": self._known}
        out = self._run(PROJECTION, (B, T, 3 * C), given, dims)
        assert out is not None
        return out

    def matmul(self, x: torch.Tensor, linear: Linear) -> torch.Tensor:
        if PREPARE_OUT not in self.requested or linear.bias is None:
            return super().matmul(x, linear)
        return self._after_product(PREPARE_OUT, x, linear)

    def matmul_activation(self, x: torch.Tensor, linear: Linear, name: str) -> torch.Tensor:
        if "bias_gelu" not in self.requested or linear.bias is None:
            return super().matmul_activation(x, linear, name)
        return self._after_product("bias_gelu", x, linear)

    def _after_product(self, operation: str, x: torch.Tensor, linear: Linear) -> torch.Tensor:
        """The product without its bias, then a kernel that adds it."""
        product = super().matmul(x, Linear(linear.weight))
        B, T, OC = product.shape
        assert linear.bias is not None
        out = self._run(operation, (B, T, OC), {"x": product, "bias": linear.bias}, {"B": B, "T": T, "OC": OC})
        assert out is not None
        return out

    def _format(self, rung: Rung) -> Dtype:
        # tf32 applies to matrix products only: other operations compute in float32.
        return super()._format(rung) if self._real.name in rung.dtypes else named_dtype("f32")

    def _bind(self, rung: Rung, given: Tensors, values: Values) -> Prepared:
        def empty(name: str, shape: tuple[int, ...], kind: str) -> Array:
            label = f"{rung.full_name} {name} {shape}"
            if label not in self._scratch:
                self._scratch[label] = torch.empty(shape, dtype=dtype_of(kind, torch), device=self.device)
            return self._scratch[label]

        tuning: dict[str, int] | None = self.tunings.get(rung.full_name)
        if self.swept and self.on == "cuda" and rung.kind != "library":
            tuning = self._tuning(rung, given, values, empty)
        return rung.prepare(given, values, self._format(rung), device=self._device, tuning=tuning, empty=empty)

    def _tuning(self, rung: Rung, given: Tensors, values: Values, empty: Empty) -> dict[str, int]:
        """The tunables that were fastest when the rung was first used at this width, tried one at a time."""
        question = (rung.full_name, *(n for d, n in values.items() if d not in ("T", "past")))
        if question not in self._chosen:
            real = self._format(rung)
            usual = {name: choices[0] for name, choices in rung.tune.items()}
            tried = [usual, *({**usual, name: n} for name, choices in rung.tune.items() for n in choices[1:])]
            legal = [t for t in tried if rung.refusal(values, real, t, given, self._device) is None]
            with Compilers() as compilers:
                finish([compilers.submit(rung.full_name, values, real.name, t) for t in legal])
            runs = [rung.prepare(given, values, real, device=self._device, tuning=t, empty=empty).run for t in legal]
            times = [_time(run) for run in runs]
            self._chosen[question] = legal[times.index(min(times))]
        return self._chosen[question]


def _time(run: Callable[[], None]) -> float:
    """The median of several calls on the GPU, in milliseconds, after one warm-up call."""
    run()
    marks = [torch.cuda.Event(enable_timing=True) for _ in range(CALLS + 1)]  # type: ignore[no-untyped-call]
    marks[0].record()
    for mark in marks[1:]:
        run()
        mark.record()
    marks[-1].synchronize()
    return statistics.median(float(a.elapsed_time(b)) for a, b in itertools.pairwise(marks))


class _Course(Variant):
    """A step of the course: every token sends the whole text through the model."""

    def __init__(self, climber: Climber, step: Step, plan: CoursePlan) -> None:
        self.climber, self.plan = climber, plan
        self.rungs = tuple(rung.full_name for rung in self.plan.requested.values())
        self.model = Transformer(climber.config, converted(climber.weights, plan.matrix, plan.vector), plan)
        self.plan.remember(climber.config)

    def logits(self, text: Sequence[int]) -> tuple[int, torch.Tensor]:
        self.plan.begin()
        return 0, self.model.logits(torch.tensor([list(text)]))[0]

    @torch.inference_mode()
    def write(self, count: int) -> Iterator[int]:
        self.plan.begin()
        start = len(self.climber.prompt)
        ids = torch.zeros(1, start + count, dtype=torch.int64, device=self.plan.device)
        ids[0, :start] = torch.tensor(self.climber.prompt)
        for end in range(start, start + count):
            x = self.model.hidden(ids[:, :end])
            ids[0, end] = self.plan.matmul(x, self.model.weights.head)[0, -1].argmax()
            yield int(ids[0, end])


def steps() -> list[Step]:
    """The course, from its baseline on."""
    found: list[Step] = []
    rungs: dict[str, str] = {}
    for name, change in CHANGES.items():
        rungs = {o: rung for o, rung in {**rungs, **change.rungs}.items() if rung is not None}
        swept = "swept blocks" in {name, *(step.name for step in found)}
        found.append(Step(name, change.what, change.dtype, variant=_variant(dict(rungs), swept, change)))
    return found


def _variant(rungs: Mapping[str, str], swept: bool, change: Change) -> Callable[[Climber, Step], Variant]:
    return lambda climber, step: _Course(
        climber, step, CoursePlan(climber.device, change.dtype, rungs, swept, change.tunings)
    )
