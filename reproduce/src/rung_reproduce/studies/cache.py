"""The KV cache: a step's time over its position, the first pass and later ones, and the bytes."""

from __future__ import annotations

import itertools
import statistics
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import partial

import torch

from rung.errors import RungError
from rung.models import family
from rung.models import weights as model_weights
from rung.models.cache import Cache
from rung.models.family import Config
from rung.models.gpu.engine import GpuSteps
from rung.models.gpu.slots import GpuBackend
from rung.models.plan import TorchPlan
from rung.models.plans import make_plan
from rung.models.transformer import Transformer
from rung.models.weights import Weights, converted
from rung.rungs import catalogue, identity
from rung_reproduce.climbs import course
from rung_reproduce.climbs import model as generation
from rung_reproduce.direct import write_texts
from rung_reproduce.show import charts
from rung_reproduce.show.charts import Found
from rung_reproduce.studies.common import Runner, times

POSITIONS = (8, 64, 128, 256, 512, 768, 1000)
LONGEST_ON_A_CPU = 512  # where a pass over 1000 tokens takes seconds
STEPS = 8  # tokens written after each prompt: the same number in every variant
WITHOUT, WITH = "without", "with"
PLAN = "flash"  # of the model on a GPU
WARM, TIMED = 2, 5  # texts
# The course's step: cuBLAS for the projection, then prepare_qkv, a naive product that fills and reads the cache.
COURSE: dict[str, dict[str, str]] = {"course, cuBLAS": {}, "course, prepare_qkv": {course.PROJECTION: "1"}}
FLASH = {"embedding": "1", "layernorm": "18", "attention": "26", "gelu": "1", "residual": "1"}
COLOURS = ("ink", *charts.SERIES)
DECODE = ("01_recompute", "02_cached_projection", "03_appended", "04_one_row")
Write = Callable[[Sequence[int]], Iterator[int]]  # of a prompt, STEPS greedy tokens


@dataclass(frozen=True)
class Passes:
    """Seconds of each pass over one text: the first reads the prompt, the others one token each."""

    tokens: tuple[int, ...]
    seconds: tuple[float, ...]

    @property
    def step(self) -> float:
        """Median seconds of a later pass."""
        return sorted(self.seconds[1:])[len(self.seconds[1:]) // 2]


def run(runner: Runner, *, config: Config | None = None) -> Found:
    """GPT-2 with random weights in float32; every variant writes the same tokens."""
    config = config or family.config_of("gpt2")
    device = "cuda" if runner.gpu else "cpu"
    weights = model_weights.weights_of(config, device)
    chosen = POSITIONS[::3] if runner.quick else POSITIONS
    positions = [p for p in chosen if p + STEPS <= config.context and (runner.gpu or p <= LONGEST_ON_A_CPU)]
    found: dict[str, dict[int, Passes]] = {}
    for name, write in _methods(config, weights, device):
        for position in positions:
            found.setdefault(name, {})[position] = _timed(write, _prompt(config, position))
    for name, by in found.items():
        for position, passes in by.items():
            if passes.tokens != found[WITHOUT][position].tokens:
                raise RungError(f"{name} writes other tokens after {position} than the model without a cache.")
    return report(found, config, "an NVIDIA GPU" if runner.gpu else f"a CPU, {torch.get_num_threads()} threads")


def _prompt(config: Config, length: int) -> list[int]:
    generator = torch.Generator().manual_seed(length)
    return torch.randint(config.vocabulary, (length,), generator=generator).tolist()


def _methods(config: Config, weights: Weights, device: str) -> Iterator[tuple[str, Write]]:
    """One model with and without a cache, with the same kernels; then, on a GPU, the first rungs of decode."""
    where = torch.device(device)
    on_torch = TorchPlan(where, torch.float32, torch.float32)
    plan = make_plan("cuda", "float32", PLAN, {}) if device == "cuda" else on_torch
    model = Transformer(config, converted(weights, plan.matrix, plan.vector), plan)

    caches: dict[int, Cache] = {}  # a new one each time would bind every rung anew

    def cached(prompt: Sequence[int]) -> Iterator[int]:
        length = len(prompt) + STEPS
        if length not in caches:
            caches[length] = model.new_cache(1, length)
        cache = caches[length]
        cache.begin(1)
        new = list(prompt)
        for _ in range(STEPS):
            new = [int(model.advance([new], cache)[0].argmax())]
            yield new[0]

    yield WITHOUT, partial(_whole, model)
    yield WITH, cached
    if device == "cuda":
        for way, change in COURSE.items():
            rungs = {o: r for o, r in {**course.CHANGES["fused kernels"].rungs, **FLASH, **change}.items() if r}
            yield way, _of_the_course(config, weights, rungs)
    for name in DECODE if device == "cuda" else ():
        engine = GpuSteps(config, weights, "float32", "cuda", rung=name, graph=False, steps=1)
        slots = GpuBackend(None, engine, 1, exact=True)
        yield f"decode/{name}", lambda prompt, slots=slots: (t for (t,) in write_texts(slots, [prompt], [STEPS]))  # type: ignore[misc]


def _whole(model: Transformer, prompt: Sequence[int]) -> Iterator[int]:
    """Each token by a pass of the whole text."""
    text = list(prompt)
    for _ in range(STEPS):
        with torch.inference_mode():
            x = model.hidden(torch.tensor([text], device=model.plan.device))[:, -1:]
            text.append(int(model.plan.matmul(x, model.weights.head)[0, 0].argmax()))
        yield text[-1]


def _of_the_course(config: Config, weights: Weights, rungs: Mapping[str, str]) -> Write:
    """Whole passes of the course's model; with a cached projection, keys and values of the passes before."""
    plan = course.CoursePlan("cuda", "float32", rungs, swept=False)
    model = Transformer(config, converted(weights, plan.matrix, plan.vector), plan)
    plan.remember(config)

    def write(prompt: Sequence[int]) -> Iterator[int]:
        plan.begin()
        yield from _whole(model, prompt)

    return write


def _timed(write: Write, prompt: Sequence[int]) -> Passes:
    """Twice to warm up, then each pass's median over several texts; the host reads a token when its pass is done."""
    for _ in range(WARM):
        list(write(prompt))
    tokens: list[int] = []
    runs = []
    for _ in range(TIMED):
        tokens, stamps = [], [time.perf_counter()]
        for token in write(prompt):
            tokens.append(token)
            stamps.append(time.perf_counter())
        runs.append([b - a for a, b in itertools.pairwise(stamps)])
    return Passes(tuple(tokens), tuple(statistics.median(seconds) for seconds in zip(*runs, strict=True)))


def cache_bytes(config: Config, tokens: int) -> int:
    """Keys and values of one text in float32."""
    return 2 * config.layers * config.C * 4 * tokens


def report(found: dict[str, dict[int, Passes]], config: Config, machine: str) -> Found:
    """Steps over their position, then first and later passes."""
    names, positions = list(found), list(found[WITHOUT])
    rungs = {f"decode/{name}" for name in DECODE}
    whole = Found(
        f"A step of GPT-2 in float32 on {machine}, with and without a cache of keys and values",
        ("N", *(f"{name}, ms" for name in names), "cache, MB"),
        [
            (p, *(f"{found[n][p].step * 1e3:.3f}" for n in names), f"{cache_bytes(config, p) / 1e6:.2f}")
            for p in positions
        ],
        sentence(found),
        [charts.Series(n, [(float(p), found[n][p].step * 1e3) for p in positions], COLOURS[i % len(COLOURS)])
         for i, n in enumerate(names)],
        "tokens before the step",
        "ms per step",
    )  # fmt: skip
    whole.weights = "random"
    whole.more["passes"] = Found(
        f"The first pass, which reads the prompt, and the later passes, on {machine}",
        ("N", "way", "first ms", "second ms", "later ms", "first / later", "tokens"),
        [
            (p, n, f"{t.seconds[0] * 1e3:.3f}", f"{t.seconds[1] * 1e3:.3f}", f"{t.step * 1e3:.3f}",
             f"{t.seconds[0] / t.step:.2f}x", len(t.tokens))
            for p in positions for n in names if n not in rungs for t in [found[n][p]]
        ],
        _first(found),
        weights="random",
    )  # fmt: skip
    if set(names) & rungs:
        ran = [*generation.rungs_of(PLAN), *(n for n in names if n in rungs)]
        whole.texts = {r: identity.text(catalogue.find(r)) for r in ran}
    return whole


def sentence(found: dict[str, dict[int, Passes]]) -> str:
    """The gain of the cache at both ends."""
    few, many = min(found[WITHOUT]), max(found[WITHOUT])
    gains = {p: found[WITHOUT][p].step / found[WITH][p].step for p in (few, many)}
    grown = {n: found[n][many].step / found[n][few].step for n in (WITHOUT, WITH)}
    return (
        f"The cache makes a step {times(gains[few])} as fast after {few} tokens and {times(gains[many])} after "
        f"{many}: without it a step takes {times(grown[WITHOUT])} as long there, with it {times(grown[WITH])}. "
        f"Every variant wrote the same {STEPS} tokens after each prompt."
    )


def _first(found: dict[str, dict[int, Passes]]) -> str:
    many = max(found[WITHOUT])
    cost = found[WITH][many].seconds[0] / found[WITHOUT][many].seconds[0]
    later = found[WITH][many].seconds[0] / found[WITH][many].step
    return (
        f"After {many} tokens the first pass takes {cost:.2f} times as long when it fills the cache as when there is "
        f"none; a later pass is {times(later)} as fast as the first."
    )
