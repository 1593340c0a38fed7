"""The header of a rung: read whole, or refused with the key that is wrong."""

import pytest

from rung.errors import RungError
from rung.rungs import header as frontmatter

GOOD = """/*---
idea   = "An idea."
dtypes = ["f32", "bf16"]
needs  = "C % 4 == 0"
options = ["--use_fast_math"]
[tune]
BLOCK = [256, 64]
[define]
HS = "C // NH"
[bind]
inp = "x"
[buffers.scores]
shape = ["B", "T", "T"]
dtype = "f32"
zero = true
[constants]
weight = "c_weight"
[maps.x_map]
operand = "x"
dims = ["B * T", "C"]
box = ["BLOCK", 64]
swizzle = 128
fill = "nan"
[[launch]]
kernel = "first"
grid = ["T", "B"]
block = "BLOCK"
shared = "4 * BLOCK"
[[launch]]
kernel = "second"
grid = 7
block = [32, 4]
cluster = 2
cooperative = true
pdl = true
when = "T > 1"
bind = { n = "T" }
---*/
code
"""


def test_every_key_arrives() -> None:
    header = frontmatter.parse(GOOD, "good.cu")
    assert header.dtypes == ("f32", "bf16")
    assert header.needs == ("C % 4 == 0",)
    assert header.options == ("--use_fast_math",)
    assert header.tune == {"BLOCK": (256, 64)}
    assert header.define == {"HS": "C // NH"}
    assert header.bind == {"inp": "x"}
    assert header.buffers["scores"] == frontmatter.Buffer(("B", "T", "T"), "f32", True)
    assert header.constants == {"weight": "c_weight"}
    assert header.maps == {"x_map": frontmatter.Map("x", ("BLOCK", 64), dims=("B * T", "C"), swizzle=128, fill="nan")}
    first, second = header.launches
    assert (first.kernel, first.grid, first.block, first.shared) == (
        "first",
        ("T", "B"),
        ("BLOCK",),
        "4 * BLOCK",
    )
    assert (second.grid, second.block, second.cluster) == ((7,), (32, 4), (2,))
    assert second.cooperative and second.pdl and second.when == "T > 1" and second.bind == {"n": "T"}


@pytest.mark.parametrize(
    ("change", "said"),
    [
        (("idea   = ", "ideal  = "), "unknown key 'ideal'"),
        (('"f32", "bf16"', '"fp8"'), "'fp8'"),
        (("BLOCK = [256, 64]", 'BLOCK = ["many"]'), "tune.BLOCK"),
        (('kernel = "first"', ""), "names no kernel"),
        (('grid = ["T", "B"]', ""), "no grid"),
        (("block = [32, 4]", "block = [1, 2, 3, 4]"), "block has 4 entries"),
        (("cooperative = true", "cooperative = 1"), "neither true nor false"),
        (('shape = ["B", "T", "T"]', ""), "no shape"),
        (("[tune]", "[tune"), "not TOML"),
        (("/*---", "/*"), "no header"),
        (('inp = "x"', "inp = true"), "bind.inp"),
        (('weight = "c_weight"', "weight = 3"), "constants.weight"),
        (('operand = "x"', ""), "maps.x_map has no operand"),
        (('box = ["BLOCK", 64]', 'box = "BLOCK"'), "maps.x_map.box"),
        (('fill = "nan"', 'fill = "ones"'), "maps.x_map.fill"),
        (('fill = "nan"', "filled = 1"), "unknown key 'filled'"),
        (("pdl = true", "gird = 3"), "unknown key 'gird'"),
    ],
)
def test_what_is_wrong_is_named(change: tuple[str, str], said: str) -> None:
    with pytest.raises(RungError, match=r"bad\.cu") as caught:
        frontmatter.parse(GOOD.replace(*change, 1), "bad.cu")
    assert said in str(caught.value)
