"""One decoding step: a whole GPT-2 over one token per sequence, with cached keys and values."""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any

from rung.arrays import (
    Array,
    Generator,
    arange,
    copy_of,
    first_largest,
    integers,
    namespace,
    normal,
    seed_of,
    seeded,
    to_kind,
    uniform,
)
from rung.inputs import Change, near_the_end, rows_twice, times
from rung.ladders.decode import twin
from rung.operation import Case, Cost, Library, Operand, Operation, Race, Tensors, Values
from rung.quantised import CACHES, widened, with_new

Make = Callable[[Values, Generator], Array]

MATRICES = {"qkv": ("3 * C", "C"), "proj": ("C", "C"), "fc": ("F", "C"), "fc2": ("C", "F")}


def reference(t: Tensors, v: Values) -> Tensors:
    if "k_cache" in t:
        return _results(twin.step(t, v, *(copy_of(t[name]) for name in CACHES)))
    if "k_cache_q" in t:
        found = _results(twin.step(t, v, *widened(t)))
        return found | with_new(found, t, _new(t, v))
    return {"logits": namespace(t["wte"]).stack([twin.recomputed(t, v, b) for b in range(int(v["B"]))])}


def _results(sent: Tensors) -> Tensors:
    return {name: sent[name] for name in ("logits", *CACHES)}


def _new(t: Tensors, v: Values) -> Array:
    """The positions at which a step writes scales of keys and values: (1, B, 1, MAXT)."""
    caches, at, inside = twin.places(t, v)
    marked = arange(int(v["B"] * v["MAXT"]), at).reshape(int(v["B"]), -1) < 0
    marked[caches[inside], at[inside]] = True
    return marked[None, :, None]


def most_likely(t: Tensors, v: Values) -> Array:
    """The first of the largest logits."""
    return first_largest(t["logits"])


def cost(v: Values, size: int) -> Cost:
    # Each weight once, and each key and value of a half-full cache once (lengths are uniformly random).
    C, L, width = v["C"], v["L"], v["F"]
    weights = L * (4 * C * C + 2 * C * width) + v["V"] * C
    cached = L * v["B"] * v["MAXT"] / 2 * C * 2
    flops = 2.0 * v["B"] * weights + 4.0 * L * v["B"] * C * v["MAXT"] / 2
    return Cost(flops=flops, bytes=float(size * (weights + cached) + 4 * v["B"] * v["V"]))


# ---- inputs -----------------------------------------------------------------------------------------------------
# A matrix has integers up to 127, times one power of two per row. Every number format represents them exactly, and so
# does int8 with one scale per row: the int8 rungs compute the same function as the others. Keys and values in eight
# bits are drawn likewise.

DRAWN = (*sorted(["wte", *MATRICES]), *CACHES)


def _draw(v: Values, generator: Generator, name: str) -> tuple[Array, Array]:
    shape, inputs = _matrix_shape(v, name)
    own = seeded(seed_of(generator) // 1009 * 31 + DRAWN.index(name), generator)
    whole = integers(own, -127, 128, *shape, kind="int8")
    exponent = to_kind(integers(own, 0, 2, *shape[:-1]), "float32")
    # Uniform numbers up to 127 have a standard deviation of 73; after scaling, rows have about 1 / sqrt(inputs).
    unit = 2.0 ** -round(math.log2(73.0 * inputs**0.5))
    return whole, unit * 2.0**-exponent


def _matrix_shape(v: Values, name: str) -> tuple[tuple[int, ...], int]:
    C, width, L, V = (int(v[n]) for n in ("C", "F", "L", "V"))
    if name in CACHES:
        return tuple(int(v[n]) for n in ("L", "B", "NH", "MAXT", "HS")), 1  # numbers of size 1
    shapes = {"qkv": (L, 3 * C, C), "proj": (L, C, C), "fc": (L, width, C), "fc2": (L, C, width), "wte": (V, C)}
    return shapes[name], shapes[name][-1]


def _matrix(name: str) -> Make:
    def make(v: Values, generator: Generator) -> Array:
        whole, scale = _draw(v, generator, name)
        return to_kind(whole, "float32") * scale[..., None]

    return make


def _whole(name: str) -> Make:
    return lambda v, generator: _draw(v, generator, name)[0]


def _scales(name: str) -> Make:
    return lambda v, generator: _draw(v, generator, name)[1]


def _positions(v: Values, generator: Generator) -> Array:
    return normal(generator, int(v["MAXT"]), int(v["C"])) * 0.5


def _vector(per_layer: bool, width: str, around: float) -> Make:
    def make(v: Values, generator: Generator) -> Array:
        size = int(v["C"]) * (3 if width == "3 * C" else 1) if width != "F" else int(v["F"])
        shape = (int(v["L"]), size) if per_layer else (size,)
        return normal(generator, *shape) * 0.1 + around

    return make


def _parameter(name: str, shape: tuple[str | int, ...], **given: Any) -> Operand:
    return Operand(name, shape, constant=True, **given)


def _layer_operands() -> list[Operand]:
    operands = []
    for norm, matrices in (("ln1", ("qkv", "proj")), ("ln2", ("fc", "fc2"))):
        for part, around in (("w", 1.0), ("b", 0.0)):
            operands.append(_parameter(f"{norm}_{part}", ("L", "C"), make=_vector(True, "C", around)))
        for name in matrices:
            rows, inputs = MATRICES[name]
            operands.append(_parameter(f"{name}_w", ("L", rows, inputs), make=_matrix(name)))
            operands.append(_parameter(f"{name}_b", ("L", rows), make=_vector(True, rows, 0.0)))
    return operands


def _texts(v: Values, generator: Generator) -> Array:
    """Each row starts a text or continues that of the row before."""
    begins = uniform(generator, int(v["B"])) < 0.4
    rows = arange(len(begins), begins)
    return namespace(rows).amax(rows * (begins & (rows <= rows[:, None])), axis=1)  # the last beginning up to each


def _caches(v: Values, generator: Generator) -> Array:
    return uniform(generator, int(v["B"])).argsort()


def _eight_bits() -> list[Operand]:
    operands = []
    for name, (rows, inputs) in MATRICES.items():
        shape = ("L", rows, inputs)
        whole = _parameter(f"{name}_q", shape, dtype="i8", optional=True, instead=f"{name}_w", make=_whole(name))
        operands.append(whole)
        operands.append(_parameter(f"{name}_s", ("L", rows), dtype="f32", optional=True, make=_scales(name)))
    head = _parameter("head_q", ("V", "C"), dtype="i8", optional=True, instead="head_w", make=_whole("wte"))
    operands.append(head)
    operands.append(_parameter("head_s", ("V",), dtype="f32", optional=True, make=_scales("wte")))
    return operands


def _sixteen_or_more_bits() -> list[Operand]:
    shape = ("L", "B", "NH", "MAXT", "HS")
    given: dict[str, Any] = {"role": "inout", "optional": True, "counted": True, "share": 0.5}
    return [Operand(n, shape, **given) for n in CACHES]


def _caches_in_eight_bits() -> list[Operand]:
    """Integers, and a scale for each head and position; of a step's key and value the largest number is 127 units."""
    shape, operands = ("L", "B", "NH", "MAXT"), []
    given: dict[str, Any] = {"role": "inout", "optional": True, "share": 0.5}
    for n in CACHES:
        integers: dict[str, Any] = {"dtype": "i8", "instead": n, "make": _whole(n), "rounded": True}
        operands.append(Operand(f"{n}_q", (*shape, "HS"), changed=_new_numbers, **integers, **given))
        operands.append(Operand(f"{n}_s", shape, dtype="f32", make=_scales(n), changed=_new, **given))
    return operands


def _new_numbers(t: Tensors, v: Values) -> Array:
    return _new(t, v)[..., None]


def _dims(B: int, L: int, C: int, NH: int, V: int, MAXT: int, width: int | None = None) -> Values:
    return {"B": B, "L": L, "C": C, "NH": NH, "F": width or 4 * C, "V": V, "MAXT": MAXT}


def cached(tokens: int) -> Change:
    """This many tokens are already cached, or as many as leave room for one more."""
    return lambda x, v: x * 0 + min(tokens, int(v["MAXT"]) - 1)


OPERATION = Operation(
    name="decode",
    summary="one more token for each of B sequences, the whole model",
    story="From recomputing everything for every token to one graph whose weights arrive before they are needed.",
    dims=("B", "L", "C", "NH", "F", "V", "MAXT"),
    derived={"HS": "C // NH"},
    # act: 0 GELU by tanh, 1 GELU by erf, 2 ReLU. by_layer: scale / (layer + 1).
    scalars={"eps": 1e-5, "scale": "1 / sqrt(HS)", "act": 0, "by_layer": 0},
    rules=("C % NH == 0",),
    operands=(
        Operand("tokens", ("B",), dtype="i32", below="V"),
        Operand("lengths", ("B",), dtype="i32", below="MAXT"),  # tokens cached so far: this one's position
        Operand("history", ("B", "MAXT"), dtype="i32", below="V", optional=True),  # the tokens so far
        _parameter("wte", ("V", "C"), make=_matrix("wte")),
        _parameter("wpe", ("MAXT", "C"), make=_positions),
        *_layer_operands(),
        _parameter("lnf_w", ("C",), make=_vector(False, "C", 1.0)),
        _parameter("lnf_b", ("C",), make=_vector(False, "C", 0.0)),
        _parameter("head_w", ("V", "C"), make=_matrix("wte")),  # in the model the same memory as wte
        *_eight_bits(),
        *_sixteen_or_more_bits(),
        Operand("logits", ("B", "V"), role="out", dtype="f32"),
        Operand("next", ("B",), role="out", dtype="i32", follows=most_likely),
        # For each row, the first row of the same text. Rows of a text are adjacent, their tokens are consecutive from
        # lengths[first] on, and are cached in row caches[first] of the caches, as far as it has space.
        Operand("texts", ("B",), dtype="i32", optional=True, make=_texts),
        Operand("caches", ("B",), dtype="i32", optional=True, make=_caches),
        *_caches_in_eight_bits(),
    ),
    reference=reference,
    cost=cost,
    # Every layer rounds several intermediate results to the number format, whatever the widths; these errors are
    # independent, so the total grows with the square root of the number of layers.
    reduction="max(32768, 16384 * L)",
    cases=(
        Case("one of all", _dims(1, 1, 16, 1, 7, 3)),
        Case("odd", _dims(3, 2, 15, 3, 11, 5)),
        Case("one channel", _dims(1, 1, 1, 1, 3, 2)),
        Case("a head of 129", _dims(1, 1, 129, 1, 5, 3)),
        Case("two layers", _dims(2, 2, 64, 2, 67, 9)),
        Case("keys in several parts", _dims(1, 1, 32, 1, 33, 300)),
        *(
            Case(f"{n} of 300 keys cached", _dims(1, 1, 32, 1, 33, 300), change={"lengths": cached(n)})
            for n in (0, 1, 17, 150, 299)
        ),
        Case("rows that end within a piece", _dims(1, 1, 320, 5, 13, 6)),
        Case("narrow MLP", _dims(2, 1, 32, 4, 5, 4, 48)),
        Case(
            "GELU by erf, scores by layer",
            {**_dims(3, 2, 32, 2, 19, 8), "act": 1, "by_layer": 1, "scale": 2.5},
            dtypes=("f32", "f16"),
            change={"fc2_w": times(16.0), "fc2_s": times(16.0)},
        ),
        Case("GELU by erf, one sequence", {**_dims(1, 2, 64, 2, 67, 9), "act": 1, "by_layer": 1, "scale": 2.5}),
        *(Case(f"{n} of 9 keys cached", _dims(1, 2, 64, 2, 67, 9), change={"lengths": cached(n)}) for n in (1, 8)),
        Case("ReLU, one key cached", {**_dims(1, 1, 96, 3, 515, 250), "act": 2}, change={"lengths": cached(1)}),
        Case("ReLU, three heads", {**_dims(1, 1, 96, 3, 515, 250), "act": 2}, change={"lengths": near_the_end("MAXT")}),
        Case(
            "another eps and scale, the first token",
            {**_dims(1, 2, 64, 2, 67, 9), "eps": 0.03, "scale": 0.7},
            change={"lengths": cached(0)},
        ),
        Case(
            "small variances",
            _dims(1, 1, 64, 1, 37, 12),
            change={"wte": times(2.0**-9), "wpe": times(2.0**-8), "head_w": times(2.0**-9), "head_s": times(2.0**-9)},
        ),
        Case(
            "scores beyond exp",
            {**_dims(1, 1, 64, 2, 67, 300), "scale": 40.0},
            dtypes=("f32",),
            change={"lengths": near_the_end("MAXT")},
        ),
        Case(
            "gpt2's vocabulary and last position",
            _dims(1, 1, 16, 1, 50257, 1024),
            change={"tokens": near_the_end("V"), "lengths": near_the_end("MAXT")},
        ),
        Case("heads of 48", _dims(1, 1, 96, 2, 31, 40)),
        Case("eight sequences", _dims(8, 1, 128, 4, 8209, 20), change={"lengths": near_the_end("MAXT")}),
        Case("eleven sequences", _dims(11, 1, 32, 1, 35, 300), change={"lengths": near_the_end("MAXT")}),
        Case("gpt2, two layers", _dims(1, 2, 768, 12, 50257, 1024), where="cuda"),
        Case(
            "gpt2, the last position",
            _dims(1, 2, 768, 12, 50257, 1024),
            where="cuda",
            change={"lengths": near_the_end("MAXT")},
        ),
        Case("gpt2-xl, two layers", _dims(1, 2, 1600, 25, 50257, 1024), where="cuda"),
        Case("five sequences", _dims(5, 2, 768, 12, 1009, 257), where="cuda"),
        Case("64 sequences", _dims(64, 2, 768, 12, 50257, 72), where="cuda"),
        Case(  # with scores and an MLP as large as in the other formats, rounding to bf16 moves some results too far
            "GELU by erf, scores by layer, bf16",
            {**_dims(3, 2, 32, 2, 19, 8), "act": 1, "by_layer": 1, "scale": 1.0},
            dtypes=("bf16",),
            change={"fc2_w": times(4.0), "fc2_s": times(4.0)},
        ),
        Case("gpt2's width", _dims(1, 1, 768, 12, 37, 5, 96), where="file"),
        Case("gpt2-xl's width", _dims(1, 1, 1600, 25, 31, 4, 160), where="file"),
        Case("three layers, scores by layer", {**_dims(2, 3, 48, 3, 29, 7), "by_layer": 1}, where="file"),
    ),
    edges={"greedy among equals": dict.fromkeys(("head_w", "head_q", "head_s"), rows_twice)},
    shapes={
        "gpt2": _dims(1, 12, 768, 12, 50257, 1024),
        "gpt2-medium": _dims(1, 24, 1024, 16, 50257, 1024),
        "gpt2-large": _dims(1, 36, 1280, 20, 50257, 1024),
        "gpt2-xl": _dims(1, 48, 1600, 25, 50257, 1024),
        "gpt2 b8": _dims(8, 12, 768, 12, 50257, 256),
        "gpt2 b64": _dims(64, 12, 768, 12, 50257, 256),
        "gpt2 b256": _dims(256, 12, 768, 12, 50257, 256),
    },
    # In half precision torch rounds the residual stream after every operator, which exceeds the bounds.
    libraries=(Library("torch", twin.torch_decode, ("f32",), note="The step through torch, operator by operator."),),
    races=(Race("gpt2", ("f32", "bf16"), patience=0.2), Race("gpt2 b64", ("bf16",), patience=0.2)),
)
