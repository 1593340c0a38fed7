"""The attention ladders: what the checker's own cases and default tilings do not reach."""

from __future__ import annotations

import pytest
import torch

from rung.arrays import dtype_of
from rung.check.judge import check
from rung.check.report import LADDER
from rung.dtypes import DTYPES
from rung.dtypes import dtype as dtype_named
from rung.errors import RungError
from rung.operation import Tensors, Values
from rung.rungs import catalogue
from rung.rungs.base import Rung

ATTENTION = catalogue.operation("attention")


def inputs(name: str, values: Values, dtype: str = "f32") -> Tensors:
    operation = catalogue.operation(name)
    return operation.inputs(
        operation.complete(values),
        dtype_named(dtype),
        seed=11,
        empty=lambda _, shape, kind: torch.full(shape, torch.nan, dtype=dtype_of(kind, torch)),
    )


def run(spec: str, values: Values, tensors: Tensors, dtype: str = "f32", **tuning: int) -> Tensors:
    rung = catalogue.find(spec)
    full = rung.operation.complete(values)
    operands_used = {n: t for n, t in tensors.items() if n != "lse" or "lse" in rung.binds}
    rung.prepare(operands_used, full, dtype_named(dtype), device="emulator", tuning=tuning).run()
    return operands_used


def rungs(name: str) -> list[Rung]:
    return list(catalogue.rungs(name, libraries=False))


@pytest.mark.parametrize(
    "rung", [r for r in rungs("attention") if 13 <= (r.number or 0) < 36], ids=lambda r: r.name
)
def test_every_flash_rung_offers_the_logsumexp(rung: Rung) -> None:
    assert "lse" in rung.binds


@pytest.mark.slow
@pytest.mark.parametrize("rung", ["sdpa_math", *(r.name for r in rungs("attention") if not r.emulate)])
def test_the_first_token_only_sees_itself(rung: str) -> None:
    values: Values = dict(B=1, T=5, C=32, NH=1)
    dtype = catalogue.find(f"attention/{rung}").dtypes[0]
    tensors = inputs("attention", values, dtype)
    out = run(f"attention/{rung}", values, tensors, dtype)["out"]
    torch.testing.assert_close(out[:, 0], tensors["v"][:, 0, 0], rtol=1e-3, atol=1e-3)


@pytest.mark.parametrize("rung", [r.name for r in rungs("local_attention") if not r.emulate])
def test_a_window_that_covers_the_sequence_is_full_attention(rung: str) -> None:
    values: Values = dict(B=1, T=37, C=64, NH=2)
    dtype = catalogue.find(f"local_attention/{rung}").dtypes[0]
    tensors = inputs("local_attention", values, dtype)
    exact = {n: tensors[n].double() for n in ("q", "k", "v")}
    full = ATTENTION.reference(exact, ATTENTION.complete(values))["out"]
    of, real = catalogue.find(f"local_attention/{rung}"), dtype_named(dtype)
    complete = [of.operation.complete({**values, "window": window}) for window in (37, 100, 64, 128)]
    supported = [full_values["window"] for full_values in complete if of.refusal(full_values, real) is None]
    assert len(supported) >= 2  # some take powers of two only
    for window in supported[:2]:
        out = run(f"local_attention/{rung}", {**values, "window": window}, tensors, dtype)["out"]
        assert (out.double() - full).norm() / full.norm() < DTYPES[dtype].norm_cap


def test_the_window_includes_the_querys_own_key() -> None:
    values: Values = dict(B=1, T=9, C=32, NH=1, window=1)
    tensors = inputs("local_attention", values)
    out = run("local_attention/1", values, tensors)["out"]
    torch.testing.assert_close(out, tensors["v"][:, 0])


@pytest.mark.slow
@pytest.mark.parametrize(
    ("spec", "tuning"),
    [
        ("attention/9", {"COARSE": 4}),
        ("attention/9", {"COARSE": 16, "BLOCK": 128}),
        ("attention/12", {"BLOCK": 256}),
        ("attention/13", {"BR": 64, "BC": 32}),
        ("attention/14", {"BR": 32, "BC": 64}),
        ("attention/17", {"BR": 16}),
        ("attention/20", {"BR": 16}),
        ("attention/22", {"BR": 32}),
        ("attention/24", {"BR": 128, "TM": 8}),
        ("attention/24", {"TM": 8, "TN": 8}),
        ("attention/24", {"BC": 32, "TN": 8}),
        ("attention/27", {"MT": 1, "WARPS": 8}),
        ("attention/27", {"MT": 1, "BC": 128, "STAGES": 3}),
        ("attention/27", {"BC": 32, "STAGES": 3}),
        ("attention/28", {"SPLITS": 8, "BC": 32}),
        ("attention/28", {"SPLITS": 2, "WARPS": 2, "STAGES": 3}),
        ("attention/29", {"BR": 64, "BC": 32}),
        ("local_attention/3", {"BC": 32, "TM": 8}),
        ("local_attention/4", {"MT": 1, "BC": 32, "STAGES": 3}),
        ("local_attention/5", {"BR": 128, "BC": 32}),
    ],
)
def test_other_tilings_are_right_too(spec: str, tuning: dict[str, int]) -> None:
    rung = catalogue.find(spec)
    case = "2^7 + 2" if rung.operation is ATTENTION else "across tiles"
    report = check(rung, rung.dtypes[0], device="emulator", case=case, tuning=tuning, effort=LADDER)
    assert report.verdict == "ok", report.reason


@pytest.mark.parametrize("spec", ["attention/24", "attention/26"])
def test_a_scale_of_ones_own_is_used(spec: str) -> None:
    values: Values = dict(B=1, T=19, C=32, NH=1, scale=0.5)
    tensors = inputs("attention", values)
    exact = ATTENTION.reference({n: tensors[n].double() for n in ("q", "k", "v")}, ATTENTION.complete(values))
    written = run(spec, values, tensors)
    torch.testing.assert_close(written["out"].double(), exact["out"], rtol=1e-4, atol=1e-5)
    torch.testing.assert_close(written["lse"].double(), exact["lse"], rtol=1e-4, atol=1e-5)


@pytest.mark.parametrize(
    ("spec", "dtype", "values", "rule"),
    [
        ("attention/27", "bf16", dict(B=1, T=4, C=24, NH=1), "HS % 16 == 0"),
        ("attention/27", "f32", dict(B=1, T=4, C=32, NH=1), "has no f32 version"),
        ("attention/24", "f32", dict(B=1, T=4, C=33, NH=1), "HS % 4 == 0"),
        ("attention/10", "tf32", dict(B=1, T=4, C=40, NH=1), "HS % 16 == 0"),
        ("local_attention/1", "f32", dict(B=1, T=4, C=32, NH=1, window=0), "1 <= window <= 1024"),
    ],
)
def test_what_a_rung_cannot_do_is_refused_by_rule(spec: str, dtype: str, values: Values, rule: str) -> None:
    name = spec.partition("/")[0]
    with pytest.raises(RungError) as refusal:
        run(spec, values, inputs(name, values, dtype), dtype)
    assert rule in str(refusal.value)


@pytest.mark.parametrize("spec", [*(f"attention/{n}" for n in range(30, 36)), "local_attention/6"])
def test_a_block_of_keys_that_some_queries_see_nothing_of_is_refused(spec: str) -> None:
    """Of the first block, the last in order, each of 64 queries has to see one key: else its maximum is no number."""
    rung = catalogue.find(spec)
    values, dtype = rung.operation.complete(dict(B=1, T=130, C=32, NH=1)), dtype_named(rung.dtypes[0])
    assert all(block % 64 == 0 for block in rung.tune["BC"])
    least = {name: min(choices) for name, choices in rung.tune.items()}
    assert rung.refusal(values, dtype, {**least, "BC": 64}) is None
    assert "BC % 64 == 0" in str(rung.refusal(values, dtype, {**least, "BC": 96}))


def test_a_refusal_names_a_rung_that_would_do() -> None:
    values: Values = dict(B=1, T=4, C=33, NH=1)
    with pytest.raises(RungError, match=r"attention/\d\d_\w+ would do"):
        run("attention/24", values, inputs("attention", values), "f32")


@pytest.mark.gpu
@pytest.mark.parametrize("spec", ["attention/24", "attention/27", "attention/28", "attention/29"])
@pytest.mark.parametrize("T", [1, 7, 64, 199, 1000, 1024])
@pytest.mark.parametrize("HS", [32, 64, 80, 128])
def test_any_length_and_head_size(spec: str, T: int, HS: int) -> None:
    rung = catalogue.find(spec)
    dtype = dtype_named(rung.dtypes[-1])
    values = ATTENTION.complete(dict(B=2, T=T, C=3 * HS, NH=3))
    tensors = ATTENTION.inputs(
        values,
        dtype,
        seed=5,
        empty=lambda _, shape, kind: torch.empty(shape, dtype=dtype_of(kind, torch), device="cuda"),
        device="cuda",
    )
    rung.prepare(tensors, values, dtype, device="cuda").run()
    exact = ATTENTION.reference({n: tensors[n].double() for n in ("q", "k", "v")}, values)
    for name in ("out", "lse"):
        error = (tensors[name].double() - exact[name]).norm() / exact[name].norm()
        assert error < dtype.norm_cap
