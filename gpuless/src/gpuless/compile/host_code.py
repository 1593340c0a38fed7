"""Takes the host's part out of a source: functions that launch, `main`, headers that only the host uses. NVRTC accepts
no host function, and the emulator's g++ has neither CUDA's runtime library nor the C++ library's containers.

The text is split into the items of its namespaces (functions, classes, variables, ...). What carries __global__ or
__device__ stays, with everything that it names, at any depth. In a file with host functions the rest is blanked: lines
and columns stay the same.
"""

from __future__ import annotations

import functools
import re
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from pathlib import Path

from gpuless.compile.source import OF_TYPES, code_only, split, until, without_comments

# Headers that only host code uses. The standard ones that kernels use are in cuda/standard.
_HOST_HEADER = re.compile(
    r"(?:vector|string|string_view|map|set|unordered_map|unordered_set|deque|list|queue|stack|memory|tuple|optional|variant"
    r"|any|functional|numeric|iterator|iostream|fstream|sstream|iomanip|ostream|istream|chrono|random|thread|mutex|atomic"
    r"|future|stdexcept|exception|cassert\.h|complex|filesystem|ctime|cerrno|bitset|cstdarg|initializer_list|numbers"
    r"|execution|ranges|span|format|regex|locale|charconv|system_error|typeinfo|typeindex|ratio|valarray"
    r"|time\.h|stdarg\.h|sched\.h|malloc\.h|strings\.h|errno\.h|unistd\.h|omp\.h|signal\.h|fcntl\.h|dirent\.h|getopt\.h|sys/.*|arpa/.*|netinet/.*|bits/.*"
    r"|cublas.*|cudnn.*|cusparse.*|cusolver.*|curand\.h|cufft.*|nvtx3?/.*|nvToolsExt\.h|nccl\.h|mpi\.h|nvml\.h"
    r"|cudaProfiler\.h|cuda_profiler_api\.h|nvrtc\.h|cudaTypedefs\.h|pthread\.h|helper_(?!math)\w+\.h|torch/.*|ATen/.*|c10/.*|pybind11/.*"
    r"|Python\.h|gtest/.*|benchmark/.*|Eigen/.*)"
)
_TYPES = {"cublas": "cublas_v2.h", **dict.fromkeys(("torch/", "ATen/", "c10/"), "torch_types.h")}  # ours, of 16 bits
_INCLUDE = re.compile(r'^[ \t]*#[ \t]*include[ \t]*[<"]([^>"\n]+)[>"][^\n]*', re.MULTILINE)
_PLACED = re.compile(r'^[ \t]*#[ \t]*(?:include[ \t]*(?:"([^"\n]+)"|<([^/>\n]+)>)|pragma[ \t]+once).*$', re.MULTILINE)
_DEFINE = re.compile(r"^[ \t]*#[ \t]*define[ \t]+(\w+)((?:\\\n|[^\n])*)", re.MULTILINE)
_MAKER = re.compile(r"^[ \t]*#[ \t]*define[ \t]+(\w+)\(([^)]*)\)((?:\\\n|[^\n])*)", re.MULTILINE)
_ALIAS = re.compile(r"\bnamespace\s+\w+\s*=")
_PRAGMA = re.compile(r"^[ \t]*#[ \t]*pragma\b(.*)", re.MULTILINE)
_DIRECTIVE = re.compile(r"[ \t]*#")
_TOKEN = re.compile(r"[A-Za-z_]\w*|::|\d[\w.]*|\S")
_NAME = re.compile(r"[A-Za-z_]\w*")
MADE = 200  # kernels of a macro that are read
MACROS = 3  # that use each other before a host function uses one
_DEVICE = {"__global__", "__device__", "__constant__", "__shared__", "__managed__"}
_CONSTANT = {"constexpr", "consteval"}
_CLASS = {"struct", "class", "union", "enum"}
# A bracketed list follows these words, which is no parameter list.
_LISTS = {"__launch_bounds__", "__align__", "alignas", "__attribute__", "decltype", "__declspec", "__cluster_dims__"}
_LISTS |= {"__maxnreg__", "noexcept", "__block_size__"}


@dataclass
class _Item:
    """One declaration or definition at namespace level."""

    start: int
    end: int
    words: list[str]  # all of them
    head: list[str]  # those before a body or an initialiser
    function: bool = False
    body: bool = False
    names: set[str] = field(default_factory=set)


def with_headers(source: Path, include: Sequence[str | Path], seen: set[Path] | None = None) -> str:
    """The file with the user's own headers in their places, whose host functions NVRTC does not take either."""
    seen = set() if seen is None else seen
    text = source.read_text("utf-8-sig", errors="replace")

    def put(match: re.Match[str]) -> str:
        if (name := match[1] or match[2]) is None:
            return ""
        if _HOST_HEADER.fullmatch(name):
            return match[0]
        places = [*([source.parent] if match[1] else []), *map(Path, include)]
        found = next((folder / name for folder in places if (folder / name).is_file()), None)
        if found is None:
            return match[0]
        if found.resolve() in seen:
            return ""
        seen.add(found.resolve())
        line = text.count("\n", 0, match.start()) + 2
        return f'#line 1 "{found}"\n{with_headers(found, include, seen)}\n#line {line} "{source}"'

    return _PLACED.sub(put, text)


def with_made_kernels(text: str) -> str:
    """The text, in which the uses of macros that define kernels are what they stand for: signatures are read there."""
    for name, parameters, body in _MAKER.findall(text):
        if "__global__" not in body:
            continue
        use = re.compile(rf"^[ \t]*{name}[ \t]*\(", re.MULTILINE)
        for _ in range(MADE):
            if not (found := use.search(text)):
                break
            given, end = until(text, found.end(), ")")
            meant = dict(zip(split(parameters), split(given, *OF_TYPES), strict=False))
            words = re.split(r"(\W+)", body.replace("\\\n", " "))
            made = re.sub(r"\s*##\s*", "", "".join(meant.get(word, word) for word in words)) + "\n" * given.count("\n")
            text = text[: found.start()] + made + text[end:]
    return text


@functools.lru_cache(maxsize=256)
def device_part(source: str, only: frozenset[str] | None = None) -> str:
    """The text that both compilers get: `source` itself if it has no host code; of the device's functions only what
    `only` names, and what that needs."""

    def put(found: re.Match[str]) -> str:
        if found[1] == "cuda.h" and "CU" not in re.sub(r"CU(?:DA|BLAS)", "", source):  # nothing of the driver's is used
            return _blank(found[0])
        if not _HOST_HEADER.fullmatch(found[1]):
            return found[0]
        ours = next((header for start, header in _TYPES.items() if found[1].startswith(start)), None)
        return f"#include <{ours}>" if ours else _blank(found[0])

    text = _INCLUDE.sub(put, source)
    if "__global__" not in text:
        return text
    code = code_only(text)
    items = list(items_of(code))
    kept = _items_of_kernels(items, text, only)
    functions = [item for item in items if item.function and item.body]
    if all(id(item) in kept for item in functions):
        return text
    macros = _macros(text)
    members = (part for item in items if id(item) in kept for part in _members_of_host(code, item, macros))
    for start, end in [*((item.start, item.end) for item in items if id(item) not in kept), *members]:
        text = text[:start] + _blank_code(text[start:end]) + text[end:]
    for item in reversed(items):
        if id(item) in kept and item.words[:2] == ["using", "namespace"] and not _ALIAS.search(code):
            text = text[: item.start] + _declared_namespace(item.words[2:]) + text[item.start :]
    return text


def _declared_namespace(words: Sequence[str]) -> str:
    """A header of the host's may be all that declares what a using-directive names."""
    names = [word for word in words if _NAME.match(word)]
    return "".join(f"namespace {name} {{ " for name in names) + "} " * len(names)


def lacks_device(source: str) -> bool:
    """Whether a plain function that the kernels name carries no __device__, which nvcc refuses. Of constexpr functions
    and of members it accepts that."""
    macros, items = _macros(source), list(items_of(code_only(source)))
    plain = (i for i in items if i.function and i.body and not _device(i, macros))
    return any(not _CONSTANT & _expand(item.head, macros) for item in plain)


def host_part(source: str) -> str:
    """The text of the host's functions, without comments and literals, a zero between two: launches are there."""
    code = code_only(source)
    items = list(items_of(code))
    kept = _items_of_kernels(items, source)
    text = "\0".join(code[item.start : item.end] for item in items if item.function and id(item) not in kept)
    return re.sub(r"<<\s+<", "<<<", re.sub(r">>\s+>", ">>>", text))  # as some editors write a launch


def launching_macros(source: str) -> Iterator[str]:
    """The bodies of macros that launch, each with the texts that use it: what its names mean is there."""
    macros = {name: text.replace("\\\n", "\n") for name, text in _DEFINE.findall(without_comments(source))}
    hosts = host_part(source).split("\0") if any("<<<" in text for text in macros.values()) else []
    for name, body in macros.items():
        names, texts = {name}, [body]
        for _ in range(MACROS if "<<<" in body else 0):
            for other, text in [*macros.items(), *(("", text) for text in hosts)]:
                if text not in texts and names & {*_NAME.findall(text)}:
                    names.add(other)
                    texts.append(text)
        if names - {name} or "<<<" in body:
            yield "\n".join(texts)


def _items_of_kernels(items: list[_Item], text: str, only: frozenset[str] | None = None) -> set[int]:
    """The items that the kernels need: those marked for the device, and what they name."""

    def spare(item: _Item) -> bool:  # operators are not called by name
        defines = item.function and item.body and bool(_DEVICE & {*item.head}) and "operator" not in item.head
        return only is not None and defines and not item.names & only

    macros = _macros(text)
    pragmas = _PRAGMA.findall(text)  # such as a constant in `#pragma unroll DEPTH`
    named = {name for pragma in pragmas for name in _NAME.findall(pragma)}
    always = {"using namespace", "static_assert", "namespace", "extern template"}
    kept: set[int] = set()
    items = [item for item in items if not _hosts_variable(item, macros)]

    def stays(i: _Item) -> bool:  # a kernel within a function as well, which the compiler tells
        marked = _device(i, macros) or "__global__" in i.words
        return marked or bool(i.names & named or {i.words[0], " ".join(i.words[:2])} & always)

    roots = filter(stays, items)
    of_device = {name for item in items if item.function and _device(item, macros) for name in item.names}
    hosts = (item for item in items if item.function and not _device(item, macros))
    classes = (item for item in items if not item.function and _DEVICE & _expand(item.words, macros))
    marked = {name for item in classes for name in item.names}
    plain = {
        id(item) for item in hosts if "__host__" in item.head or item.names & of_device or _of_host(item, marked)
    }
    waiting = [item for item in roots if id(item) not in plain and not spare(item)]
    owners: dict[str, list[_Item]] = {}
    for item in items:
        if id(item) not in plain:
            for name in item.names:
                owners.setdefault(name, []).append(item)
    seen: set[str] = set()
    while waiting:
        item = waiting.pop()
        if id(item) in kept:
            continue
        kept.add(id(item))
        for word in _expand(item.words, macros) - seen:
            seen.add(word)
            waiting += owners.get(word, [])
    return kept


def _macros(text: str) -> dict[str, set[str]]:
    found: dict[str, set[str]] = {}
    for name, body in _DEFINE.findall(text):
        found.setdefault(name, set()).update(_NAME.findall(body))
    return found


def _expand(words: list[str], macros: dict[str, set[str]]) -> set[str]:
    """The words, and those of the macros among them."""
    found, waiting = set(), [*words]
    while waiting:
        word = waiting.pop()
        if word not in found:
            found.add(word)
            waiting += macros.get(word, ())
    return found


def _device(item: _Item, macros: dict[str, set[str]]) -> bool:
    return bool(_DEVICE & _expand(item.head, macros))


def _members_of_host(code: str, item: _Item, macros: dict[str, set[str]]) -> Iterator[tuple[int, int]]:
    """Where a class defines functions that no kernel can call."""
    opening = code.find("{", item.start, item.end)
    if item.function or opening < 0 or not {"class", "struct"} & {*item.head}:
        return
    for one in items_of(code[opening + 1 : code.rindex("}", item.start, item.end)]):
        start = opening + 1 + one.start
        if one.words[0] in ("public", "private", "protected"):
            start = code.index(":", start) + 1
        others = _DEVICE | _CONSTANT | {"virtual", "override", *_CLASS}
        if one.function and one.body and not others & _expand(one.head, macros):
            yield start, opening + 1 + one.end


def _of_host(item: _Item, marked: set[str]) -> bool:
    """Whether this function launches, or is a member of a class that has nothing for the device."""
    head = _without_lists(item.head)
    name = head.index("(") - 1 if "(" in head else 0
    member = name > 1 and head[name - 1] == "::" and not (marked | _CONSTANT) & {*head}
    return item.body and (member or "<<<" in "".join(item.words))


def _hosts_variable(item: _Item, macros: dict[str, set[str]]) -> bool:
    """Whether this is a variable that no kernel can use, such as `int n;` beside a parameter of that name."""
    other = {"using", "typedef", "extern", "template", "namespace", "static_assert", "const"}
    other |= _CONSTANT | _CLASS | _DEVICE
    return not item.function and len(item.head) > 1 and not other & _expand(item.head, macros)


def items_of(code: str) -> Iterator[_Item]:
    """The items of all namespaces, in order; none if the text's brackets do not match."""
    tokens = [(m[0], m.start(), m.end()) for m in _TOKEN.finditer(code)]
    found: list[_Item] = []
    i, open_namespaces = 0, 0
    while i < len(tokens):
        word = tokens[i][0]
        if word == "}" and open_namespaces:
            i, open_namespaces = i + 1, open_namespaces - 1
            continue
        if word in (";", "}"):
            if word == "}":
                return
            i += 1
            continue
        opened = _namespace(tokens, i)
        if opened:
            i, open_namespaces = opened, open_namespaces + 1
            continue
        item, i = _item(tokens, i)
        if item is None:
            return
        found.append(item)
    yield from found


_Tokens = list[tuple[str, int, int]]


def _namespace(tokens: _Tokens, i: int) -> int:
    """The index after `namespace a::b {` or `extern "C" {`; 0 if something else begins here."""
    at = i + 1 if tokens[i][0] == "inline" else i
    if at >= len(tokens) or tokens[at][0] not in ("namespace", "extern"):
        return 0
    end = at + 1
    named = tokens[at][0] == "namespace"
    while named and end < len(tokens) and (_NAME.match(tokens[end][0]) or tokens[end][0] == "::"):
        end += 1
    return end + 1 if end < len(tokens) and tokens[end][0] == "{" else 0


def _item(tokens: _Tokens, first: int) -> tuple[_Item | None, int]:
    depth, head_ends, assigned, brackets = 0, 0, False, False
    i = first + _after_template([word for word, _, _ in tokens[first : first + 500]])  # whose defaults assign nothing
    while i < len(tokens):
        word = tokens[i][0]
        if depth == 0:
            if word == "=" and tokens[i - 1][0] != "operator":
                assigned, head_ends = True, head_ends or i
            if word == "{":
                head_ends = head_ends or i
            if word == ";":
                return _made(tokens, first, i, head_ends or i, body=False), i + 1
            brackets = brackets or word == "("
        if word in "([{" and len(word) == 1:
            depth += 1
        elif word in ")]}" and len(word) == 1:
            depth -= 1
            if depth < 0:
                return None, i
            if depth == 0 and word == "}" and not assigned and _is_function(tokens, first, head_ends):
                following = tokens[i + 1][0] if i + 1 < len(tokens) else ""
                if following not in ("{", ","):  # after `: member{1}` of a constructor comes its body
                    return _made(tokens, first, i, head_ends, body=True), i + 1
        i += 1
    return None, i


def _is_function(tokens: _Tokens, first: int, head_ends: int) -> bool:
    words = [word for word, _, _ in tokens[first:head_ends]]
    start = _after_template(words)
    leading = {"static", "inline", "extern", "typedef", "const", "constexpr"} | _DEVICE
    while start < len(words) and words[start] in leading:
        start += 1
    if start < len(words) and words[start] in _CLASS:
        return "(" in words and words[-1] == ")" and words[start + 1 : start + 2] not in (["alignas"], ["__align__"])
    return "(" in words


def _after_template(words: list[str]) -> int:
    at = 0
    while at < len(words) and words[at] == "template":
        depth, at = 0, at + 1
        while at < len(words):
            depth += (words[at] == "<") - (words[at] == ">")
            at += 1
            if depth == 0:
                break
    return at


def _made(tokens: _Tokens, first: int, last: int, head_ends: int, *, body: bool) -> _Item:
    words = [word for word, _, _ in tokens[first : last + 1]]
    head = words[: head_ends - first]
    function = body or (_is_function(tokens, first, head_ends) and words[0] != "using" and "typedef" not in head)
    item = _Item(tokens[first][1], tokens[last][2], words, head, function, body)
    start = _after_template(words)
    kind = next((w for w in words[start : start + 3] if w in _CLASS), "")
    if function and not (kind and not body):
        item.names = {_function_name(head[start:])}
    elif words[0] == "using":
        item.names = set(_NAME.findall(" ".join(words[1:2])))
    elif "typedef" in head and not kind and "(" not in head:
        item.names = set(_NAME.findall(" ".join(words).partition("[")[0])[-1:])
    elif "typedef" in head or kind == "enum":
        outside = words if kind == "enum" or "{" not in words else head + words[-words[::-1].index("}") :]
        item.names = set(_NAME.findall(" ".join(outside))) - {"typedef", "const", "unsigned", "enum", *_CLASS}
    elif kind:
        item.names = set(_NAME.findall(" ".join(_without_lists(head[start:])))) - _CLASS
    else:
        item.names = set(_NAME.findall(" ".join(head))[-1:])
        item.names |= set(_variables(tokens, first, last))
    return item


def _variables(tokens: _Tokens, first: int, last: int) -> Iterator[str]:
    """The names in front of initialisers, sizes and commas."""
    depth, assigned = 0, False
    for i in range(first + 1, last + 1):
        word = tokens[i][0]
        if depth == 0 and not assigned and word in ("[", ",", "=", ";") and _NAME.match(tokens[i - 1][0]):
            yield tokens[i - 1][0]
        depth += (word in ("(", "[", "{")) - (word in (")", "]", "}"))
        assigned = (depth == 0 and word != "," and (assigned or word == "=")) or (depth > 0 and assigned)


def _function_name(head: list[str]) -> str:
    plain = _without_lists(head)
    opening = plain.index("(") if "(" in plain else len(plain)
    if plain[opening - 1 : opening] == [">"]:  # of an instance, its arguments
        depth, opening = 1, opening - 1
        while depth and opening:
            opening -= 1
            depth += (plain[opening] == ">") - (plain[opening] == "<")
    named = [word for word in plain[:opening] if _NAME.match(word)]
    return "operator" if "operator" in plain[:opening] else named[-1] if named else ""


def _without_lists(words: list[str]) -> list[str]:
    out, i = [], 0
    while i < len(words):
        if words[i] in _LISTS and i + 1 < len(words) and words[i + 1] == "(":
            depth, i = 1, i + 2
            while i < len(words) and depth:
                depth += (words[i] == "(") - (words[i] == ")")
                i += 1
            continue
        out.append(words[i])
        i += 1
    return out


def _blank(text: str) -> str:
    return re.sub(r"[^\n]", " ", text)


def _blank_code(text: str) -> str:
    """Everything but directives, whose conditions must stay in pairs."""
    lines, continued = [], False
    for line in text.split("\n"):
        directive = continued or bool(_DIRECTIVE.match(line))
        continued = directive and line.endswith("\\")
        lines.append(line if directive else _blank(line))
    return "\n".join(lines)
