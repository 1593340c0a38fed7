"""The header of a rung: read whole, or refused with the key that is wrong."""

from pathlib import Path

import pytest
import torch

from rung.dtypes import DTYPES
from rung.errors import RungError
from rung.rungs import catalogue
from rung.rungs import header as frontmatter
from rung.rungs.cuda import CudaRung

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
    ("change", "message"),
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
        (("dtypes =", 'from = "24"\ndtypes ='), "names no rung"),
        (("dtypes =", 'products = "bf16"\ndtypes ='), "products is 'bf16'"),
        (("dtypes =", f'found = "{"x" * 401}"\ndtypes ='), "found has 401 characters"),
        (("[define]", "[let]\nA = true\n[define]"), "let.A"),
        (("[define]", '[let]\nA = "B2 + 1"\nB2 = 2\n[define]'), "let.A uses B2"),
        (("[define]", '[let]\nA = "A + 1"\n[define]'), "let.A uses A"),
        (("[define]", '[define]\nMANY = "sms * 2"'), "define.MANY depends on sms"),
        (("[define]", '[let]\nA = "ceil_div(C, sms)"\nE = "2 * A"\n[define]\nMANY = "E"'), "define.MANY depends on sms"),
        (("[define]", '[define]\nSTRIDE = "x_stride_T"'), "define.STRIDE depends on x_stride_T"),
        (("[define]", '[define]\nHERE = "emulated"'), "define.HERE depends on emulated"),
    ],
)
def test_what_is_wrong_is_named(change: tuple[str, str], message: str) -> None:
    with pytest.raises(RungError, match=r"bad\.cu") as caught:
        frontmatter.parse(GOOD.replace(*change, 1), "bad.cu")
    assert message in str(caught.value)


def test_a_long_chain_of_named_expressions_is_read_at_once() -> None:
    chain = "".join(f'L{i} = "L{i - 1} + L{i - 2}"\n' for i in range(2, 90))
    header = frontmatter.parse(GOOD.replace("[define]", f'[let]\nL0 = 1\nL1 = 1\n{chain}[define]\nLAST = "L89"', 1), "good.cu")
    assert header.define["LAST"] == "L89"


LET = """/*---
idea = "Named expressions."
needs = "HALF >= 2"
dims = ["N"]
[tune]
WAYS = [2, 4]
[let]
HALF = "N // WAYS"
BYTES = "4 * HALF"
[define]
SLOTS = "HALF"
[buffers.kept]
shape = ["HALF"]
[[launch]]
kernel = "k"
grid = "HALF"
block = "HALF + layer"
shared = "BYTES"
each = { layer = "HALF" }
bind = { half = "HALF" }
---*/
extern "C" __global__ void k(const Real* x, Real* out, int half, Real* kept) { }
"""


def test_a_named_expression_serves_every_place_that_takes_one(tmp_path: Path) -> None:
    path = tmp_path / "let.cu"
    path.write_text(LET)
    rung = catalogue.rung_from_file(catalogue.operation("relu"), path)
    assert isinstance(rung, CudaRung)
    launches = rung.launches({"N": 12}, DTYPES["f32"], {"WAYS": 4})
    assert [(c.grid, c.block, c.shared) for _, c in launches] == [((3, 1, 1), (3 + i, 1, 1), 12) for i in range(3)]
    defines = dict(rung.build({"N": 12}, DTYPES["f32"]).defines)
    assert (defines["SLOTS"], defines["DIM_N"]) == ("6", "12")
    assert rung.refusal({"N": 3}, DTYPES["f32"]) == f"{rung.full_name} needs HALF >= 2"


def test_a_named_expression_is_evaluated_only_where_it_is_used(tmp_path: Path) -> None:
    path = tmp_path / "let.cu"
    path.write_text(LET.replace('needs = "HALF >= 2"', 'needs = ["N > 4", "8 // (N - 4) > 0"]').replace("N // WAYS", "8 // (N - 4)"))
    rung = catalogue.rung_from_file(catalogue.operation("relu"), path)
    assert rung.refusal({"N": 4}, DTYPES["f32"]) == f"{rung.full_name} needs N > 4"


def test_a_named_expression_cannot_replace_a_dimension(tmp_path: Path) -> None:
    path = tmp_path / "let.cu"
    path.write_text(LET.replace("BYTES", "sms"))
    rung = catalogue.rung_from_file(catalogue.operation("relu"), path)
    with pytest.raises(RungError, match=r"let\.sms has the name of a dimension"):
        rung.refusal({"N": 12}, DTYPES["f32"])


def test_a_python_rungs_buffers_are_zeroed_when_it_says_so(tmp_path: Path) -> None:
    path = tmp_path / "zeroed.py"
    path.write_text(
        '"""Idea."""\nSIDE_EXPERIMENT = "An experiment."\nBUFFERS = {"sum": {"shape": [1], "dtype": "f32", "zero": True}, '
        '"runs": {"shape": [1], "dtype": "f32", "zero": "once"}}\n'
        "def run(x, out, sum, runs):\n    sum += x.sum()\n    runs += 1\n    out.copy_(sum + runs)\n"
    )
    rung = catalogue.rung_from_file(catalogue.operation("relu"), path)
    assert rung.side_experiment == "An experiment."
    x, out = torch.ones(4), torch.empty(4)
    call = rung.prepare({"x": x, "out": out}, {"N": 4}, DTYPES["f32"], device="cpu")
    for run in (1, 2):
        call.run()
        assert out.tolist() == [4.0 + run] * 4


def test_a_python_rung_has_named_expressions_too(tmp_path: Path) -> None:
    path = tmp_path / "let.py"
    path.write_text(
        '"""Idea."""\nLET = {"HALF": "N // 2"}\nBUFFERS = {"kept": {"shape": ["HALF"]}}\n'
        "def run(x, out, kept, HALF):\n    assert kept.shape == (HALF,)\n    out.copy_(x.relu())\n"
    )
    rung = catalogue.rung_from_file(catalogue.operation("relu"), path)
    x, out = torch.tensor([-1.0, 2.0, 3.0, -4.0]), torch.empty(4)
    rung.prepare({"x": x, "out": out}, {"N": 4}, DTYPES["f32"], device="cpu").run()
    assert out.tolist() == [0.0, 2.0, 3.0, 0.0]
