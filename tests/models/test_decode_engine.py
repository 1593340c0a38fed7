"""The engine writes what the CPU writes, its kernels emulated."""

from __future__ import annotations

from collections.abc import Mapping
from types import SimpleNamespace

import pytest
import torch

from gpuless.base.expressions import Number
from rung.dtypes import dtype as named
from rung.errors import RungError
from rung.models.folders import INNER
from rung.models.gpt2.rungs import BY_OPERATIONS
from rung.models.gpu import engine as engine_module
from rung.models.gpu.engine import GpuSteps
from rung.models.load import Model, load
from rung.models.options import MOST_STOPS
from rung.models.sampling import Sampling
from rung.models.weights import Linear, Weights, read_weights
from rung.rungs import catalogue
from rung.rungs.base import Rung
from rung.rungs.cuda import CudaRung
from rung_reproduce.direct import logits_after
from written import written


@pytest.fixture(scope="module")
def model() -> Model:
    return load("inner", dtype="float32", device="cpu")


@pytest.fixture(scope="module")
def weights(model: Model) -> Weights:
    return read_weights(INNER, model.config, lambda w: Linear(w.float().contiguous()), lambda v: v.float())


@pytest.fixture(scope="module")
def engine(model: Model, weights: Weights) -> GpuSteps:
    return GpuSteps(model.config, weights, "float32", "emulator", rung="dependent_launch")


def prompts(model: Model, *texts: str) -> list[list[int]]:
    return [list(model.tokenizer.encode(text)) for text in texts]


def on_cpu(model: Model, given: list[list[int]], count: int, **how: object) -> list[list[int]]:
    run = model.generate(given, max_new_tokens=count, stop_tokens=(), **how)  # type: ignore[call-overload]
    return [list(c.tokens) for c in run]


def columns(steps: list[list[int]]) -> list[list[int]]:
    return [list(column) for column in zip(*steps, strict=True)]


@pytest.mark.parametrize("rung", ["recompute", "appended", "dependent_launch", "streamed"])
def test_greedy_text_is_the_cpus(model: Model, weights: Weights, rung: str) -> None:
    given = prompts(model, "Once upon a time")
    one = GpuSteps(model.config, weights, "float32", "emulator", rung=rung)
    assert columns(list(written(one, given, [3]))) == on_cpu(model, given, 3, temperature=0)


@pytest.mark.slow
@pytest.mark.parametrize(
    "how",
    [
        {"temperature": 0.8},
        {"temperature": 1.2, "top_k": 20},
        {"temperature": 1.2, "top_p": 0.8, "min_p": 0.01},
        {"temperature": 0.9, "top_k": 100, "top_p": 0.9, "repetition_penalty": 1.3, "frequency_penalty": 0.2},
        {"temperature": 0, "repetition_penalty": 1.5},
    ],
)
def test_sampled_text_is_the_cpus(model: Model, engine: GpuSteps, how: dict[str, float]) -> None:
    given = prompts(model, "The king")
    ours = written(engine, given, [5], sampling=Sampling(**how), seed=9)  # type: ignore[arg-type]
    assert columns(list(ours)) == on_cpu(model, given, 5, seed=9, **how)


def test_a_batch_of_unequal_prompts_is_each_alone(model: Model, engine: GpuSteps) -> None:
    given = prompts(model, "Once", "The old woman went into the forest and")
    together = columns(list(written(engine, given, [4, 4])))
    assert together == on_cpu(model, given, 4, temperature=0)


def test_a_batch_behind_one_of_longer_prompts_is_each_alone(model: Model, engine: GpuSteps) -> None:
    long = prompts(model, "The old woman went into the forest and", "Once upon a time there was a king")
    short = prompts(model, "Once", "The king was")
    list(written(engine, long, [3, 3]))
    assert columns(list(written(engine, short, [4, 4]))) == on_cpu(model, short, 4, temperature=0)


@pytest.mark.slow
def test_tensor_cores_write_the_same_text_for_many(model: Model, weights: Weights) -> None:
    many = GpuSteps(model.config, weights, "bfloat16", "emulator")
    given = prompts(model, "Once upon", "The king", "A dog", "In the forest", "She said")
    assert columns(list(written(many, given, [3] * 5))) == on_cpu(model, given, 3, temperature=0)


@pytest.mark.slow
def test_a_stop_token_ends_one_sequence_and_the_others_go_on(model: Model, engine: GpuSteps) -> None:
    given = prompts(model, "Once upon a time", "The king")
    free = columns(list(written(engine, given, [5, 5])))
    stop = next(t for t in free[0][:3] if t not in free[1])
    at = free[0].index(stop)
    ended = columns(list(written(engine, given, [5, 5], stop_tokens=[stop])))
    assert ended[0] == free[0][: at + 1] + [-1] * (4 - at)
    assert ended[1] == free[1]


def test_limits_are_each_sequences_own(model: Model, engine: GpuSteps) -> None:
    given = prompts(model, "Once", "The king")
    steps = columns(list(written(engine, given, [2, 4])))
    assert [sum(t >= 0 for t in row) for row in steps] == [2, 4]


def test_a_full_cache_ends_the_text(model: Model, engine: GpuSteps) -> None:
    context = model.config.context
    steps = list(written(engine, [[5] * (context - 1)], [9]))
    assert [row[0] >= 0 for row in steps[:2]] == [True, True]
    assert all(row[0] == -1 for row in steps[2:])


def test_more_stop_tokens_than_a_step_looks_for_are_refused(engine: GpuSteps) -> None:
    with pytest.raises(RungError, match="stop tokens"):
        list(written(engine, [[1]], [2], stop_tokens=range(MOST_STOPS + 1)))


def test_a_text_of_what_are_no_numbers_goes_on_with_tokens(model: Model, weights: Weights) -> None:
    one = GpuSteps(model.config, weights, "float32", "emulator", rung="dependent_launch")
    given = [prompts(model, "Once upon a time there was a king who had three sons and")[0][:n] for n in (12, 11)]
    expected = on_cpu(model, given, 7, temperature=0)
    one.operands["wpe"] = one.operands["wpe"].clone()  # in float32 it is the model's own
    one.operands["wpe"][16:] = torch.nan  # after everything that is read with the prompts
    found = columns(list(written(one, given, [7, 7])))
    for row, sound in zip(range(2), (5, 6), strict=True):
        assert found[row][:sound] == expected[row][:sound]
    assert all(0 <= token < model.config.vocabulary for row in found for token in row)


@pytest.mark.slow
@pytest.mark.parametrize("rung", ["recompute", "cached_projection", "appended"])
def test_logits_of_a_text_that_no_one_would_write(model: Model, weights: Weights, rung: str) -> None:
    given, text = prompts(model, "Once upon a time")[0], prompts(model, " xylophone dog the")[0][:3]
    one = GpuSteps(model.config, weights, "float32", "emulator", rung=rung)
    expected = model.transformer.logits(torch.tensor([[*given, *text]]))[0, -len(text) :]
    torch.testing.assert_close(logits_after(one, [given], [text])[0], expected, rtol=1e-4, atol=1e-4)


# ---- which rung serves ------------------------------------------------------------------------------------------

DECODE = catalogue.operation("decode")


def short(rung: Rung) -> str:
    """A rung's name without its number."""
    return rung.name.partition("_")[2]


def served(
    monkeypatch: pytest.MonkeyPatch,
    engine: GpuSteps,
    shape: str,
    tuned: tuple[str, ...] = (),
    rows: int = 1,
    capability: tuple[int, int] = (9, 0),
    unfit: tuple[str, ...] = (),
) -> str:
    """The name of the rung that a GPU would be given, which is tuned for these and has no room for those."""

    def best(rung: Rung, values: Mapping[str, Number], dtype: str, device: str) -> dict[str, int] | None:
        assert (values["B"], values["HS"], dtype, device) == (rows, 64, engine.real.name, "cuda")
        return rung.tuned(None) if short(rung) in tuned else None

    facts = SimpleNamespace(major=capability[0], minor=capability[1], multi_processor_count=132)
    monkeypatch.setattr(torch.cuda, "current_device", lambda: 0)
    monkeypatch.setattr(torch.cuda, "get_device_properties", lambda index: facts)
    monkeypatch.setattr(engine_module.tunings, "best", best)
    monkeypatch.setattr(engine, "device", "cuda")
    monkeypatch.setattr(CudaRung, "unfit", lambda rung, *_: "does not fit" if short(rung) in unfit else None)
    rung = engine.rung({**DECODE.shapes[shape], "B": rows})
    return BY_OPERATIONS if rung is None else short(rung)


def of(model: Model, weights: Weights, dtype: str) -> GpuSteps:
    return GpuSteps(model.config, weights, dtype, "emulator")


@pytest.mark.parametrize(
    ("tuned", "name"),
    [
        ((), "dependent_launch"),
        (("streamed",), "streamed"),
        (("pacing",), "pacing"),
        (("streamed", "pacing"), "pacing"),
        (("dependent_launch", "batch", "library_products"), "dependent_launch"),
    ],
)
def test_a_small_model_is_served_by_what_is_tuned_for_it(
    monkeypatch: pytest.MonkeyPatch, model: Model, weights: Weights, tuned: tuple[str, ...], name: str
) -> None:
    assert served(monkeypatch, of(model, weights, "bfloat16"), "gpt2", tuned) == name


@pytest.mark.parametrize("shape", ["gpt2-medium", "gpt2-large", "gpt2-xl"])
@pytest.mark.parametrize("tuned", [(), ("streamed",), ("pacing",)])
def test_a_wide_model_is_served_by_one_kernel_whatever_is_tuned(
    monkeypatch: pytest.MonkeyPatch, model: Model, weights: Weights, shape: str, tuned: tuple[str, ...]
) -> None:
    assert served(monkeypatch, of(model, weights, "float16"), shape, tuned) == "pacing"


@pytest.mark.parametrize(
    ("dtype", "shape", "how", "name"),
    [
        ("float32", "gpt2", {"tuned": ("pacing",)}, "pacing"),
        ("float32", "gpt2", {"tuned": ("clusters",)}, "dependent_launch"),  # clusters have 16 bits
        ("float32", "gpt2", {"tuned": ("streamed", "pacing")}, "pacing"),
        ("float32", "gpt2-xl", {}, "streamed"),
        ("int8", "gpt2", {"tuned": ("streamed", "pacing")}, "streamed_int8"),
        ("int8", "gpt2", {"tuned": ("streamed_int8", "pacing_int8")}, "pacing_int8"),
        ("int8", "gpt2-xl", {}, "pacing_int8"),
        ("int8", "gpt2-xl", {"rows": 2}, "few_rows_int8"),
        ("float32", "gpt2", {"rows": 2, "tuned": ("pacing",)}, "dependent_launch"),  # and is for one sequence
        ("float16", "gpt2", {"rows": 2, "tuned": ("pacing",)}, "few_rows"),
        ("float16", "gpt2", {"rows": 4, "tuned": ("streamed", "pacing")}, "few_rows"),
        ("float16", "gpt2-xl", {"rows": 2}, "few_rows"),
        (
            "float16",
            "gpt2-xl",
            {"rows": 2, "unfit": ("few_rows",)},
            "streamed",
        ),  # its compiled code needs more than there is
        ("float16", "gpt2", {"rows": 8, "tuned": ("streamed", "pacing")}, "few_rows"),
        ("float16", "gpt2", {"rows": 9, "tuned": ("streamed", "pacing")}, "batch"),
        ("bfloat16", "gpt2", {"rows": 8, "tuned": ("pacing",)}, "few_rows"),
        ("bfloat16", "gpt2", {"rows": 9}, BY_OPERATIONS),
        ("bfloat16", "gpt2-xl", {"rows": 2}, BY_OPERATIONS),
        ("bfloat16", "gpt2-xl", {"rows": 16}, "batch"),
        ("bfloat16", "gpt2", {"rows": 17, "tuned": ("streamed", "pacing")}, "batch"),
        ("bfloat16", "gpt2-xl", {"rows": 32}, "batch"),
        ("bfloat16", "gpt2-xl", {"rows": 33}, "library_products"),
        (
            "bfloat16",
            "gpt2",
            {"tuned": ("pacing",), "capability": (8, 0)},
            "dependent_launch",
        ),  # and for a GPU that has its instructions
        ("bfloat16", "gpt2-xl", {"capability": (8, 0)}, "streamed"),
    ],
)
def test_what_does_not_fit_is_passed_over(
    monkeypatch: pytest.MonkeyPatch,
    model: Model,
    weights: Weights,
    dtype: str,
    shape: str,
    how: dict[str, object],
    name: str,
) -> None:
    assert served(monkeypatch, of(model, weights, dtype), shape, **how) == name  # type: ignore[arg-type]


def test_the_emulator_asks_for_no_tuning(monkeypatch: pytest.MonkeyPatch, model: Model, weights: Weights) -> None:
    monkeypatch.setattr(engine_module.tunings, "best", lambda *_, **__: pytest.fail("no GPU is asked for"))
    one = of(model, weights, "bfloat16")
    assert [short(one.rung(DECODE.shapes[name])) for name in ("gpt2", "gpt2-medium")] == ["dependent_launch", "pacing"]


@pytest.mark.parametrize("name", ["decode/one_row", "decode/dependent_launch", "decode/dependent_launch_int8"])
@pytest.mark.parametrize("tuning", [{"FC2_THREADS": 384, "FC2_SPLIT": 8}, {"PROJ_THREADS": 128, "PROJ_SPLIT": 4}])
def test_the_warps_of_a_row_lie_in_one_block(name: str, tuning: dict[str, int]) -> None:
    rung = catalogue.find(name)
    values = rung.operation.complete(rung.operation.shapes["gpt2"])
    split, threads = (next(n for p, n in tuning.items() if p.endswith(part)) for part in ("SPLIT", "THREADS"))
    refused = rung.refusal(values, named("bf16"), tuning) is not None
    assert refused == (threads // 32 % split != 0)
