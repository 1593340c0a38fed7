"""Reads the header of a rung: TOML at the top of a `.cu` file, or the constants of a `.py` file."""

from __future__ import annotations

import json
import re
import tomllib
from collections.abc import Callable, Collection
from dataclasses import dataclass, field, fields
from functools import lru_cache
from pathlib import Path
from typing import TYPE_CHECKING, Any, TypeVar

from gpuless.base.expressions import names_in
from gpuless.base.files import read_text, whole
from rung.dtypes import DTYPES, PRODUCTS
from rung.errors import RungError
from rung.operation import folders, rung_folders

if TYPE_CHECKING:
    from _typeshed import DataclassInstance

Expression = str | int
Three = tuple[Expression, ...]  # x, y, z, or fewer
T = TypeVar("T", bound="DataclassInstance")
V = TypeVar("V")

_BEGINS = re.compile(r"\A\s*/\*---(?!-)|^[ \t]*/\*---[ \t]*$", re.MULTILINE)  # no line of a comment's own dashes
_BLOCK = re.compile(r"\A\s*/\*---[ \t]*\n(.*?)\n[ \t]*---\*/", re.DOTALL)
DESCRIPTIVE = ("idea", "expect", "found", "provenance", "adopted", "from", "rewrite", "side_experiment")
LONGEST_FOUND = 400  # characters; a longer text goes on a page next to the rung
_PARENT = re.compile(r"\w+/\w+")
_PLACE = re.compile(r" \(at line (?P<line>\d+), column (?P<column>\d+)\)$")


@dataclass(frozen=True)
class Buffer:
    """Scratch memory that a rung asks for."""

    shape: tuple[Expression, ...]
    dtype: str = "real"
    zero: bool = False  # before each run, or another number that `fill` gives
    fill: float = 0.0
    zero_once: bool = False  # when the rung is prepared; its content persists from call to call


@dataclass(frozen=True)
class Map:
    """A tensor map for an operand or a buffer; sizes as in shapes, the fastest dimension last."""

    operand: str
    box: tuple[Expression, ...]
    dims: tuple[Expression, ...] = ()  # else the operand's own shape
    strides: tuple[Expression, ...] = ()  # in elements, of all dimensions but the last; else packed
    offset: Expression = 0  # of the first element
    swizzle: Expression = 0  # bytes
    promotion: Expression = 128  # bytes that L2 fetches at least
    fill: str = "zeros"  # or "nan": the value beyond the edges
    tf32: bool = False  # floats are rounded during the copy, if the rung's dtype is tf32
    when: Expression = 1  # if this is 0, the kernel gets zeros and must not use them


@dataclass(frozen=True)
class Launch:
    """One kernel launch: the kernel, its grid and its attributes. Consecutive launches with the same `each` are
    repeated together, like the layers of a model.
    """

    kernel: str
    grid: Three
    block: Three
    shared: Expression = 0
    cooperative: bool = False
    cluster: Three | None = None
    pdl: bool = False
    when: Expression | None = None
    each: tuple[str, Expression] | None = None  # (name, count): repeated with name = 0 .. count - 1
    bind: dict[str, str | int | float] = field(default_factory=dict)


@dataclass(frozen=True)
class Inside:
    """The cycle counts of a kernel with timers: a buffer (blocks, rows, columns). `rows` are grouped by the thread that
    counts them; those of a thread add up to its running time.
    """

    counter: str
    columns: tuple[str, ...]
    rows: tuple[tuple[str, ...], ...]


@dataclass(frozen=True)
class Model:
    """What a model that chooses rungs should know of this one."""

    serves: dict[str, Expression] = field(default_factory=dict)  # purpose: rank among the rungs that serve it, 0: none
    fits: tuple[str, ...] = ()  # where it is worth its place; `tuned`: whether a sweep has found its parameters
    untuned: tuple[tuple[str, dict[str, int]], ...] = ()  # tunables where no sweep was: the first that holds
    estimate: str = ""  # or a rule of models/gpu/launch_estimates.py that finds them


@dataclass(frozen=True)
class Header:
    """All keys of a rung's header."""

    idea: str
    expect: str = ""
    found: str = ""
    provenance: str = ""
    adopted: str = ""  # rung wrote the header; "text": as the file's own text says, "trial": as trials confirm
    parent: str = ""  # `from` in the file: the parent rung, if it is not the number before
    rewrite: str = ""  # why most of the parent's code is replaced at once
    side_experiment: str = ""  # why it is not a step of the climb: such a rung is never chosen in place of another
    dtypes: tuple[str, ...] = ("f32",)
    products: str = ""  # the format of its products, if it is not its dtype; it determines the limiting rate
    needs: tuple[str, ...] = ()
    align: Expression | None = None  # alignment of operands in bytes; by default derived from the source
    options: tuple[str, ...] = ()
    arch_specific: bool = False
    emulate: str = ""
    tune: dict[str, tuple[int, ...]] = field(default_factory=dict)
    let: dict[str, Expression] = field(default_factory=dict)
    dims: tuple[str, ...] = ()  # dims that the code is compiled for: each is defined as DIM_<name>
    define: dict[str, Expression] = field(default_factory=dict)
    bind: dict[str, str | int | float] = field(default_factory=dict)
    buffers: dict[str, Buffer] = field(default_factory=dict)
    zeroed: tuple[str, ...] = ()  # outputs that are zero before each run: the code reads them or adds to them
    loses_nan: bool = False  # where the result is NaN it may give any number, as fmaxf does
    only_finite: bool = False  # where an input is infinite it may give NaN, as exp(-inf - -inf) does
    maps: dict[str, Map] = field(default_factory=dict)
    inside: Inside | None = None
    constants: dict[str, str] = field(default_factory=dict)
    launches: tuple[Launch, ...] = ()
    model: Model = field(default_factory=Model)
    formats: tuple[str, ...] = ()  # names of further rungs in the file: other keys for the same code


# Keys of a Python rung, given as constants with these names in capitals; it launches its kernels itself.
_CONSTANTS = {*DESCRIPTIVE, "emulate", "dtypes", "products", "needs", "align", "tune", "let", "buffers", "model"}
_CONSTANTS |= {"zeroed", "loses_nan", "only_finite"}
# Every key except the descriptive ones may come from the parent that `from` names.
INHERITED = {"launch", *Header.__dataclass_fields__} - {*DESCRIPTIVE, "parent", "launches"}


def parse(source: str, origin: str) -> Header:
    """The header at the top of `source`; `origin` names the file in errors."""
    return of_table(table(source, origin), origin)


def of_table(keys: dict[str, Any], origin: str) -> Header:
    """The header that has these keys."""
    return _Reader(origin).header(keys)


def of_constants(constants: dict[str, Any], idea: str, origin: str) -> Header:
    """The header of a Python rung."""
    keys = {name.lower(): _as_toml(value) for name, value in constants.items() if name.lower() in _CONSTANTS}
    return _Reader(origin).header({**keys, "idea": idea}, launches_itself=True)


def _as_toml(value: Any) -> Any:
    if isinstance(value, dict):
        return {name: _as_toml(inner) for name, inner in value.items()}
    return [_as_toml(inner) for inner in value] if isinstance(value, list | tuple) else value


def written(keys: dict[str, Any]) -> str:
    """Keys as a header of TOML, in one order."""
    order = [*DESCRIPTIVE, *Header.__dataclass_fields__, "launch"]
    keys = {name: keys[name] for name in sorted(keys, key=order.index)}
    plain = {name: value for name, value in keys.items() if not _is_table(value)}
    lines = [f"{name} = {inline(value)}" for name, value in plain.items()]
    for name, value in keys.items():
        if name in plain:
            continue
        if isinstance(value, list):
            for entry in value:
                lines += [f"[[{name}]]", *(f"{k} = {inline(v)}" for k, v in entry.items())]
            continue
        rows = {k: v for k, v in value.items() if not isinstance(v, dict)}
        if rows:
            lines += [f"[{name}]", *(f"{k} = {inline(v)}" for k, v in rows.items())]
        for inner, entry in value.items():
            if inner not in rows:
                lines += [f"[{name}.{inner}]", *(f"{k} = {inline(v)}" for k, v in entry.items())]
    return "\n".join(["/*---", *lines, "---*/"])


def _is_table(value: Any) -> bool:
    return isinstance(value, dict) or (isinstance(value, list) and value != [] and isinstance(value[0], dict))


def inline(value: Any) -> str:
    if isinstance(value, dict):
        return "{ " + ", ".join(f"{name} = {inline(inner)}" for name, inner in value.items()) + " }"
    if isinstance(value, list):
        return "[" + ", ".join(map(inline, value)) + "]"
    if isinstance(value, float):
        return str(value)  # also -inf
    return json.dumps(value, ensure_ascii=False)


def table(source: str, origin: str, seen: tuple[Path, ...] = ()) -> dict[str, Any]:
    """The header's keys, including inherited ones."""
    own = dict(_own_table(source, origin))
    if "inherit" not in own:
        return own
    keys, parent = own.pop("inherit"), own.get("from", "")
    texts = isinstance(keys, list) and all(isinstance(key, str) for key in [*keys, parent])
    if not texts or not parent:
        raise RungError(f'{origin}: inherit needs a list of keys, and from = "OP/NUMBER".')
    path, seen = _file_of(parent, origin), (*seen, Path(origin).resolve())
    if path.resolve() in seen:
        raise RungError(f"{origin}: inherit leads back to {path.name}; one of the two must be written in full.")
    inherited = table(read_text(path), str(path), seen)
    for key in keys:
        if key not in INHERITED or key not in inherited:
            available = ", ".join(name for name in inherited if name in INHERITED)
            raise RungError(f"{origin}: {key!r} cannot be inherited from {parent}; it has {available}.")
        own[key] = _merge(key, inherited[key], own[key], origin) if key in own else inherited[key]
    return own


def in_format(keys: dict[str, Any], name: str, origin: str) -> dict[str, Any]:
    """The header of a file's rung in another format: its keys with those of [formats.NAME], merged like inherited ones.
    The rung's parent is the one that is in the file."""
    formats = keys.get("formats", {})
    if not isinstance(formats, dict) or not isinstance(formats.get(name), dict):
        raise RungError(f"{origin}: formats.{name} is not a table; write [formats.{name}] with the keys that differ.")
    base = {key: value for key, value in keys.items() if key not in (*DESCRIPTIVE, "formats", "model")}
    parent = {"from": "/".join(Path(origin).with_suffix("").parts[-2:])}
    other = parent | formats[name]
    base = {key: value for key, value in base.items() if key != "dtypes" or key not in other}
    return _over(base, other, origin)


def _over(base: dict[str, Any], own: dict[str, Any], origin: str) -> dict[str, Any]:
    return base | {key: _merge(key, base[key], value, origin) if key in base else value for key, value in own.items()}


def _merge(key: str, inherited: Any, own: Any, origin: str) -> Any:
    """Tables are merged by name, conditions are added, and launches are merged key by key, in order."""
    if key == "formats":
        settings = {n: {k: v for k, v in form.items() if k not in DESCRIPTIVE} for n, form in inherited.items()}
        return {n: _over(settings.get(n, {}), form, origin) for n, form in own.items()}
    if isinstance(inherited, dict) and isinstance(own, dict):
        return inherited | own
    if key == "needs":
        return all_needs(inherited, own)
    if key == "launch" and isinstance(own, list) and len(own) == len(inherited):
        return [_merge("", *pair, origin) for pair in zip(inherited, own, strict=True)]
    raise RungError(f"{origin}: {key} is in the header and in inherit, and the two cannot be merged; drop one.")


def all_needs(*parts: Any) -> list[Any]:
    """Conditions as a list; each part is a condition or several."""
    return [n for part in parts for n in (part if isinstance(part, list | tuple) else [part])]


def _file_of(rung: str, origin: str) -> Path:
    """The file of the rung that `rung` names, in a sibling ladder or in any other."""
    name, _, which = parent_name(rung, origin).partition("/")
    beside = Path(origin).parent.parent / name
    known = rung_folders(name) if name in folders() else ()
    wanted = whole(which)
    for path in (p for folder in dict.fromkeys((beside, *known)) for p in folder.glob("[0-9]*_*.cu")):
        number, _, short = path.stem.partition("_")
        if which in (path.stem, short) or (wanted is not None and whole(number) == wanted):
            return path
    raise RungError(f"{origin}: from = {rung!r} is not a .cu rung, so no header can be inherited from it.")


def has_header(source: str) -> bool:
    return _BEGINS.search(source) is not None


@lru_cache(maxsize=512)  # a parent is read for each rung that inherits from it
def _own_table(source: str, origin: str) -> dict[str, Any]:
    found = _BLOCK.match(source)
    if found is None:
        raise RungError(f"{origin} {_why_no_header(source)}")
    try:
        return tomllib.loads(found.group(1))
    except RecursionError:
        raise RungError(f"{origin}: the header nests too deeply; write one value for each key.") from None
    except tomllib.TOMLDecodeError as error:
        problem, place = str(error), _PLACE.search(str(error))
        if place:
            line = int(place["line"]) + source.count("\n", 0, found.start(1))
            problem = f"{problem[: place.start()]}, at line {line}, column {place['column']}"
        raise RungError(f"{origin}: the header is not TOML: {problem}.") from None


def _why_no_header(source: str) -> str:
    if not source.strip():
        return "is empty; `rung new` writes a kernel to start from."
    if _BEGINS.match(source):
        return "begins a header that does not end; put ---*/ on a line of its own after it."
    if has_header(source):
        return "has its header too far down; move it to the top of the file."
    return "has no header; begin it with /*--- TOML ---*/ (`rung new` writes one)."


def short_enough(found: str, origin: str) -> str:
    """`found`, unless it is too long."""
    if len(found) > LONGEST_FOUND:
        raise RungError(
            f"{origin}: found has {len(found)} characters; keep at most {LONGEST_FOUND}, and put the rest on a page "
            "next to the rung (its number and .md, such as 13.md)."
        )
    return found


def parent_name(name: str, origin: str) -> str:
    """The parent that a rung names."""
    if name and not _PARENT.fullmatch(name):
        raise RungError(f"{origin}: from = {name!r} names no rung; write OP/NUMBER, such as attention/24.")
    return name


def let_table(table: dict[str, Any], origin: str) -> dict[str, Expression]:
    """Named expressions, each over dims, tunables and the names above it."""
    waiting = set(table)
    for name, expression in table.items():
        if isinstance(expression, bool) or not isinstance(expression, str | int):
            raise RungError(f"{origin}: let.{name} = {expression!r} is not an expression; write a number or a string.")
        later = names_in(str(expression)) & waiting
        waiting.discard(name)
        if later:
            raise RungError(
                f"{origin}: let.{name} uses {min(later)}, which is not defined above it; move the lines into order."
            )
    return dict(table)


def define_table(define: dict[str, Expression], let: dict[str, Expression], origin: str) -> dict[str, Expression]:
    """The definitions that the code is compiled with; not values known only at launch, since code is compiled ahead,
    for any GPU."""
    late: dict[str, set[str]] = {}  # for each name of [let], the values known only at launch that it depends on
    for name, expression in [*let.items(), *define.items()]:
        own = names_in(str(expression))
        unknown = {n for n in own if n in ("sms", "max_grid_y", "emulated") or "_stride_" in n}
        unknown.update(*(late[n] for n in own & late.keys()))
        if name in let and name not in late:
            late[name] = unknown
            continue
        first = sorted(unknown)
        if first:
            raise RungError(
                f"{origin}: define.{name} depends on {first[0]}, which is not known when the code is compiled; use a "
                "bound that holds everywhere (the minimum that `needs` requires), or pass it to the kernel by `bind`."
            )
    return define


class _Reader:
    """Turns a TOML table into a `Header`; errors name the key."""

    def __init__(self, origin: str) -> None:
        self.origin = origin

    def fail(self, problem: str) -> RungError:
        return RungError(f"{self.origin}: {problem}")

    def read(self, kind: type[T], table: dict[str, Any], where: str, prefix: str = "", **own: Any) -> T:
        """A dataclass from a table: each field by its annotation, but for its `own`; errors name PREFIX and the key."""
        names = [f.name for f in fields(kind)]
        self.known(table, where, names)
        types = {f.name: str(f.type).removesuffix(" | None") for f in fields(kind) if f.name in table}
        plain = [name for name in types if name not in own]
        return kind(**{n: getattr(self, _READERS[types[n]])(table[n], prefix + n) for n in plain}, **own)

    def known(self, table: dict[str, Any], where: str, names: Collection[str]) -> None:
        for key in table:
            if key not in names:
                raise self.fail(f"{where} has an unknown key {key!r}; it may have {', '.join(sorted(names))}.")

    def header(self, table: dict[str, Any], *, launches_itself: bool = False) -> Header:
        names = {{"parent": "from", "launches": "launch"}.get(f, f) for f in Header.__dataclass_fields__}
        self.known(table, "the header", names)
        launches = table.get("launch", [])
        if not launches_itself and (not isinstance(launches, list) or not launches):
            raise self.fail("the header has no [[launch]]; name the kernel, its grid and its block.")
        if "idea" not in table:
            raise self.fail('the header has no idea; add idea = "…" in one sentence.')
        let = let_table(self.table(table.get("let", {}), "let"), self.origin)
        define = self.each(table, "define", self.expression)
        return self.read(
            Header,
            {key: value for key, value in table.items() if key not in ("from", "launch")},
            "the header",
            found=short_enough(self.text(table.get("found", ""), "found"), self.origin),
            parent=parent_name(self.text(table.get("from", ""), "from"), self.origin),
            dtypes=self.dtypes(table.get("dtypes", ["f32"])),
            products=self.products(table.get("products", "")),
            tune=self.each(table, "tune", self.choices),
            let=let,
            define=define_table(define, let, self.origin),
            buffers=self.each(table, "buffers", self.buffer),
            maps=self.each(table, "maps", self.map),
            inside=self.inside(table) if "inside" in table else None,
            constants=self.each(table, "constants", self.text),
            launches=tuple(self.launch(entry) for entry in launches),
            model=self.model(self.table(table.get("model", {}), "model")),
            formats=tuple(self.table(table.get("formats", {}), "formats")),
        )

    def model(self, table: dict[str, Any]) -> Model:
        untuned = table.get("untuned", [])
        if not isinstance(untuned, list) or not all(isinstance(one, dict) and "when" in one for one in untuned):
            raise self.fail("model.untuned is not a list of tables with a condition `when`, and values of tunables.")
        rules = [({n: self.choices(v, n)[0] for n, v in one.items() if n != "when"}, one["when"]) for one in untuned]
        return self.read(Model, table, "model", "model.", untuned=tuple((str(when), tuned) for tuned, when in rules))

    def each(self, table: dict[str, Any], key: str, read: Callable[[Any, str], V]) -> dict[str, V]:
        """The values of a table, each read under its name."""
        return {name: read(value, f"{key}.{name}") for name, value in self.table(table.get(key, {}), key).items()}

    def table(self, value: Any, key: str) -> dict[str, Any]:
        if not isinstance(value, dict) or not all(isinstance(name, str) for name in value):
            raise self.fail(f"{key} is not a table; give one value for each name.")
        return value

    def text(self, value: Any, key: str) -> str:
        if not isinstance(value, str):
            raise self.fail(f"{key} is not a string; put it in quotes.")
        return value

    def flag(self, value: Any, key: str) -> bool:
        if not isinstance(value, bool):
            raise self.fail(f"{key} = {value!r} is neither true nor false.")
        return value

    def strings(self, value: Any, key: str) -> tuple[str, ...]:
        values = [value] if isinstance(value, str) else value
        if not isinstance(values, list) or not all(isinstance(v, str) for v in values):
            raise self.fail(f"{key} is not a string or a list of strings.")
        return tuple(values)

    def dtypes(self, value: Any) -> tuple[str, ...]:
        names = self.strings(value, "dtypes")
        for name in names:
            if name not in DTYPES:
                raise self.fail(f"dtypes names {name!r}; the number formats are {', '.join(DTYPES)}.")
        return names

    def products(self, name: Any) -> str:
        if name and name not in PRODUCTS:
            raise self.fail(
                f"products is {name!r}; leave it out where that is the dtype, or use {', '.join(PRODUCTS)}."
            )
        return str(name)

    def choices(self, value: Any, key: str) -> tuple[int, ...]:
        values = [value] if isinstance(value, int) else value
        if not isinstance(values, list) or not values or not all(type(v) is int for v in values):
            raise self.fail(f"{key} is not a list of whole numbers; the first is the default.")
        return tuple(values)

    def expression(self, value: Any, key: str) -> Expression:
        if isinstance(value, bool) or not isinstance(value, str | int):
            raise self.fail(f"{key} = {value!r} is not an expression; write a number or a string.")
        return value

    def expressions(self, value: Any, key: str) -> tuple[Expression, ...]:
        if not isinstance(value, list):
            raise self.fail(f"{key} is not a list of expressions.")
        return tuple(self.expression(v, key) for v in value)

    def three(self, value: Any, key: str) -> Three:
        values = value if isinstance(value, list) else [value]
        if not 1 <= len(values) <= 3:
            raise self.fail(f"{key} has {len(values)} entries; give one to three (x, y, z).")
        return self.expressions(values, key)

    def named_expressions(self, value: Any, key: str) -> dict[str, Expression]:
        return self.each({key: value}, key, self.expression)

    def bind(self, value: Any, key: str) -> dict[str, str | int | float]:
        bind = self.table(value, key)
        for name, target in bind.items():
            if isinstance(target, bool) or not isinstance(target, str | int | float):
                raise self.fail(f"{key}.{name} = {target!r} is neither an operand, a number nor an expression.")
        return bind

    def buffer(self, value: Any, key: str) -> Buffer:
        given = self.table(value, key)
        self.known(given, key, {"shape", "dtype", "zero", "fill"})
        zero, fill = given.get("zero", False), given.get("fill", 0)
        if not given.get("shape"):
            raise self.fail(f'{key} has no shape; write shape = ["B", "T"].')
        if not isinstance(zero, bool) and zero != "once":
            raise self.fail(f'{key}.zero = {zero!r} is neither true, false nor "once".')
        if isinstance(fill, bool) or not isinstance(fill, int | float) or (zero and fill):
            raise self.fail(f"{key}.fill = {fill!r} is not a number, such as -inf, or zero is given as well.")
        own = {"zero": zero is True or bool(fill), "fill": float(fill), "zero_once": zero == "once"}
        return self.read(Buffer, given, key, f"{key}.", **own)

    def map(self, value: Any, key: str) -> Map:
        given = self.table(value, key)
        for needed in ("operand", "box"):
            if not given.get(needed):
                raise self.fail(f'{key} has no {needed}; write operand = "x" and box = [64, 64].')
        made = self.read(Map, given, key, f"{key}.")
        if made.fill not in ("zeros", "nan"):
            raise self.fail(f'{key}.fill = {made.fill!r} is neither "zeros" nor "nan".')
        return made

    def inside(self, table: dict[str, Any]) -> Inside:
        inside = self.table(table["inside"], "inside")
        counter, rows = inside.get("counter"), inside.get("rows")
        if counter not in self.table(table.get("buffers", {}), "buffers"):
            raise self.fail(f"inside.counter = {counter!r} is not a buffer; declare [buffers.{counter or 'spent'}].")
        if not isinstance(rows, list) or not rows or not all(isinstance(group, list) for group in rows):
            raise self.fail("inside.rows is not a list with a list of rows for each thread that counts.")
        groups = tuple(self.strings(group, "inside.rows") for group in rows)
        return self.read(Inside, inside, "inside", "inside.", rows=groups)

    def launch(self, entry: Any) -> Launch:
        if not isinstance(entry, dict):
            raise self.fail("launch is not a table; write [[launch]] above its keys.")
        if not entry.get("kernel"):
            raise self.fail("a [[launch]] names no kernel.")
        for key in ("grid", "block"):
            if key not in entry:
                raise self.fail(f"the launch of {entry['kernel']} has no {key}.")
        each = self.named_expressions(entry["each"], "each") if "each" in entry else {}
        if "each" in entry and len(each) != 1:
            raise self.fail('each is not one name and its count; write each = { layer = "L" }.')
        return self.read(Launch, entry, "a [[launch]]", each=next(iter(each.items()), None))


_READERS = {  # the functions that read fields, by the fields' annotations
    "str": "text", "bool": "flag", "Expression": "expression", "Three": "three", "tuple[str, ...]": "strings",
    "tuple[Expression, ...]": "expressions", "dict[str, Expression]": "named_expressions",
    "dict[str, str | int | float]": "bind",
}  # fmt: skip
