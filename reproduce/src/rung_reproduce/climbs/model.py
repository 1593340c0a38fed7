"""The climb of the whole model: the same prompt from the simplest kernels to the fastest decode. Every step is compared
with a float32 reference before it is timed: logits over a fixed text (KL divergence per token, share of positions with
the same most likely token), and in float32 the greedy text itself. A step that fails gets no speed.
"""

from __future__ import annotations

import gc
import time
from abc import ABC, abstractmethod
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field, replace

import torch

from rung.bench import race
from rung.errors import RungError, first_line
from rung.models.family import TOKENIZED, Config, read_config, requested
from rung.models.folders import find
from rung.models.generate import Run
from rung.models.gpu.engine import DTYPES, GpuSteps
from rung.models.gpu.slots import GpuBackend
from rung.models.operations import PLANS, plan_rungs
from rung.models.operations import find as find_rung
from rung.models.options import Options, Prompt
from rung.models.plan import TorchPlan
from rung.models.plans import make_plan
from rung.models.sampling import Sampling
from rung.models.tokenizer import read_tokenizer
from rung.models.transformer import Transformer
from rung.models.weights import Linear, Weights, converted, read_weights, weight_bytes, weights_of
from rung.profile.trace import kernel_seconds
from rung.results import machine
from rung.results.row import Row as Result
from rung.rungs import catalogue, identity
from rung.rungs.base import Device
from rung_reproduce.direct import logits_after, write_texts

GREEDY = Sampling(temperature=0)
# How far a number format may take the logits from float32's, as KL divergence per token in nats.
DIVERGENCE = {"float32": 1e-6, "tf32": 1e-3, "float16": 1e-3, "bfloat16": 3e-2, "int8": 5e-2}
IDENTICAL = 128  # greedy tokens that float32 must share with the reference
PROFILED = 50  # tokens whose kernels are timed
COMPARED = 48  # positions whose logits are compared
FOR_BATCHES = ("07_batch", "08_library_products", "09_eight_bit_cache")  # the climb writes one sequence
AHEAD = "06_streamed"  # from this rung of decode on, eight steps are one graph
# Rungs that are launched in another way, too: the step's name and idea, and the number of steps in a graph.
LAUNCHED = {
    "04_one_row": ("one graph", "The whole step is one CUDA graph: the host launches once per token", 1),
    "05_dependent_launch": ("ahead", "Eight steps are one graph: the GPU runs ahead, the host reads tokens", 8),
}


@dataclass
class Climbed:
    """One step of the climb."""

    name: str
    what: str
    dtype: str
    verdict: str = "ok"
    reason: str = ""
    divergence: float | None = None  # KL, nats per token
    likeliest: float | None = None  # share of positions with the same most likely token
    identical: int | None = None  # greedy tokens up to the first that differs
    tokens: int = 0  # generated for the timing
    tokens_per_second: float | None = None
    kernel_seconds: float | None = None  # of a token, without the host's launches
    first_seconds: float | None = None
    peak_bytes: int | None = None
    of_bandwidth: float | None = None
    gain: float | None = None  # speed relative to the step before
    rungs: tuple[str, ...] = ()  # rungs that ran


@dataclass
class Climb:
    """All steps, and what they were measured with."""

    model: str
    prompt_tokens: int
    new_tokens: int
    reference: str
    bandwidth: float | None  # None where no speed of a GPU is reported
    on_gpu: bool = True
    study: str = ""  # ladder whose steps are climbed; each is compared with the previous one, in any format
    rows: list[Climbed] = field(default_factory=list)

    def result(self, index: int, weights: str) -> Result:
        """One step as the results store keeps it."""
        row = self.rows[index]
        figures: dict[str, float | None] = {
            "tokens_per_s": row.tokens_per_second,
            "kernel_ms": None if row.kernel_seconds is None else row.kernel_seconds * 1e3,
            "first_ms": None if row.first_seconds is None else row.first_seconds * 1e3,
            "peak_bytes": row.peak_bytes,
            "of_bandwidth": row.of_bandwidth,
            "vs_before": row.gain,
            "kl_nats": row.divergence,
            "same_likeliest": row.likeliest,
            "same_tokens": row.identical,
            "tokens": row.tokens or None,
        }
        options: dict[str, int | str] = {"prompt_tokens": self.prompt_tokens, "new_tokens": self.new_tokens}
        if self.study:
            options["study"] = self.study
        return Result(
            kind="climb",
            what=self.model,
            part=row.name,
            dtype=row.dtype,
            options=options,
            texts={name: identity.text(catalogue.find(name)) for name in row.rungs},
            verdict=row.verdict,
            reason=row.reason,
            detail={"step": index, "idea": row.what, "reference": self.reference},
            weights=weights,
            machine=machine.facts() if self.on_gpu else {**machine.facts(), "gpu": ""},
            state=machine.state(),
        ).with_metrics(**figures)


@dataclass(frozen=True)
class Step:
    """One variant of generation: a plan over the operations, or a rung of decode with its kind of launch."""

    name: str
    what: str
    dtype: str
    plan: str | None = None
    rung: str | None = None
    graph: bool = False
    steps: int = 1
    variant: Callable[[Climber, Step], Variant] | None = None  # a custom variant, neither a plan nor a rung of decode


def steps(dtypes: Sequence[str], plans: Sequence[str] | None = None, rungs: Sequence[str] | None = None) -> list[Step]:
    """Plan after plan, then decode rung after decode rung, for each number format."""
    found = []
    for dtype in dtypes:
        if dtype != "int8":
            chosen = [name for name in PLANS if name != "best"] if plans is None else plans
            found += [Step(f"plan {name}", _plan_text(name), dtype, plan=name) for name in chosen]
        for rung in catalogue.rungs("decode", libraries=False):
            eight = "qkv_q" in rung.binds
            if DTYPES[dtype] not in rung.dtypes or eight != (dtype == "int8") or rung.name in FOR_BATCHES:
                continue
            if rungs is not None and rung.name not in rungs and str(rung.number) not in rungs:
                continue
            plain = Step(f"decode {rung.name}", rung.idea, dtype, rung=rung.name)
            graph, ahead = rung.name > "04_one_row", rung.name >= AHEAD
            found.append(replace(plain, graph=graph, steps=8 if ahead else 1))
            if rung.name in LAUNCHED:
                how, idea, count = LAUNCHED[rung.name]
                found.append(replace(plain, name=f"{plain.name}, {how}", what=idea, graph=True, steps=count))
    return found


def _plan_text(name: str) -> str:
    served = ", ".join(f"{operation} {' or '.join(rungs)}" for operation, rungs in plan_rungs(name).items())
    return served or "every operation by torch"


def rungs_of(plan: str) -> tuple[str, ...]:
    """The rungs that a plan may run."""
    return tuple(find_rung(o, name).full_name for o, names in plan_rungs(plan).items() for name in names)


def model_of(model: str, prompt: str, device: str) -> tuple[Config, Weights, list[int]]:
    if (config := requested(model)) is not None:
        if prompt not in TOKENIZED:
            raise RungError("random weights have no tokenizer; leave --prompt out, or name a real --model.")
        where = "cuda" if device == "cuda" else "cpu"
        return config, weights_of(config, where), list(TOKENIZED[prompt])
    folder = find(model)
    config = read_config(folder / "config.json")
    weights = read_weights(folder, config, lambda w: Linear(w.float().contiguous()), lambda v: v.float())
    return config, weights, list(read_tokenizer(folder).encode(prompt))


def bandwidth_of(device: str) -> float | None:
    if device != "cuda":
        return None
    return race.measure_ceilings().bytes


class Climber:
    """Takes the steps for one model and prompt."""

    def __init__(
        self,
        name: str,
        config: Config,
        weights: Weights,
        prompt: Sequence[int],
        new_tokens: int,
        *,
        device: Device = "cuda",
        bandwidth: float | None = None,
        seconds: float = 12.0,
        study: str = "",
        progress: Callable[[Climbed], None] = lambda row: None,
    ) -> None:
        if len(prompt) + new_tokens > config.context + 1:
            raise RungError(
                f"{len(prompt)} and {new_tokens} tokens are more than the context of {config.context}; "
                "ask for fewer (--tokens)."
            )
        self.config, self.weights, self.device, self.seconds = config, weights, device, seconds
        self.prompt, self.progress = tuple(prompt), progress
        where = torch.device("cuda" if device == "cuda" else "cpu")
        reference = TorchPlan(where, torch.float32, torch.float32)
        self._reference = Transformer(config, converted(weights, reference.matrix, reference.vector), reference)
        greedy = self._greedy_reference(min(IDENTICAL, new_tokens))
        self.text = [*self.prompt, *greedy]
        ids = torch.tensor([self.text[: len(prompt) + COMPARED]])
        self.truth = self._reference.logits(ids)[0].double().log_softmax(-1)
        self.result = Climb(name, len(prompt), new_tokens, "torch float32", bandwidth, device == "cuda", study)

    def _greedy_reference(self, count: int) -> list[int]:
        run = Run(self._reference, None, [Prompt("", self.prompt)], Options(sampling=GREEDY, max_new_tokens=count))
        for _ in run:
            pass
        return run.completions[0].tokens

    def climb(self, chosen: Sequence[Step]) -> Iterator[int]:
        """All steps, one after the other: the row of each, by its index; one that fails is a row with its reason."""
        before: dict[str, float] = {}
        for step in chosen:
            row = Climbed(step.name, step.what, step.dtype)
            try:
                self._take(step, row)
            except (RungError, RuntimeError) as error:
                row.verdict, row.reason = "failed", first_line(error, 300)
            if row.tokens_per_second is not None:
                chain = self.result.study or step.dtype
                row.gain = row.tokens_per_second / before[chain] if chain in before else None
                before[chain] = row.tokens_per_second
            self.result.rows.append(row)
            self.progress(row)
            gc.collect()
            if self.device == "cuda":
                torch.cuda.empty_cache()
            yield len(self.result.rows) - 1

    def _take(self, step: Step, row: Climbed) -> None:
        if self.device == "cuda":
            torch.cuda.reset_peak_memory_stats()
        variant = (step.variant or (_Planned if step.rung is None else _Decoded))(self, step)
        row.rungs = variant.rungs
        self._gate(variant, row)
        if row.verdict != "ok":
            return
        if self.device != "cuda":
            row.reason = "right; an emulator has no speed"
            return
        self._time(variant, row)
        row.peak_bytes = torch.cuda.max_memory_allocated()
        if row.tokens_per_second is not None and self.result.bandwidth:
            row.of_bandwidth = row.tokens_per_second * weight_bytes(self.config, step.dtype) / self.result.bandwidth

    def _gate(self, variant: Variant, row: Climbed) -> None:
        first, logits = variant.logits(self.text[: len(self.prompt) + COMPARED])
        ours = logits.double().log_softmax(-1)
        truth = self.truth[first : first + len(ours)]
        row.divergence = float((truth.exp() * (truth - ours)).sum(-1).mean())
        row.likeliest = float((truth.argmax(-1) == ours.argmax(-1)).double().mean())
        if not row.divergence <= DIVERGENCE[row.dtype]:
            row.verdict = "failed"
            row.reason = f"diverges from float32 by {row.divergence:.2g} nats per token"
            return
        expected = self.text[len(self.prompt) :]
        count = min(len(expected), 24 if variant.slow else len(expected))
        same = 0
        for token, other in zip(variant.write(count), expected, strict=False):
            if token != other:
                break
            same += 1
        row.identical = same
        if row.dtype == "float32" and same < count:
            row.verdict, row.reason = "failed", f"its greedy text differs from the reference's at token {same + 1}"

    def _time(self, variant: Variant, row: Climbed) -> None:
        # A slow step writes as many tokens as fit the time, since its rate falls with the length of the text.
        began = time.perf_counter()
        first, count = 0.0, 0
        for _ in variant.write(self.result.new_tokens):
            count += 1
            now = time.perf_counter() - began
            first = first or now
            if now > self.seconds:
                break
        row.first_seconds, row.tokens = first, count
        row.tokens_per_second = count / (time.perf_counter() - began)
        row.kernel_seconds = kernel_seconds(lambda: sum(1 for _ in variant.write(min(count, PROFILED))))


class Variant(ABC):
    """One variant of text generation in the climb."""

    slow = False
    rungs: tuple[str, ...] = ()  # that run

    @abstractmethod
    def logits(self, text: Sequence[int]) -> tuple[int, torch.Tensor]:
        """Go to a position in the text and return the logits after it and after later tokens."""

    @abstractmethod
    def write(self, count: int) -> Iterator[int]:
        """Write this many tokens after the prompt."""


class _Planned(Variant):
    """Through the operations; tokens are chosen on the host."""

    def __init__(self, climber: Climber, step: Step) -> None:
        self.climber = climber
        plan = make_plan(climber.device, step.dtype, step.plan, {})
        self.model = Transformer(climber.config, converted(climber.weights, plan.matrix, plan.vector), plan)
        self.slow = step.plan != "torch"
        self.rungs = rungs_of(str(step.plan))

    def logits(self, text: Sequence[int]) -> tuple[int, torch.Tensor]:
        return 0, self.model.logits(torch.tensor([list(text)]))[0]

    def write(self, count: int) -> Iterator[int]:
        options = Options(sampling=GREEDY, max_new_tokens=count)
        run = Run(self.model, None, [Prompt("", self.climber.prompt)], options)
        for _ in run:
            yield run.completions[0].tokens[-1]


class _Decoded(Variant):
    """Through one rung of decode."""

    def __init__(self, climber: Climber, step: Step) -> None:
        self.climber = climber
        rung = catalogue.find(f"decode/{step.rung}")
        self.slow = (rung.number or 0) < 3
        self.rungs = (rung.full_name,)
        self.engine = GpuSteps(
            climber.config, climber.weights, step.dtype, climber.device,
            rung=step.rung, graph=step.graph, steps=step.steps,
        )  # fmt: skip
        self.slots = GpuBackend(None, self.engine, 1, exact=True)

    def logits(self, text: Sequence[int]) -> tuple[int, torch.Tensor]:
        start = len(self.climber.prompt)
        end = min(len(text), start + 6) if self.slow else len(text)
        return start, logits_after(self.engine, [text[:start]], [text[start:end]])[0]

    def write(self, count: int) -> Iterator[int]:
        for step in write_texts(self.slots, [self.climber.prompt], [count]):
            yield step[0]
