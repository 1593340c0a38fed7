"""The step for many sequences over library products: its kernels at the places where their work is divided."""

from __future__ import annotations

import itertools
from collections.abc import Mapping
from typing import Any

import pytest
import torch
import torch.nn.functional as F

from rung import catalogue
from rung.cuda import emulator, nvrtc
from rung.dtypes import dtype as named
from rung.gpt2.gpu.engine import Engine
from rung.gpt2.load import INNER, load
from rung.gpt2.weights import Linear, read_weights
from rung.operation import Tensors, Values

RUNG = catalogue.find("decode/12")
DECODE = RUNG.operation
REAL = named("f16")
ACTIVATIONS = (lambda x: F.gelu(x, approximate="tanh"), F.gelu, F.relu)


def dims(B: int, C: int, NH: int, V: int, MAXT: int, L: int = 1) -> Values:
    return DECODE.complete({"B": B, "L": L, "C": C, "NH": NH, "F": 2 * C, "V": V, "MAXT": MAXT})


def inputs(values: Values, seed: int = 3) -> Tensors:
    names = [o.name for o in DECODE.operands if o.name in RUNG.binds]
    return DECODE.inputs(values, REAL, seed, names=names, empty=lambda _, shape, kind: torch.zeros(shape, dtype=kind))


def taken(tensors: Tensors, values: Values, tuning: Mapping[str, int] | None = None) -> Tensors:
    """What a step leaves, on tensors of its own."""
    own = {name: t.clone() for name, t in tensors.items()}
    for name in ("logits", "next"):
        own[name].fill_(-7)
    RUNG.prepare(own, values, REAL, device="emulator", tuning=tuning).run()
    return own


def exact(tensors: Tensors, values: Values) -> Tensors:
    wide = {n: t.double() if t.is_floating_point() else t.long() for n, t in tensors.items()}
    return DECODE.reference(wide, values)


def assert_right(found: Tensors, tensors: Tensors, values: Values) -> None:
    wanted = exact(tensors, values)
    for name in ("logits", "k_cache", "v_cache"):
        distance = (found[name].double() - wanted[name]).norm() / wanted[name].norm()
        assert distance < REAL.norm_cap, (name, float(distance))
    assert found["next"].tolist() == found["logits"].argmax(1).tolist()


@pytest.mark.parametrize("warps", [1, 4])
@pytest.mark.parametrize("loads", [2, 3, 8])
def test_every_number_of_cached_keys_is_attended(warps: int, loads: int) -> None:
    values = dims(B=140, C=32, NH=1, V=9, MAXT=140)
    tensors = inputs(values)
    tensors["lengths"] = torch.arange(140, dtype=torch.int32)
    found = taken(tensors, values, {"KEY_WARPS": warps, "KEY_LOADS": loads})
    wanted = exact(tensors, values)
    for b in range(140):  # a sequence that sees one key too few is lost in the norm of all
        assert torch.allclose(found["logits"][b].double(), wanted["logits"][b], rtol=0.01, atol=0.01), b
    untouched = torch.ones(140, 140, dtype=torch.bool).logical_xor(torch.eye(140, dtype=torch.bool))
    for name in ("k_cache", "v_cache"):
        assert torch.equal(found[name][0, :, 0][untouched], tensors[name][0, :, 0][untouched])


@pytest.mark.parametrize("vocabulary", [5, 64, 65, 127, 128, 333])
@pytest.mark.parametrize("parts", [1, 2, 4])
def test_columns_that_are_aligned_and_those_that_are_not_make_one_row(vocabulary: int, parts: int) -> None:
    values = dims(B=3, C=24, NH=3, V=vocabulary, MAXT=6)
    tensors = inputs(values)
    assert_right(taken(tensors, values, {"HEAD_PARTS": parts, "HEAD_CHUNKS": 4}), tensors, values)


@pytest.mark.parametrize("places", [(0, 1), (40, 200), (130, 255), (10, 258), (256, 258), (258,)])
def test_the_first_of_the_largest_is_next_wherever_they_lie(places: tuple[int, ...]) -> None:
    values = dims(B=2, C=16, NH=1, V=259, MAXT=4)
    tensors = inputs(values)
    tensors["lnf_w"].zero_()  # every row of logits is then the head times this shift
    tensors["lnf_b"].fill_(1)
    tensors["head_w"].fill_(-0.5)
    tensors["head_w"][list(places)] = 0.25
    found = taken(tensors, values, {"HEAD_PARTS": 2, "HEAD_CHUNKS": 4})
    assert found["logits"][:, list(places)].eq(4).all()
    assert found["next"].tolist() == [places[0]] * 2


def test_weights_that_change_behind_the_same_pointers_are_read_again() -> None:
    values = dims(B=2, C=16, NH=2, V=70, MAXT=4)
    tensors = inputs(values)
    prepared = RUNG.prepare(tensors, values, REAL, device="emulator")
    prepared.run()
    for name, tensor in inputs(values, seed=8000).items():
        tensors[name].copy_(tensor)
    before = {name: t.clone() for name, t in tensors.items()}
    prepared.run()
    assert_right(tensors, before, values)


@pytest.mark.parametrize("warps", [1, 4, 8])
def test_the_order_of_threads_changes_nothing(monkeypatch: pytest.MonkeyPatch, warps: int) -> None:
    module = RUNG.load("emulator")  # type: ignore[attr-defined]
    values = dims(B=2, C=48, NH=3, V=140, MAXT=70, L=2)
    tensors, found = inputs(values), []
    for order in ("forward", "reverse", "shuffled"):
        settings = emulator.Settings(order=order, seed=5, check_races=True)

        def under(build: Any, device: Any, settings: emulator.Settings = settings) -> Any:
            return emulator.load(build, settings=settings)

        monkeypatch.setattr(module, "_module", under)
        found.append(taken(tensors, values, {"KEY_WARPS": warps}))
    assert_right(found[0], tensors, values)
    for other in found[1:]:
        assert all(torch.equal(found[0][name], other[name]) for name in ("logits", "next", "k_cache", "v_cache"))


@pytest.mark.parametrize("dtype", ["f16", "bf16"])
def test_gpt2_is_compiled_for_sm_90_without_spills(dtype: str) -> None:
    module = RUNG.load("emulator")  # type: ignore[attr-defined]
    values = DECODE.complete(DECODE.shapes["gpt2 b256"])
    given = {**values, "dtype": dtype} | {name: choices[0] for name, choices in RUNG.tune.items()}
    cubin = nvrtc.compile_cubin(module.build(module._defines(given)), "sm_90")
    assert set(cubin.resources) == set(module.KERNELS)
    assert all(r.spill_stores == 0 for r in cubin.resources.values())
    # As many warps as the default wants resident: 65536 registers a multiprocessor.
    assert cubin.resources["attend"].registers * 32 * RUNG.tune["KEY_RESIDENT"][0] <= 65536


@pytest.mark.parametrize("act", [None, 0, 1, 2])
def test_products_as_a_gpu_is_asked_for_them(act: int | None) -> None:
    module = RUNG.load("emulator")  # type: ignore[attr-defined]
    generator = torch.Generator().manual_seed(1)
    x, w, bias = (torch.randn(shape, generator=generator) for shape in ((5, 16), (24, 16), (24,)))
    out = torch.empty(5, 24)
    module.affine(x, w, bias, out, act)
    wanted = (x @ w.T + bias) if act is None else ACTIVATIONS[act](x @ w.T + bias)
    assert torch.allclose(out, wanted, atol=1e-3)  # the CPU's fused GELU is the one by erf


def test_the_sums_of_halves_as_floats_are_a_product_that_torch_has() -> None:
    module = RUNG.load("emulator")  # type: ignore[attr-defined]
    x, w = (torch.empty(rows, 16, device="meta", dtype=torch.bfloat16) for rows in (5, 24))
    module.multiply(x, w, torch.empty(5, 24, device="meta"))
    with pytest.raises(RuntimeError):
        module.multiply(x, w, torch.empty(5, 24, device="meta", dtype=torch.bfloat16))


def test_the_engine_writes_what_the_cpu_writes() -> None:
    model = load("inner", dtype="float32")
    weights = read_weights(INNER, model.config, lambda w: Linear(w.float().contiguous()), lambda v: v.float())
    engine = Engine(model.config, weights, "float16", "emulator", rung="12")
    prompts = [list(model.tokenizer.encode(text)) for text in ("Once upon a time", "The king", "A fox")]
    steps = list(engine.write(prompts, [4] * 3))
    wanted = [list(c.tokens) for c in model.generate(prompts, max_new_tokens=4, stop_tokens=(), temperature=0)]
    assert [list(column) for column in itertools.zip_longest(*steps)] == wanted
