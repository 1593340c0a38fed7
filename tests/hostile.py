"""Model folders and kernel files as an enemy would write them, by classes; and the child process that opens them.

`python hostile.py models|headers FOLDER` opens each with limits on memory and time, and prints a line of JSON for it.
"""

from __future__ import annotations

import contextlib
import json
import os
import pickle
import random
import re
import resource
import shutil
import signal
import struct
import sys
import time
import zipfile
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

SECONDS, BYTES = 10, 1 << 30
FIRST = "transformer.h.0.attn.c_attn.weight"
ODD: tuple[Any, ...] = (
    None, True, "", "x", "1e9", [], [1], {}, {"a": 1}, -1, 0, 0.5, float("nan"), float("inf"), -(2**31), 2**31, 2**63,
    10**400, 1e308, "\x1b[2J", "\ud800", "a" * 100_000,
)  # fmt: skip


def _nested(depth: int, opening: str = "[", closing: str = "]") -> str:
    return opening * depth + closing * depth


# ---- model folders ------------------------------------------------------------------------------------------------


class Runs:
    """A pickle that would leave a file behind if it were executed."""

    def __reduce__(self) -> tuple[Any, ...]:
        return os.system, ("touch executed",)


def models(good: Path, work: Path) -> Iterator[tuple[str, Path]]:
    """Hostile folders, one at a time; each takes the place of the one before."""
    for name, spoil in _model_classes(good):
        folder = work / "model"
        if folder.exists():
            shutil.rmtree(folder)
        folder.mkdir(parents=True)
        for file in good.iterdir():  # links: only what is spoilt is written
            (folder / file.name).symlink_to(file)
        spoil(folder)
        yield name, folder


def _model_classes(good: Path) -> Iterator[tuple[str, Callable[[Path], object]]]:
    yield from _configs(json.loads((good / "config.json").read_text()))
    yield from _special_files()
    yield from _safetensors((good / "model.safetensors").read_bytes())
    yield from _pickles(good)
    yield from _indices()
    yield from _values(good)
    yield from _tokenizers()


def _put(name: str, content: str | bytes) -> Callable[[Path], object]:
    def spoil(folder: Path) -> None:
        data = content.encode(errors="surrogatepass") if isinstance(content, str) else content
        (folder / name).unlink(missing_ok=True)
        (folder / name).write_bytes(data)

    return spoil


def _configs(fields: dict[str, Any]) -> Iterator[tuple[str, Callable[[Path], object]]]:
    for field in ("n_embd", "n_layer", "n_head", "vocab_size", "layer_norm_epsilon"):
        for value in ODD[1:] if field != "layer_norm_epsilon" else ODD:
            if (field, value) in (("layer_norm_epsilon", 0), ("layer_norm_epsilon", 0.5)):
                continue  # as good as another
            text = json.dumps(fields | {field: value}) if value != 10**400 else None
            text = text or json.dumps(fields | {field: 0}).replace(f'"{field}": 0', f'"{field}": 1{"0" * 400}')
            yield f"config {field} = {str(value)[:20]!r}", _put("config.json", text)
    for name, text in {
        "empty": "", "null": "null", "list": "[]", "number": "5", "string": '"x"', "not UTF-8": "\udcff",
        "deep": _nested(200_000), "deep objects": '{"a":' * 100_000 + "1" + "}" * 100_000, "cut": '{"n_embd": 6',
        "many digits": '{"n_embd": ' + "9" * 100_000 + "}", "zeros": "\0" * 1000, "a type that executes": "eval(1)",
        "another model": json.dumps(fields | {"model_type": "llama"}), "huge model": json.dumps(
            fields | {"n_embd": 2**20, "n_layer": 10**6, "n_head": 1, "vocab_size": 2**30}),
    }.items():  # fmt: skip
        yield f"config {name}", _put("config.json", text)
    yield "config twice", _put("config.json", json.dumps(fields)[:-1] + ', "n_embd": 7, "n_embd": -1}')
    yield "config of 2 GB", lambda f: _sparse(f / "config.json", 2 << 30)


def _sparse(path: Path, size: int) -> None:
    path.unlink(missing_ok=True)
    with path.open("wb") as file:
        file.truncate(size)


def _special_files() -> Iterator[tuple[str, Callable[[Path], object]]]:
    def instead(name: str, make: Callable[[Path], object]) -> Callable[[Path], object]:
        def spoil(folder: Path) -> None:
            for file in folder.glob("model.safetensors" if name.startswith("pytorch") else name):
                file.unlink()
            make(folder / name)

        return spoil

    makes: dict[str, Callable[[Path], object]] = {
        "a pipe": os.mkfifo,
        "/dev/zero": lambda p: p.symlink_to("/dev/zero"),
        "/dev/full": lambda p: p.symlink_to("/dev/full"),
        "a folder": lambda p: p.mkdir(),
        "a link to itself": lambda p: p.symlink_to(p.name),
        "a link to nothing": lambda p: p.symlink_to("nowhere"),
        "/proc/self/mem": lambda p: p.symlink_to("/proc/self/mem"),
    }
    for name in ("config.json", "model.safetensors", "pytorch_model.bin", "tokenizer.json"):
        for what, make in makes.items():
            yield f"{name} is {what}", instead(name, make)
    for what, make in makes.items():

        def shard(folder: Path, make: Callable[[Path], object] = make) -> None:
            (folder / "model.safetensors").unlink()
            (folder / "model.safetensors.index.json").write_text(json.dumps({"weight_map": {FIRST: "one.safetensors"}}))
            make(folder / "one.safetensors")

        yield f"a shard is {what}", shard


def _safetensors(whole: bytes) -> Iterator[tuple[str, Callable[[Path], object]]]:
    (length,) = struct.unpack("<Q", whole[:8])
    header, data = json.loads(whole[8 : 8 + length]), whole[8 + length :]

    def packed(header: str | bytes, length: int | None = None) -> Callable[[Path], object]:
        raw = header.encode() if isinstance(header, str) else header
        return _put("model.safetensors", struct.pack("<Q", len(raw) if length is None else length) + raw + data)

    for lie in (0, 1, 7, length - 1, length + 1, len(whole), 2**31, 2**32, 2**62, 2**63, 2**64 - 1):
        yield f"safetensors length {lie}", packed(json.dumps(header), lie)
    for text in ("5", "null", "[]", '"x"', "{", "{}", _nested(50_000), '{"a":' * 50_000, "\0" * 50, "9" * 10_000):
        yield f"safetensors header {text[:10]!r}", packed(text)
    for at in (0, 3, 8, 9, length, len(whole) - 1):
        yield f"safetensors cut at {at}", _put("model.safetensors", whole[:at])
    entry = header[FIRST]
    begin, end = entry["data_offsets"]
    for change in (
        *({"shape": s} for s in (None, "x", [-1, 5], [2**63, 2**63], [0, 0], [[1]], [1.5, 2], [True], [10**30, 1], 7)),
        *({"shape": [1] * 5_000}, {"shape": [entry["shape"][0] + 1, entry["shape"][1]]}),
        *({"data_offsets": o} for o in ([0, 0], [end, begin], [-8, end], [begin, 2**70], ["a", "b"], None, [1], 5)),
        *({"data_offsets": [begin, end + 4]}, {"data_offsets": [begin + 4, end + 4]}, {"data_offsets": [0, end]}),
        *({"dtype": d} for d in ("F64", "I8", "BOOL", "F8_E4M3", "nonsense", None, 5, [], "U64")),
    ):
        yield f"safetensors entry {str(change)[:40]}", packed(json.dumps(header | {FIRST: entry | change}))
    for odd in (None, 5, [], "x"):
        yield f"safetensors entry is {odd!r}", packed(json.dumps(header | {FIRST: odd}))
    doubled = json.dumps(header)[:-1] + f', "{FIRST}": {json.dumps(entry | {"shape": [1]})}}}'
    yield "safetensors entry twice", packed(doubled)
    yield "safetensors of a long name", packed(json.dumps(header | {"a" * 5_000: entry}))
    many = {f"t{i}": {"dtype": "F32", "shape": [0], "data_offsets": [0, 0]} for i in range(100_000)}
    yield "safetensors of 100,000 tensors", packed(json.dumps(header | many))
    spare = random.Random(0)
    for turn in range(12):
        bent = bytearray(whole[: 8 + length])
        for _ in range(5):
            bent[spare.randrange(8, len(bent))] = spare.randrange(256)
        yield f"safetensors bent {turn}", _put("model.safetensors", bytes(bent) + data)


def _pickles(good: Path) -> Iterator[tuple[str, Callable[[Path], object]]]:
    import torch
    from safetensors.torch import load_file

    tensors = load_file(good / "model.safetensors")

    def saved(content: Any, **how: Any) -> Callable[[Path], object]:
        def spoil(folder: Path) -> None:
            (folder / "model.safetensors").unlink()
            torch.save(content, folder / "pytorch_model.bin", **how)

        return spoil

    def raw(data: bytes) -> Callable[[Path], object]:
        def spoil(folder: Path) -> None:
            (folder / "model.safetensors").unlink()
            (folder / "pytorch_model.bin").write_bytes(data)

        return spoil

    of = tensors[FIRST]
    for what, tensor in {
        "meta": of.to("meta"), "sparse": of.to_sparse(), "csr": of.to_sparse_csr(), "complex": of.to(torch.complex64),
        "quantised": torch.quantize_per_tensor(of, 0.1, 0, torch.qint8), "whole numbers": of.to(torch.int64),
        "of stride 0": torch.zeros(1, 1).expand(of.shape), "flat": of.flatten(), "empty": of[:0], "bool": of > 0,
        "a billion rows": torch.zeros(1, 1).expand(2**40, 2**20), "negative": torch._neg_view(of),
        "nested": torch.nested.nested_tensor([of]), "a parameter that runs": Runs(), "float8": of.to(torch.float8_e4m3fn), "double": of.double() * 1e300,
    }.items():  # fmt: skip
        yield f"pickle {what}", saved(tensors | {FIRST: tensor})
    for content in (Runs(), [Runs()], {"a": Runs()}, None, 5, [], {}, tensors | {5: of}, [tensors], bytearray(9)):
        yield f"pickle of {type(content).__name__} {len(str(content)[:50])}", saved(content)
        yield f"old pickle of {type(content).__name__}", saved(content, _use_new_zipfile_serialization=False)
    deep: Any = []
    for _ in range(200):
        deep = [deep]
    yield "deep pickle", saved({"a": deep})
    yield "deeper pickle", raw(b"\x80\x02" + b"]" * 100_000 + b"a" * 99_999 + b".")
    yield "pickle that asks for 16 GB", raw(b"\x80\x02cbuiltins\nbytearray\n\x8a\x05\x00\x00\x00\x00\x04\x85R.")
    yield "pickle by name", raw(b"cos\nsystem\n(S'touch executed'\ntR.")
    yield "pickle by itself", raw(pickle.dumps(Runs()))
    for at in (0, 1, 4, 100):
        yield f"pickle cut at {at}", raw(b"PK\x03\x04"[:at] + b"\0" * max(0, at - 4))

    def bomb(folder: Path) -> None:
        (folder / "model.safetensors").unlink()
        with zipfile.ZipFile(folder / "pytorch_model.bin", "w", zipfile.ZIP_DEFLATED) as archive:
            for name in ("archive/data.pkl", "archive/data/0"):
                with archive.open(name, "w") as entry:
                    for _ in range(200):
                        entry.write(bytes(1 << 20))

    yield "a zip bomb", bomb


def _indices() -> Iterator[tuple[str, Callable[[Path], object]]]:
    def index(text: str) -> Callable[[Path], object]:
        def spoil(folder: Path) -> None:
            (folder / "model.safetensors").rename(folder / "one.safetensors")
            _put("model.safetensors.index.json", text)(folder)

        return spoil

    for value in (
        "../x",
        "/etc/passwd",
        "",
        ".",
        "..",
        "a\0b",
        5,
        None,
        ["a"],
        "a" * 5000,
        "\x1b[2J",
        "no.safetensors",
    ):
        yield f"index names {value!r:.20}", index(json.dumps({"weight_map": {FIRST: value}}))
    for text in ("", "[]", "{}", "5", '{"weight_map": []}', '{"weight_map": {}}', _nested(90_000), '{"weight_map": 5}'):
        yield f"index {text[:15]!r}", index(text)


def _values(good: Path) -> Iterator[tuple[str, Callable[[Path], object]]]:
    from safetensors.torch import load_file, save_file

    def value(name: str, number: float) -> Callable[[Path], object]:
        def spoil(folder: Path) -> None:
            tensors = load_file(good / "model.safetensors")
            tensors[name].view(-1)[-1] = number
            (folder / "model.safetensors").unlink()
            save_file(tensors, folder / "model.safetensors")

        return spoil

    for name in (FIRST, "transformer.wte.weight", "transformer.wpe.weight", "transformer.ln_f.bias"):
        for number in (float("nan"), float("inf"), -float("inf")):
            yield f"{number} in {name}", value(name, number)


def _tokenizers() -> Iterator[tuple[str, Callable[[Path], object]]]:
    replace = {"type": "Replace", "pattern": {"String": ""}, "content": ""}
    empty = {"type": "BPE", "vocab": {}, "merges": []}
    for name, text in {
        "empty": "", "null": "null", "deep": _nested(90_000), "nothing": "{}", "wrong types": '{"model": 5}',
        "an empty pattern": json.dumps({"version": "1.0", "normalizer": replace, "model": empty}),
        "a merge of nothing": json.dumps({"model": empty | {"merges": [["a", "b"]]}}),
        "a pattern that never ends": json.dumps({"model": empty, "normalizer": replace | {"pattern": {"Regex": "("}}}),
        "not UTF-8": "\udcff", "zeros": "\0" * 999,
    }.items():  # fmt: skip
        yield f"tokenizer {name}", _put("tokenizer.json", text)


def open_model(path: Path) -> None:
    import rung

    model = rung.load(path, dtype="float32", device="cpu")
    model.generate("Once", max_new_tokens=2, temperature=0.8)


# ---- kernel files -------------------------------------------------------------------------------------------------

KERNEL = """/*---
idea = "x"
%s
[[launch]]
kernel = "k"
grid = %s
block = %s
%s
---*/
#include "rung.cuh"
extern "C" __global__ void k(const Real* a, const Real* b, Real* out, int N%s) { out[threadIdx.x] = a[threadIdx.x]; }
"""


def headers(work: Path) -> Iterator[tuple[str, Path]]:
    """Hostile files of kernels, one at a time."""
    for number, (name, content) in enumerate(_header_classes()):
        path = work / f"{number}{'.py' if name.startswith('python') else '.cu'}"
        if callable(content):
            content(path)
        else:
            path.write_bytes(content.encode(errors="surrogatepass") if isinstance(content, str) else content)
        yield name, path


def _kernel(top: str = "", grid: str = "1", block: str = "32", entry: str = "", parameters: str = "") -> str:
    text = KERNEL % (top, grid, block, entry, parameters)
    return re.sub(r"\bN\b", "C", text)  # a name that the operation has: an unknown one would end the evaluation


def _bad_expressions() -> Iterator[str]:
    yield from ("9**9**9", "((((N**8)**8)**8)**8)**8", "2**8**8", "1 << 999", "(1 << 64) << 64 << 64", "N << N << N")
    yield from ("1e308 * 10", "int(1e308)", "int(1e400)", "next_pow2(1 << 64 << 60)", "0 / 0", "1 // 0", "1 % 0", "nan")
    yield from ("-" * 1500 + "1", "(" * 150 + "1" + ")" * 150, "(" * 5000 + "1" + ")" * 5000, "1+" * 20_000 + "1")
    yield from ("not " * 400 + "N", "1 if " * 90 + "1", "max(" * 90 + "1" + ")" * 90, "N" * 50_000, "9" * 4000)
    yield from ("__import__('os')", "N.__class__", "lambda: 1", "[1 for i in range(9)]", "'a' * 9**9", "open('/x')")
    yield from ("", " ", "\\u0000", "\\u202e1", "N N", "1;2", "f'{N}'", "N := 5", "abs", "min()", "max(N)", "sqrt(-1)")
    yield from ("log2(0)", "round_up(5, 0)", "ceil_div(1, 0)", "min(1, 'a')", "1j", "b'x'", "...", "*N", "-1", "0")
    yield from ("-N", "1 << 40", "2**31 - 1", "4294967296", "N * 10**8", "0.5", "True + True", "unknown_name")


def _header_classes() -> Iterator[tuple[str, Any]]:
    for text in _bad_expressions():
        if text in ("True + True",):
            continue
        for key in ("grid", "block", "needs"):
            if key == "needs" and text in ("2**31 - 1", "4294967296", "1 << 40", "N * 10**8", "-N", "-1", "0.5", "N"):
                continue
            given = json.dumps(text).replace("\\\\u", "\\u")
            place = {"needs": _kernel(top=f"needs = [{given}]")}.get(key) or _kernel(**{key: given})
            yield f"{key} = {text[:24]!r}", place
    for grid in ("2147483647", "[2147483647, 65535, 65535]", "[65536, 65535, 1]"):
        yield f"blocks of {grid}", _kernel(grid=grid)
    big = json.dumps("(N**8)**8 * (N**8)**8")
    for text in ("N**8 * N**8 * N**8 * N**8 * N**8 * N**8", "-1", "1 << 50", "x" * 3000, "0.1"):
        for place in ("align", "shared", "when"):
            key = json.dumps(text)
            top, entry = (f"align = {key}", "") if place == "align" else ("", f"{place} = {key}")
            if place != "when" or "x" in text or "**" in text:
                yield f"{place} = {text[:20]!r}", _kernel(top=top, entry=entry)
    long = '"' + "1 + " * 450 + '1"'
    yield "each of long expressions", _kernel(grid=long, block=long, entry=f"each = {{ i = {long} }}")
    yield "each of a million", _kernel(entry='each = { i = "1000000" }')
    yield "each of 10^18", _kernel(entry=f"each = {{ i = {10**18} }}")
    yield "each bomb", _kernel(entry=f"each = {{ i = {big} }}")
    for shape in (
        "[-1]",
        "[0, -5]",
        '["N**8", "N**8", "N**8"]',
        "[1099511627776, 4096]",
        '["-N"]',
        '["x" ]',
        "[]",
        "5",
    ):
        yield f"buffer of {shape}", _kernel(top=f"[buffers.s]\nshape = {shape}", parameters=", float* s")
    yield "let of itself", _kernel(top='[let]\nA = "A + 1"', grid='"A"')
    yield "let in a ring", _kernel(top='[let]\nA = "B2"\nB2 = "A"', grid='"A"')
    lets = "\n".join(f'L{i} = "L{i - 1} + L{i - 1}"' if i else 'L0 = "N"' for i in range(200))
    yield "let that doubles 200 times", _kernel(top=f"[let]\n{lets}", grid='"L199"')
    powers = "\n".join(f'L{i} = "L{i - 1} ** 8"' if i else 'L0 = "N"' for i in range(60))
    yield "let of powers", _kernel(top=f"[let]\n{powers}", grid='"L59"')
    yield "let of 20,000 names", _kernel(top="[let]\n" + "\n".join(f"L{i} = {i}" for i in range(20_000)), grid='"M"')
    chain = "\n".join(f'L{i} = "L{i - 1} + 1"' if i else 'L0 = "N"' for i in range(20_000))
    yield "let of 20,000 names, each over the last", _kernel(top=f"[let]\n{chain}", grid='"M"')
    yield "tune of everything", _kernel(top=f"[tune]\nX = [{', '.join(map(str, range(100_000)))}]", grid='"Y"')
    for value in ("[]", "5.5", '"x"', "[true]", "[1, 2.5]", "{}", "[[1]]", '["a"]'):
        yield f"tune = {value}", _kernel(top=f"[tune]\nX = {value}")
    yield "deep TOML", _kernel(top="x = " + _nested(20_000))
    yield "deep tables", _kernel(top="[" + ".".join("a" * 5000) + "]")
    yield "deep inline tables", _kernel(top="x = " + "{a=" * 5000 + "1" + "}" * 5000)
    yield "a key twice", _kernel(top='idea = "y"')
    for top in ("dtypes = 5", 'dtypes = ["f99"]', "needs = 5", "options = [1]", 'options = ["-I/etc"]', "arch_specific = 5",
                "bind = 5", "[bind]\na = true", "define = 3", '[define]\nX = ""', "buffers = 1", "maps = 1", "let = 7",
                "constants = 7", 'constants = { a = "zz" }', 'from = "../../x"', "emulate = 7", "unknown = 1", "align = true",
                "found = '" + "x" * 500 + "'", "dims = [5]", "inside = 5", "[maps.m]\noperand = 'a'\nbox = [-1]",
                "[maps.m]\noperand = 'zz'\nbox = [1]", "dims = ['nothing']", "tune = 1", "inherit = 5", "inherit = [5]", "inherit = ['tune']\nfrom = 5",
                "inherit = ['tune']\nfrom = 'residual/999'", "inherit = ['nothing']\nfrom = 'residual/1'",
                "inherit = ['idea', 'launch']\nfrom = 'residual/1'"):  # fmt: skip
        yield f"header with {top[:24]!r}", _kernel(top=top)
    for text in ("", "\n" * 200_000, "/*---\n" + "\n" * 200_000, "/*---\n---*/", "/*---\nx\n---*/", "\0" * 5000, "/*---" * 50_000,
                 "(" * 200_000, "// " + "x" * 900_000, 'R"(' * 50_000, "'" * 100_000, '"' * 100_000):  # fmt: skip
        yield f"file of {text[:8]!r} {len(text)}", text
    yield "not UTF-8", b"/*---\nidea = '\xff\xfe'\n---*/\n"
    yield "surrogates", "/*---\nidea = '\udcff'\n---*/\n"
    yield "terminal escapes", _kernel().replace('kernel = "k"', 'kernel = "\\u001b[2J\\u001b[31m"')
    yield "other direction", _kernel().replace('kernel = "k"', 'kernel = "\u202ek"')
    yield "200 KB of globals", _kernel() + "__global__ void g(int x);\n" * 8_000 + "#error on purpose\n"
    for piece in ('R"(', "/*", "(", "<", "A<", "__global__ k(", "__global__ A<", "'x", '"', "#if 0\n", "template <"):
        yield f"200 KB of {piece!r}", _kernel().partition("extern")[0] + piece * (200_000 // len(piece))
    yield "many parentheses", _kernel(parameters=", int x" + "(" * 20_000) + "{" * 20_000
    yield "angle brackets", _kernel(parameters=", A" + "<" * 20_000)
    yield "1000 parameters", _kernel(parameters="".join(f", int p{i}" for i in range(5_000)))
    yield "a pipe", os.mkfifo
    yield "/dev/zero", lambda p: p.symlink_to("/dev/zero")
    yield "a link to itself", lambda p: p.symlink_to(p.name)
    yield "a folder", lambda p: p.mkdir()
    yield "2 GB", lambda p: _sparse(p, 2 << 30)
    pipe = _kernel().replace("rung.cuh", "pipe.cuh")
    for what, make in {"a pipe": os.mkfifo, "/dev/zero": lambda p: p.symlink_to("/dev/zero")}.items():

        def include(path: Path, make: Callable[[Path], object] = make) -> None:
            (path.parent / "pipe.cuh").unlink(missing_ok=True)
            make(path.parent / "pipe.cuh")
            path.write_text(pipe)

        yield f"an include is {what}", include
    yield "an include of a system file", _kernel().replace('"rung.cuh"', '"/etc/shadow"')
    yield "an include of itself", lambda p: p.write_text(_kernel().replace("rung.cuh", p.name))
    run = "\ndef run(a, b, out):\n    out.copy_(a)\n"
    for text in ('"""x"""\nDTYPES = 5', '"""x"""\nNEEDS = 5', '"""x"""\nTUNE = 5', '"""x"""\nLET = 5', '"""x"""\nBUFFERS = 5',
                 '"""x"""\nALIGN = []', '"""x"""\nNEEDS = "' + "-" * 1500 + '1"', '"""x"""\nX = ' + "-" * 50_000 + "1",
                 '"""x"""\nX = ' + "(" * 50_000, '"""x"""\nBUFFERS = {"s": {"shape": [-1]}}',
                 '"""x"""\nDTYPES = [["f32"]]', '"""x"""\nLET = {5: 5}', '"""x"""\nTUNE = {"X": [1.5]}', "x = = 1",
                 '"""x"""\nX = {**{}, 1: 2}', '"""x"""\nNEEDS = "9**9**9"'):  # fmt: skip
        yield f"python {text[8:30]!r} {len(text)}", text + run


def open_header(path: Path) -> None:
    from rung.check.judge import check
    from rung.errors import RungError
    from rung.rungs import catalogue

    rung = catalogue.rung_from_file(catalogue.operation("residual"), path)
    rung.reads = rung.binds
    report = check(rung, rung.dtypes[0], device="emulator", quick=True)
    if report.verdict == "ok":
        raise AssertionError("it was called right")
    raise RungError(report.reason)


# ---- the child ----------------------------------------------------------------------------------------------------


def _peak() -> int:
    """The most memory that this process has held since the last call, in bytes."""
    text = Path("/proc/self/status").read_text()
    Path("/proc/self/clear_refs").write_text("5")
    return int(text.partition("VmHWM:")[2].split()[0]) << 10


def main() -> None:
    from rung.errors import RungError

    what, work = sys.argv[1], Path(sys.argv[2])
    good = Path(sys.argv[3])
    open_one = open_model if what == "models" else open_header
    if what == "models":
        open_model(good)
    else:
        warm = work / "warm.cu"
        warm.write_text(_kernel(grid='"unknown"'))
        with contextlib.suppress(RungError):
            open_header(warm)
    size = int(Path("/proc/self/statm").read_text().split()[0]) * resource.getpagesize()
    resource.setrlimit(resource.RLIMIT_AS, (size + 2 * BYTES, size + 2 * BYTES))
    for name, path in models(good, work) if what == "models" else headers(work):
        floor = int(Path("/proc/self/statm").read_text().split()[1]) * resource.getpagesize()
        _peak()
        print(json.dumps({"begins": name}), flush=True)
        begin, message, kind = time.monotonic(), "", "taken"
        signal.setitimer(signal.ITIMER_REAL, 4 * SECONDS)  # the default ends the process
        try:
            open_one(path)
        except RungError as error:
            message, kind = str(error), "refused"
        except BaseException as error:  # a panic of a library in Rust is no Exception
            message, kind = f"{type(error).__name__}: {error}", "raised"
        signal.setitimer(signal.ITIMER_REAL, 0)
        seconds = time.monotonic() - begin
        record = {"name": name, "kind": kind, "said": message[:3000], "seconds": seconds, "bytes": _peak() - floor}
        print(json.dumps(record), flush=True)
    print(json.dumps({"executed": Path("executed").exists()}))


if __name__ == "__main__":
    main()
