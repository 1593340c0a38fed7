"""The step for many sequences over library products: its kernels at the places where their work is divided."""

from __future__ import annotations

import itertools
import random
from collections.abc import Mapping, Sequence
from typing import Any

import pytest
import torch
import torch.nn.functional as F

import gpuless
from gpuless.compile import nvrtc
from gpuless.facts import limits
from gpuless.launch import LaunchConfig
from rung.arrays import dtype_of
from rung.check.judge import check
from rung.cuda import triton_compile
from rung.dtypes import dtype as named
from rung.models.folders import INNER
from rung.models.gpu.engine import GpuSteps
from rung.models.load import load
from rung.models.weights import Linear, read_weights
from rung.operation import Tensors, Values
from rung.profile import inspect_triton
from rung.rungs import base, catalogue
from written import written

RUNG = catalogue.find("decode/library_products")
DECODE = RUNG.operation
REAL = named("f16")
ACTIVATIONS = (lambda x: F.gelu(x, approximate="tanh"), F.gelu, F.relu)
SMALL_TILES = {"HEAD_N": 64, "HEAD_K": 32}


@pytest.fixture(params=[90, 80], ids=["descriptors", "pointers"])
def capability(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> int:
    """Of the GPU that is emulated; from 9.0 on the head reads by the copy engine."""
    monkeypatch.setattr(base, "device_facts", lambda device: (request.param, 4))
    return int(request.param)


def dims(B: int, C: int, NH: int, V: int, MAXT: int, L: int = 1, width: int = 0) -> Values:
    return DECODE.complete({"B": B, "L": L, "C": C, "NH": NH, "F": width or 2 * C, "V": V, "MAXT": MAXT})


def inputs(values: Values, seed: int = 3) -> Tensors:
    names = [o.name for o in DECODE.operands if o.name in RUNG.binds]
    return DECODE.inputs(values, REAL, seed, names=names, empty=lambda _, shape, kind: torch.zeros(shape, dtype=dtype_of(kind, torch)))


def unwritten(_: str, shape: tuple[int, ...], kind: str) -> torch.Tensor:
    """Scratch of which nothing may be read before it is written."""
    return torch.full(shape, torch.nan if "float" in kind else 1 << 30, dtype=dtype_of(kind, torch))


def run(tensors: Tensors, values: Values, tuning: Mapping[str, int] | None = None) -> Tensors:
    """What a step leaves, on tensors of its own."""
    own = {name: t.clone() for name, t in tensors.items()}
    for name in ("logits", "next"):
        own[name].fill_(-7)
    RUNG.prepare(own, values, REAL, device="emulator", tuning=tuning, empty=unwritten).run()
    return own


def exact(tensors: Tensors, values: Values) -> Tensors:
    wide = {n: t.double() if t.is_floating_point() else t.long() for n, t in tensors.items()}
    return DECODE.reference(wide, values)


def assert_right(found: Tensors, tensors: Tensors, values: Values) -> None:
    expected = exact(tensors, values)
    for name in ("logits", "k_cache", "v_cache"):
        distance = (found[name].double() - expected[name]).norm() / expected[name].norm()
        assert distance < REAL.norm_cap, (name, float(distance))
    assert found["next"].tolist() == found["logits"].argmax(1).tolist()


def assert_attended(values: Values, tensors: Tensors, tuning: Mapping[str, int]) -> None:
    """Every sequence alone: one that sees one key too few is lost in the norm of all."""
    found, expected = run(tensors, values, tuning), exact(tensors, values)
    for b, length in enumerate(tensors["lengths"].tolist()):
        assert torch.allclose(found["logits"][b].double(), expected["logits"][b], rtol=0.01, atol=0.01), (b, length)
    rows, lengths = torch.arange(int(values["B"])), tensors["lengths"].long()
    for name in ("k_cache", "v_cache"):  # nothing is written but the new key and value
        before = tensors[name].clone()
        before[:, rows, :, lengths] = found[name][:, rows, :, lengths]
        assert torch.equal(found[name], before)


@pytest.mark.slow
@pytest.mark.parametrize("warps", [1, 8])
@pytest.mark.parametrize(("loads", "slots"), [(1, 2), (2, 3), (3, 1), (8, 3)])
def test_every_number_of_cached_keys_is_attended(warps: int, loads: int, slots: int) -> None:
    values = dims(B=140, C=32, NH=1, V=9, MAXT=140)
    tensors = inputs(values)
    tensors["lengths"] = torch.arange(140, dtype=torch.int32)
    assert_attended(values, tensors, {"KEY_WARPS": warps, "KEY_LOADS": loads, "KEY_SLOTS": slots})


@pytest.mark.parametrize(("C", "NH"), [(24, 3), (64, 1), (128, 1)])
@pytest.mark.parametrize("slots", [2, 3])
def test_one_item_follows_another_whatever_their_lengths(C: int, NH: int, slots: int) -> None:
    loads = 2
    chunk = loads * 32 // (C // NH // 8)
    edges = [0, 1, chunk - 1, chunk, chunk + 1, 2 * chunk, 2 * chunk + 1, slots * chunk, slots * chunk + 1]
    lengths = [0, 0, 0, *random.Random(C).sample(3 * edges, 3 * len(edges)), 0]
    values = dims(B=len(lengths), C=C, NH=NH, V=9, MAXT=slots * chunk + 2, L=2)
    tensors = inputs(values)
    tensors["lengths"] = torch.tensor(lengths, dtype=torch.int32)
    # The emulated GPU has four multiprocessors: with one warp each eight items or more follow one another.
    assert_attended(values, tensors, {"KEY_WARPS": 1, "KEY_LOADS": loads, "KEY_SLOTS": slots})


@pytest.mark.parametrize(("B", "NH"), [(1, 1), (3, 1), (1, 5), (3, 3)])
def test_there_may_be_more_warps_than_items(B: int, NH: int) -> None:
    values = dims(B=B, C=16 * NH, NH=NH, V=9, MAXT=40)
    tensors = inputs(values)
    tensors["lengths"] = torch.tensor([39, 0, 16][:B], dtype=torch.int32)
    assert_attended(values, tensors, {"KEY_WARPS": 16, "KEY_LOADS": 1, "KEY_SLOTS": 2})


def test_what_lies_in_the_caches_behind_the_length_is_not_seen() -> None:
    values = dims(B=5, C=32, NH=2, V=9, MAXT=60)
    tensors = inputs(values)
    tensors["lengths"] = torch.tensor([0, 16, 31, 32, 50], dtype=torch.int32)
    found = run(tensors, values, {"KEY_LOADS": 2})
    for b, length in enumerate(tensors["lengths"].tolist()):
        for name in ("k_cache", "v_cache"):
            tensors[name][:, b, :, length:] = torch.nan
    assert torch.equal(run(tensors, values, {"KEY_LOADS": 2})["logits"], found["logits"])


def compiled(values: Values, **defines: int) -> Any:
    """The kernels of CUDA alone, as tuned."""
    module = RUNG.load("emulator")  # type: ignore[attr-defined]
    given = {**values, "dtype": "f16", "sm": 90} | {name: choices[0] for name, choices in RUNG.tune.items()}
    return gpuless.load(module.build(module._defines(given) | defines))


@pytest.mark.parametrize(
    ("C", "threads", "parts"), [(24, 32, 1), (200, 32, 2), (400, 64, 3), (520, 96, 4), (520, 96, 1)]
)
def test_warps_that_hold_different_numbers_normalise_a_row(C: int, threads: int, parts: int) -> None:
    loaded = compiled(dims(B=2, C=C, NH=C // 8, V=9, MAXT=2), ROW_THREADS=threads, FC2_SPLIT=4)
    generator = torch.Generator().manual_seed(C)
    # Far from zero, and each warp's numbers have a mean of their own.
    x, product = (torch.randn(2, C, generator=generator) + torch.linspace(end, 300, C) for end in (296, 300))
    bias, gain, shift = (torch.randn(C, generator=generator).half() for _ in range(3))
    expected = F.layer_norm((x + product + bias).double(), (C,), gain.double(), shift.double(), 1e-5)
    split = torch.full((4, 2, C), torch.nan)  # the memory after the last part is arbitrary
    split[:parts] = torch.randn(parts, 2, C, generator=generator)
    split[parts - 1] = product - split[: parts - 1].sum(0)
    n = torch.empty(2, C, dtype=torch.float16)
    rows = [("pointer", t) for t in (bias, gain, shift, x, n)]
    given = [("pointer", split), ("i32", parts), *rows, ("f32", 1e-5)]
    loaded.launch("add_norm", LaunchConfig((2, 1, 1), (threads, 1, 1)), given)
    assert torch.allclose(n.double(), expected, rtol=2e-3, atol=2e-3)


@pytest.mark.parametrize(
    ("width", "expected", "parts"), [(56, 4, 1), (80, 4, 2), (48, 4, 3), (64, 4, 4), (32, 6, 4), (96, 6, 6), (96, 1, 1)]
)
def test_a_deep_product_has_as_many_parts_as_requested_or_possible(width: int, expected: int, parts: int) -> None:
    values = dims(B=3, C=24, NH=3, V=9, MAXT=4, L=2, width=width)
    assert RUNG.load("emulator")._split({**values, "FC2_SPLIT": expected}) == parts  # type: ignore[attr-defined]
    tensors = inputs(values)
    assert_right(run(tensors, values, {"FC2_SPLIT": expected}), tensors, values)


# ---- the head -------------------------------------------------------------------------------------------------------


def test_the_head_reads_by_the_copy_engine_where_there_is_one(capability: int, monkeypatch: pytest.MonkeyPatch) -> None:
    from triton.tools.tensor_descriptor import TensorDescriptor

    blocks, made = [], TensorDescriptor.from_tensor

    def from_tensor(tensor: torch.Tensor, block: list[int]) -> TensorDescriptor:
        blocks.append(block)
        return made(tensor, block)

    monkeypatch.setattr(TensorDescriptor, "from_tensor", staticmethod(from_tensor))
    values = dims(B=20, C=24, NH=3, V=70, MAXT=4)
    tensors = inputs(values)
    assert_right(run(tensors, values, SMALL_TILES), tensors, values)
    assert blocks == ([[32, 32], [64, 32]] if capability >= 90 else [])


@pytest.mark.usefixtures("capability")
@pytest.mark.parametrize("vocabulary", [1, 5, 63, 64, 65, 259])
def test_rows_of_logits_begin_and_end_anywhere(vocabulary: int) -> None:
    values = dims(B=3, C=24, NH=3, V=vocabulary, MAXT=6)
    tensors = inputs(values)
    assert_right(run(tensors, values, SMALL_TILES), tensors, values)


@pytest.mark.slow
@pytest.mark.usefixtures("capability")
@pytest.mark.parametrize("rows", [1, 16, 17, 64, 65, 128, 129, 300])
def test_any_number_of_sequences_is_multiplied_with_the_head(rows: int) -> None:
    values = dims(B=rows, C=16, NH=1, V=70, MAXT=3)
    tensors = inputs(values)
    found, expected = run(tensors, values, SMALL_TILES), exact(tensors, values)
    assert torch.allclose(found["logits"].double(), expected["logits"], rtol=0.01, atol=0.01)
    assert found["next"].tolist() == found["logits"].argmax(1).tolist()


@pytest.mark.usefixtures("capability")
@pytest.mark.parametrize("depth", [8, 32, 40, 64, 72])
@pytest.mark.parametrize("step", [32, 64])
def test_the_heads_depth_need_not_be_whole_steps(depth: int, step: int) -> None:
    values = dims(B=3, C=depth, NH=depth // 8, V=70, MAXT=4)
    tensors = inputs(values)
    assert_right(run(tensors, values, {"HEAD_N": 64, "HEAD_K": step}), tensors, values)


@pytest.mark.usefixtures("capability")
@pytest.mark.parametrize(
    "places", [(0, 1), (40, 63), (63, 64), (40, 200), (130, 255), (10, 258), (256, 258), (258,), range(259)]
)
def test_the_first_of_the_largest_is_next_wherever_they_lie(places: Sequence[int]) -> None:
    values = dims(B=2, C=16, NH=1, V=259, MAXT=4)
    tensors = inputs(values)
    tensors["lnf_w"].zero_()  # every row of logits is then the head times this shift
    tensors["lnf_b"].fill_(1)
    tensors["head_w"].fill_(-0.5)
    tensors["head_w"][list(places)] = -0.25
    found = run(tensors, values, SMALL_TILES)
    assert found["logits"][:, list(places)].eq(-4).all()
    assert found["next"].tolist() == [places[0]] * 2


@pytest.mark.parametrize("slots", [1, 2, 255, 256, 257, 1023, 1024, 1025, 2049, 3000])
def test_the_largest_of_any_number_of_tiles_is_found(slots: int) -> None:
    loaded = compiled(dims(B=1, C=16, NH=1, V=64 * 3000, MAXT=2))
    # A row for each place of the largest, which most of them have twice.
    places = sorted({at for at in (0, 1, 31, 32, 255, 256, 700, 1023, 1024, 2048, slots - 1) if at < slots})
    value = -torch.rand(len(places), slots, generator=torch.Generator().manual_seed(slots)) - 1
    index = torch.arange(slots, dtype=torch.int32).mul(64).repeat(len(places), 1)
    for row, at in enumerate(places):
        value[row, [at, min(at + 256 + row, slots - 1)]] = -0.5
    found = torch.full((len(places),), -7, dtype=torch.int32)
    given = [("pointer", t) for t in (value, index, found)]
    loaded.launch("pick", LaunchConfig((len(places), 1, 1), (256, 1, 1)), [*given, ("i32", slots)])
    assert found.tolist() == [64 * at for at in places]


@pytest.mark.slow
def test_more_tiles_than_a_round_of_picking_has() -> None:
    values = dims(B=2, C=16, NH=1, V=16 * 1024 + 5, MAXT=3)
    tensors = inputs(values)
    tensors["head_w"][:-5] *= 2**-6  # the largest is in the last tile, which the second round has alone
    found = run(tensors, values, {"HEAD_N": 16, "HEAD_K": 16})
    assert_right(found, tensors, values)
    assert min(found["next"].tolist()) >= 16 * 1024


@pytest.mark.usefixtures("capability")
@pytest.mark.filterwarnings("ignore:All-NaN slice encountered:RuntimeWarning")
@pytest.mark.parametrize("vocabulary", [5, 63, 64, 65, 128, 259])
def test_a_row_of_nans_picks_some_token_and_leaves_the_others_alone(vocabulary: int) -> None:
    values = dims(B=3, C=24, NH=3, V=vocabulary, MAXT=6)
    tensors = inputs(values)
    tensors["tokens"], tensors["lengths"] = (torch.tensor(n, dtype=torch.int32) for n in ([0, 1, 2], [5, 4, 1]))
    before = run(tensors, values, SMALL_TILES)
    tensors["wpe"][4] = torch.nan
    found = run(tensors, values, SMALL_TILES)
    assert found["logits"][1].isnan().all()
    for name in ("logits", "next"):
        assert torch.equal(found[name][[0, 2]], before[name][[0, 2]])
    assert 0 <= int(found["next"][1]) < vocabulary


@pytest.mark.usefixtures("capability")
@pytest.mark.filterwarnings("ignore:All-NaN slice encountered:RuntimeWarning")
@pytest.mark.parametrize("broken", [(0,), (70, 120), range(64), range(64, 128)])
def test_a_logit_that_is_no_number_is_not_the_largest(broken: Sequence[int]) -> None:
    values = dims(B=3, C=24, NH=3, V=128, MAXT=6)
    tensors = inputs(values)
    tensors["head_w"][list(broken)] = torch.nan
    found = run(tensors, values, SMALL_TILES)
    logits = found["logits"].nan_to_num(nan=-torch.inf)
    assert logits.isinf().sum() == 3 * len(broken)
    assert found["next"].tolist() == logits.argmax(1).tolist()


@pytest.mark.parametrize("capability", [80, 90])
def test_the_head_is_compiled_for_gpt2_without_spills(capability: int) -> None:
    from triton.tools.tensor_descriptor import TensorDescriptor

    module, tuned = RUNG.load("cuda"), RUNG.tuned(None)  # type: ignore[attr-defined]
    B, V, C = (int(DECODE.shapes["gpt2 b256"][name]) for name in ("B", "V", "C"))
    tile = {"BM": module._head_rows(B), "BN": tuned["HEAD_N"], "BK": tuned["HEAD_K"]}
    slots = -(-V // tile["BN"])

    def empty(*shape: int, dtype: torch.dtype = torch.float32) -> torch.Tensor:
        return torch.empty(shape, dtype=dtype, device="meta")

    x, weight = (empty(rows, C, dtype=torch.bfloat16) for rows in (B, V))
    if capability >= 90:
        blocks = ([tile["BM"], tile["BK"]], [tile["BN"], tile["BK"]])
        x, weight = (TensorDescriptor.from_tensor(t, block) for t, block in zip((x, weight), blocks, strict=True))
    best = empty(B, slots), empty(B, slots, dtype=torch.int32)
    how = {**tile, "num_warps": tuned["HEAD_WARPS"], "num_stages": tuned["HEAD_STAGES"]}
    with triton_compile.pretending(capability) as launched:
        module.head[(1,)](x, weight, empty(B, V), *best, B, V, C, slots, DESCRIPTORS=capability >= 90, **how)
    log, _ = inspect_triton._assembled(str(launched[0].asm["ptx"]), f"sm_{capability}", False)
    assert "0 bytes stack frame, 0 bytes spill stores, 0 bytes spill loads" in log
    assert launched[0].metadata.shared <= limits.limits(f"sm_{capability}").shared_block


# ---- the whole step -------------------------------------------------------------------------------------------------


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
        settings = gpuless.Settings(order=order, seed=5, check_races=True)

        def under(build: Any, device: Any, settings: gpuless.Settings = settings) -> Any:
            return gpuless.load(build, settings=settings)

        monkeypatch.setattr(module, "_module", under)
        found.append(run(tensors, values, {"KEY_WARPS": warps}))
    assert_right(found[0], tensors, values)
    for other in found[1:]:
        assert all(torch.equal(found[0][name], other[name]) for name in ("logits", "next", "k_cache", "v_cache"))


def test_the_search_for_races_takes_loads_by_the_copy_engine() -> None:
    found = check(RUNG, "f16", device="emulator", case="two layers", quick=True)
    assert found.verdict == "ok", found.reason


@pytest.mark.parametrize("dtype", ["f16", "bf16"])
def test_gpt2_is_compiled_for_sm_90_without_spills(dtype: str) -> None:
    module = RUNG.load("emulator")  # type: ignore[attr-defined]
    values = DECODE.complete(DECODE.shapes["gpt2 b256"])
    given = {**values, "dtype": dtype, "sm": 90} | {name: choices[0] for name, choices in RUNG.tune.items()}
    cubin = nvrtc.compile_cubin(module.build(module._defines(given)), "sm_90")
    assert set(cubin.resources) == set(module.KERNELS)
    assert all(r.spill_stores == r.stack == 0 for r in cubin.resources.values())
    ring, attend = module._ring_bytes(given), cubin.resources["attend"]
    assert limits.occupancy("sm_90", given["KEY_WARPS"] * 32, attend.registers, attend.static_shared + ring).blocks == 1


@pytest.mark.parametrize("arch", ["sm_80", "sm_86", "sm_90", "sm_120"])
def test_every_ring_that_is_not_refused_fits_the_gpu(arch: str) -> None:
    module = RUNG.load("emulator")  # type: ignore[attr-defined]
    values = DECODE.complete(DECODE.shapes["gpt2 b256"])
    keys = ("KEY_WARPS", "KEY_LOADS", "KEY_SLOTS")
    tunings = [dict(zip(keys, choice, strict=True)) for choice in itertools.product(*(RUNG.tune[n] for n in keys))]
    legal = [t for t in tunings if RUNG.refusal(values, REAL, t) is None]
    assert len(legal) > 10
    for tuning in legal:
        barriers = 8 * tuning["KEY_WARPS"] * tuning["KEY_SLOTS"]
        assert module._ring_bytes({**tuning, "sm": int(arch[3:])}) + barriers <= limits.limits(arch).shared_block


@pytest.mark.parametrize("act", [None, 0, 1, 2])
def test_products_as_a_gpu_is_asked_for_them(act: int | None) -> None:
    module = RUNG.load("emulator")  # type: ignore[attr-defined]
    generator = torch.Generator().manual_seed(1)
    x, w, bias = (torch.randn(shape, generator=generator) for shape in ((5, 16), (24, 16), (24,)))
    out = torch.empty(5, 24)
    module.affine(x, w, bias, out, act)
    expected = (x @ w.T + bias) if act is None else ACTIVATIONS[act](x @ w.T + bias)
    assert torch.allclose(out, expected, atol=1e-3)  # the CPU's fused GELU is the one by erf


def test_the_sums_of_halves_as_floats_are_a_product_that_torch_has() -> None:
    module = RUNG.load("emulator")  # type: ignore[attr-defined]
    x, w = (torch.empty(rows, 16, device="meta", dtype=torch.bfloat16) for rows in (5, 24))
    module.multiply(x, w, torch.empty(5, 24, device="meta"))
    parts = (t.view(len(t), 2, 8).transpose(0, 1) for t in (x, w))
    module.multiply(*parts, torch.empty(2, 5, 24, device="meta"))
    with pytest.raises(RuntimeError):
        module.multiply(x, w, torch.empty(5, 24, device="meta", dtype=torch.bfloat16))


def test_the_engine_writes_what_the_cpu_writes() -> None:
    model = load("inner", dtype="float32", device="cpu")
    weights = read_weights(INNER, model.config, lambda w: Linear(w.float().contiguous()), lambda v: v.float())
    engine = GpuSteps(model.config, weights, "float16", "emulator", rung="library_products")
    prompts = [list(model.tokenizer.encode(text)) for text in ("Once upon a time", "The king", "A fox")]
    steps = list(written(engine, prompts, [4] * 3))
    expected = [list(c.tokens) for c in model.generate(prompts, max_new_tokens=4, stop_tokens=(), temperature=0)]
    assert [list(column) for column in itertools.zip_longest(*steps)] == expected
