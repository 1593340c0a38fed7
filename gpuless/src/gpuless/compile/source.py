"""Reads CUDA C++ text without compiling it: signatures of `__global__` functions, comments, the files it includes.

Binding by name needs each parameter's name and type before compilation, also on machines without a compiler.
A full C++ parser is not needed for that: once comments, literals and directives are blanked, a signature is a
bracketed list after the last name in front of a body.
"""

from __future__ import annotations

import functools
import re
from collections.abc import Iterator
from dataclasses import dataclass, replace

from gpuless.base.errors import UserError
from gpuless.base.expressions import evaluate
from gpuless.base.files import shown
from gpuless.launch import Build


@dataclass(frozen=True)
class Parameter:
    """One kernel parameter; `ctype`, without qualifiers, is the pointed-to type when `pointer` is set."""

    ctype: str
    name: str
    pointer: bool
    const: bool
    grid_constant: bool = False


@dataclass(frozen=True)
class _Signature:
    kernel: str
    template: tuple[tuple[str, str], ...]  # (parameter name, default or "")
    parameters: str
    body: bool
    types: frozenset[str] = frozenset()  # those template parameters that are types


_QUALIFIERS = frozenset(
    [
        "const",
        "volatile",
        "__restrict__",
        "__restrict",
        "restrict",
        "__grid_constant__",
        "register",
        "struct",
        "class",
        "enum",
        "union",
        "typename",
    ]
)
_BASIC = frozenset(
    ["void", "bool", "char", "short", "int", "long", "float", "double", "signed", "unsigned", "wchar_t", "auto"]
)
_BLANKED = re.compile(
    r"""
      /\*.*?(?:\*/|\Z)                                       # block comment
    | //(?:\\\n|[^\n])*                                      # line comment, continued by a backslash
    | \bR"(?P<fence>[^()\\\s]{0,16})\(.*?(?:\)(?P=fence)"|\Z)  # raw string
    | "(?:\\.|[^"\\\n])*"                                    # string
    | (?:(?<![0-9A-Za-z_])|\b(?:u8|u|U|L))'(?:\\.|[^'\\\n])+'  # character, but not the ' of 1'000
    """,
    re.DOTALL | re.VERBOSE,
)
_INCLUDE = re.compile(r'^[ \t]*#[ \t]*include[ \t]*(?:"([^"\n]+)"|<([^>\n]+)>)', re.MULTILINE)
# By whatever spelling, of which only the one above is read.
_INCLUDING = re.compile(r"^[ \t]*(?:#|%:|\?\?=)[ \t]*(?:include|import|embed)(?:_next)?\b[^\n]*", re.MULTILINE)
_INCLUDE_WORDS = re.compile(r"include|import|embed")
_DIRECTIVE = re.compile(r"^[ \t]*\#(?:\\\n|[^\n])*", re.MULTILINE)
_TOKEN = re.compile(r"[A-Za-z_]\w*|::|\d[\w.]*|\S")
_DEFINED = re.compile(r"([A-Za-z_]\w*)\s*\(([^{};]*)\)\s*(?:noexcept\s*)?\{")
_MOST_KERNELS, _LONGEST_LIST = 1_000, 10_000  # tokens of a list in brackets
_ALIASING = re.compile(r"\btypedef\b|\busing\b|^[ \t]*#[ \t]*define[ \t]+\w+[ \t]+\w+[ \t]*$", re.MULTILINE)
_TYPEDEF = re.compile(r"\btypedef\s+((?:[\w:]+(?:<[^;<>]*>)?[\s*]+)+)(\w+)\s*;")
_USING = re.compile(r"\busing\s+(\w+)\s*=\s*(?:typename\s+)?([^;{}]+);")
_NAMED_TYPE = re.compile(r"^[ \t]*#[ \t]*define[ \t]+(\w+)[ \t]+([\w ]*\w)[ \t]*$", re.MULTILINE)
_NUMBERS = {"float", "double", "int", "half", "__half", "nv_bfloat16", "__nv_bfloat16", "Real", "int32_t", "int64_t"}
_VALUES = {"size_t", "uint", "uint32_t", "uint64_t", "int32_t", "int64_t", "uint8_t", "short", "dim3"}  # not concepts
_CLASS = re.compile(
    r"\b(?:struct|class|union)\s+(?:(?:alignas|__align__|__builtin_align__)\s*\((?:[^()]|\([^()]*\))*\)\s*)*"
    r"(\w+)\s*[:{]"
)
_CLOSING = {"(": ")", "[": "]", "{": "}", "<": ">"}


@functools.lru_cache(maxsize=512)
def kernel_parameters(source: str, kernel: str, origin: str) -> tuple[Parameter, ...]:
    """The parameters of `kernel` in order; `name<float, 4>` is that instance of the template `name`."""
    name, _, arguments = kernel.partition("<")
    name = name.strip().rpartition("::")[2]
    found = [s for s in _signatures(source) if s.kernel == name]
    if not found:
        present = kernels_in(source)
        defined = f"it defines {', '.join(present)}" if present else "it defines no __global__ function"
        raise UserError(f"{origin} has no kernel named '{name}': {defined}.")
    signature = next((s for s in found if s.body), found[0])
    given = split(arguments.rstrip().removesuffix(">"), *OF_TYPES) if arguments else []
    types = aliases(source) | {
        parameter: given[i] if i < len(given) else default for i, (parameter, default) in enumerate(signature.template)
    }
    texts = split(signature.parameters, *OF_TYPES)
    if texts in ([], ["void"]):
        return ()
    where = f"parameter {{}} of kernel '{name}' in {origin}"
    parameters = (_parameter(text, types, where.format(i + 1)) for i, text in enumerate(texts))
    own = classes_in(source)  # a pointer to such a class may point to any element type
    return tuple(replace(p, ctype="void") if p.pointer and p.ctype.partition("<")[0] in own else p for p in parameters)


def function_parameters(definition: str, source: str, origin: str) -> tuple[str, tuple[Parameter, ...]]:
    """Name and parameters of a function that a text of `source` defines; no name if it defines none."""
    found = _DEFINED.search(definition)
    if not found:
        return "", ()
    where = f"parameter {{}} of '{found[1]}' in {origin}"
    texts = [text for text in split(found[2], *OF_TYPES) if text != "void"]
    types = aliases(source)
    return found[1], tuple(_parameter(text, types, where.format(i + 1)) for i, text in enumerate(texts))


@functools.lru_cache(maxsize=512)
def aliases(source: str) -> dict[str, str]:
    """The names that a text gives to types, by typedef, using or #define, with what they stand for in the end. Of
    conditional ones, those that are compiled with the text's own macros count."""
    if not _ALIASING.search(source):
        return {}
    plain = _drop_disabled(_BLANKED.sub(lambda match: _blank(match.group()), source), set())
    found = {name: meant for meant, name in _TYPEDEF.findall(plain)} | dict(_USING.findall(plain))
    found |= {name: meant for name, meant in _NAMED_TYPE.findall(plain) if meant in _NUMBERS}
    for name in found:
        seen = {name}
        while (meant := found[name].strip()) in found and meant not in seen:
            seen.add(meant)
            found[name] = found[meant]
        words = [word for word in _TOKEN.findall(found[name]) if word == "const" or word not in _QUALIFIERS]
        found[name] = _spelling([word for word in words if word != "const" or "*" in words])
    return found


@functools.lru_cache(maxsize=512)
def classes_in(source: str) -> frozenset[str]:
    """The classes that a text defines, and its names for instances of templates."""
    return frozenset(_CLASS.findall(code_only(source))) | {n for n, m in aliases(source).items() if "<" in m}


@functools.lru_cache(maxsize=512)
def kernels_in(source: str) -> tuple[str, ...]:
    """Names of the `__global__` functions that have a body, in the order of the file."""
    return tuple(dict.fromkeys(s.kernel for s in _signatures(source) if s.body))


def kernels_left(source: str) -> tuple[str, ...]:
    """Those that are left where the text's own macros decide what is compiled."""
    text = _BLANKED.sub(lambda match: _blank(match.group()), source)
    return kernels_in(_drop_disabled(text, {"__CUDACC__", "__NVCC__", "__CUDA_ARCH__", "__cplusplus"}))


def template_of(source: str, kernel: str) -> tuple[tuple[str, str, bool], ...]:
    """The template parameters of a kernel: name, default, and whether it is a type."""
    found = [s for s in _signatures(source) if s.kernel == kernel]
    signature = next((s for s in found if s.body), found[0] if found else None)
    return tuple((name, default, name in signature.types) for name, default in signature.template) if signature else ()


@functools.lru_cache(maxsize=512)
def body_of(source: str, kernel: str) -> str:
    """The text of a kernel's definition; of a kernel that a macro makes, the whole file's."""
    text = code_only(source)
    start = re.search(rf"__global__(?:(?!__global__)[^;{{}}])*\b{kernel}\s*\([^;{{}}]*{{", text)
    return text[start.start() : until(text, start.end(), "}")[1]] if start else text


def until(text: str, start: int, mark: str) -> tuple[str, int]:
    """The text up to a mark outside all brackets, and where it goes on behind that."""
    depth = 0
    for i in range(start, len(text)):
        if depth == 0 and text.startswith(mark, i):
            return text[start:i], i + len(mark)
        depth += (text[i] in "([{") - (text[i] in ")]}")
    return text[start:], len(text)


def included(source: str) -> tuple[str, ...]:
    """The files that a text includes, in quotes or angle brackets. A file that a macro names would not be found here,
    and a change of it not be noticed."""
    found, joined = _INCLUDE.findall(source), re.sub(r"\\[ \t]*\n", "", source)
    if len(_INCLUDE_WORDS.findall(joined)) > len(found):
        text = without_comments(joined)
        for line in _INCLUDING.findall(text):
            if not _INCLUDE.match(line):
                raise UserError(f"{shown(line.strip())}: write #include with the file's name in quotes or brackets.")
    return tuple(quoted or bracketed for quoted, bracketed in found)


def without_comments(source: str) -> str:
    """The text with a space in place of each comment; literals are kept."""
    return _BLANKED.sub(lambda match: " " if match[0].startswith(("/*", "//")) else match[0], source)


def code_only(source: str) -> str:
    """The text with comments, literals, directives and `#if 0` regions blanked; offsets and lines are kept."""
    text = _BLANKED.sub(lambda match: _blank(match.group()), source)
    return _DIRECTIVE.sub(lambda match: _blank(match.group()), _drop_disabled(text))


_WARP_CALL = re.compile(
    r"\b__(?:shfl|any|all|ballot|match|reduce)\w*\s*\(\s*([^,()]*(?:\([^()]*\)[^,()]*)*)"
)
_WHOLE = r"(?:\(*(?:unsigned|uint32_t)?\)?\(?(?:0[xX][fF]{8}|~\s*0|-1|UINT32_MAX)[uUlL]*\)*|__activemask\(\s*\))"


def with_checked_masks(build: Build) -> Build:
    """The same code, in which each lane that calls a warp function is looked for in the mask that it passes; where all
    masks are of the whole warp, the code as it is."""
    code = code_only(build.source)
    named = re.findall(rf"(?:#\s*define\s+|\b)(\w+)\s*[= ]\s*{_WHOLE}\s*(?:;|$)", build.source, re.MULTILINE)
    whole = re.compile(rf"{_WHOLE}?|{'|'.join(map(re.escape, named)) or '(?!)'}")
    if all(whole.fullmatch(mask.strip()) for mask in _WARP_CALL.findall(code)):
        return build
    return replace(build, source=f'#include "masks.h"\n#line 1 "{build.origin}"\n{build.source}')


def _blank(text: str) -> str:
    return re.sub(r"[^\n]", " ", text)


def _drop_disabled(text: str, defined: set[str] | None = None) -> str:
    """Blanks what a literal `#if 0` (or the `#else` of `#if 1`) hides; other conditions keep both sides. With a set of
    macros, which the text's own are added to, other conditions on what is defined are decided too."""
    out: list[str] = []
    hidden: list[bool] = []  # for each open #if, whether its present part is hidden
    taken: list[bool] = []  # and whether its later parts are
    for line in text.splitlines(keepends=True):
        directive = re.match(r"\s*#\s*(\w+)\s*(.*)", line)
        word, rest = (directive.group(1), directive.group(2).strip()) if directive else ("", "")
        if word in ("if", "ifdef", "ifndef"):
            holds = _holds(word, rest, defined)
            hidden.append(holds is False)
            taken.append(holds is True)
        elif word in ("else", "elif") and hidden:
            holds = True if word == "else" else _holds("if", rest, defined)
            hidden[-1] = taken[-1] or holds is False
            taken[-1] = taken[-1] or holds is True
        elif word == "endif" and hidden:
            hidden.pop()
            taken.pop()
        elif word == "define" and defined is not None and True not in hidden:
            defined.update(re.findall(r"\w+", rest)[:1])
        blank = True in hidden and (not word or (defined is not None and word == "define"))
        out.append(_blank(line) if blank else line)
    return "".join(out)


def _holds(word: str, condition: str, defined: set[str] | None) -> bool | None:
    """Whether an #if holds; None if that is not known."""
    if word == "if" and condition in ("0", "false", "1", "true"):
        return condition in ("1", "true")
    if defined is None:
        return None
    if word in ("ifdef", "ifndef"):
        return (condition.split()[:1] != [] and condition.split()[0] in defined) == (word == "ifdef")
    plain = re.sub(r"defined\s*\(?\s*(\w+)\s*\)?", lambda m: str(int(m[1] in defined)), condition)
    if not re.fullmatch(r"[01!&|() \t]+", plain):
        return None
    plain = plain.replace("&&", " and ").replace("||", " or ").replace("!", " not ")
    try:
        return bool(evaluate(plain.strip(), {}))
    except UserError:
        return None


def _signatures(source: str) -> Iterator[_Signature]:
    text = code_only(source)
    tokens = list(_TOKEN.finditer(text))
    marks = [i for i, token in enumerate(tokens) if token.group() == "__global__"]
    if len(marks) > _MOST_KERNELS:
        raise UserError(f"a source with {len(marks):,} times __global__ is not read; keep {_MOST_KERNELS:,} in a file.")
    for mark in marks:
        i = mark + 1
        while i < len(tokens):
            token = tokens[i].group()
            if token in ("{", ";", "}", "__global__"):
                break
            opening = i + 1
            if not re.match(r"[A-Za-z_]", token) or opening >= len(tokens):
                i += 1
                continue
            if tokens[opening].group() == "<":  # a specialisation: name<float>(...)
                opening = _matching(tokens, opening) + 1
            if opening >= len(tokens) or tokens[opening].group() != "(":
                i += 1
                continue
            closing = _matching(tokens, opening)
            after = tokens[closing + 1].group() if closing + 1 < len(tokens) else ""
            if after in ("{", ";"):
                inside = text[tokens[opening].end() : tokens[closing].start()] if closing < len(tokens) else ""
                template, types = _template(text[: tokens[mark].start()])
                yield _Signature(token, template, inside, after == "{", types)
                break
            i = closing + 1  # an attribute or macro with arguments, such as __launch_bounds__(BLOCK, 2)


def _matching(tokens: list[re.Match[str]], opening: int) -> int:
    """Index of the token that closes the bracket at `opening`, or the number of tokens."""
    left, right = tokens[opening].group(), _CLOSING[tokens[opening].group()]
    depth = 0
    for i in range(opening, min(len(tokens), opening + _LONGEST_LIST)):
        token = tokens[i].group()
        depth += (token == left) - (token == right)
        if depth == 0:
            return i
        if left == "<" and token in ("{", ";"):
            break
    return len(tokens)


def _template(before: str) -> tuple[tuple[tuple[str, str], ...], frozenset[str]]:
    """Names and defaults of the template parameters declared right in front of a kernel."""
    start = max(before.rfind(";"), before.rfind("}"), before.rfind("{")) + 1
    found = re.search(r"\btemplate\s*<(.*)>", before[start:], re.DOTALL)
    if not found:
        return (), frozenset()
    names, types = [], set()
    for text in split(found.group(1), *OF_TYPES):
        declared, _, default = text.partition("=")
        words = re.findall(r"[A-Za-z_]\w*", declared)
        names.append((words[-1] if words else "", default.strip()))
        if words[:1] in (["typename"], ["class"]) or (len(words) == 2 and words[0] not in {*_BASIC, *_VALUES}):
            types.add(words[-1])
    return tuple(names), frozenset(types)


OF_TYPES = ("([{<", ")]}>")  # brackets in a declaration, where < is no comparison


def split(text: str, opening: str = "([{", closing: str = ")]}") -> list[str]:
    """Splits at the commas outside all brackets."""
    parts, depth, start = [], 0, 0
    for i, character in enumerate(text):
        depth += (character in opening) - (character in closing)
        if character == "," and depth == 0:
            parts.append(text[start:i].strip())
            start = i + 1
    return [*parts, text[start:].strip()] if text.strip() else []


def _parameter(text: str, types: dict[str, str], where: str) -> Parameter:
    depth = 0
    for i, character in enumerate(text):  # a default argument is not part of the type
        depth += (character in "([{<") - (character in ")]}>")
        if character == "=" and depth == 0:
            text = text[:i]
            break
    text = re.sub(r"\[\[.*?\]\]|\b(?:__align__|alignas|__attribute__)\s*\((?:[^()]|\([^()]*\))*\)", " ", text)
    array = len(re.findall(r"\[[^\]]*\]", text))
    text = re.sub(r"\[[^\]]*\]", " ", text)
    text = re.sub(r"\w+", lambda found: meant if "*" in (meant := types.get(found[0], "")) else found[0], text, count=2)
    head, star, tail = text.partition("*")
    pointers = text.count("*") + array
    words = [w.group() for w in _TOKEN.finditer(head)]
    const = "const" in words
    parts = [w for w in words if w not in _QUALIFIERS]
    names = [w for w in re.findall(r"[A-Za-z_]\w*", tail) if w not in _QUALIFIERS] if star else parts[1:]
    if not names or names[-1] in _BASIC or not re.match(r"[A-Za-z_]", names[-1]) or (not star and parts[-2] == "::"):
        raise UserError(f"{where} has no name ('{' '.join(text.split())}'), and parameters are bound by name.")
    if not star:
        parts = parts[:-1]
    ctype = _spelling([types.get(w, w) or w for w in parts])
    return Parameter(ctype + "*" * max(0, pointers - 1), names[-1], pointers > 0, const, "__grid_constant__" in words)


def _spelling(words: list[str]) -> str:
    """One spelling for each integer type ("long unsigned int" is "unsigned long"); other types as written."""
    if words and all(w in _BASIC for w in words) and len({"int", "signed", "unsigned", "short", "long"} & set(words)):
        sign = "unsigned " if "unsigned" in words else "signed " if "signed" in words and "char" in words else ""
        core = [w for w in words if w not in ("signed", "unsigned")]
        if "short" in core or "long" in core:
            core = [w for w in core if w != "int"]
        return sign + " ".join(core or ["int"])
    out = ""
    for word in words:
        glued = not out or word in ("::", "<", ">", ",", "&") or out.endswith(("::", "<"))
        out += word if glued else f" {word}"
    return out.replace(",", ", ").replace(",  ", ", ")


@dataclass(frozen=True, order=True)
class Unreached:
    """What no launch has done at a place of a source."""

    file: str
    line: int
    text: str
    never: str
