"""Turns a preprocessed CUDA file into C++ for g++, which compiles the host's part: launches become calls, a kernel
hands on the addresses of its parameters, functions of the device alone have no bodies. Lines keep their numbers.
"""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path

from gpuless.program import lambdas

_MARKER = re.compile(r'^# \d+ "([^"]*)"([ \d]*)$', re.MULTILINE)
_TOKEN = re.compile(
    r"(?P<space>\s+|^\#[^\n]*$)"
    r'|(?P<raw>(?:u8|[uUL])?R"(?P<tag>[^(\s]*)\(.*?\)(?P=tag)")'
    r'|(?P<text>(?:u8|[uUL])?(?:"(?:\\.|[^"\\\n])*"|\'(?:\\.|[^\'\\\n])*\'))'
    r"|(?P<number>\.?\d(?:[eEpP][+-]|'[\w]|[\w.])*)"
    r"|(?P<name>[A-Za-z_$]\w*)"
    r"|(?P<mark>::|->|.)",
    re.DOTALL | re.MULTILINE,
)
_KEYWORD = re.compile(r"\b__rung_(?:global|device|on_host|shared)__")
_OPEN, _CLOSE = "([{", ")]}"
_NO_TYPES = ("return", "else", "do", "case", "goto", "new", "throw", "operator")
_NO_PARAMETERS = ("__attribute__", "alignas", "decltype", "noexcept")  # have brackets as well
ENTRY = "rung_host"
_HEADERS = Path(__file__).parent / "host/include/rung_host"
_DECLARED = "".join((_HEADERS / name).read_text(encoding="utf-8") for name in ("api.h", "launching.h"))
_CALLS = set(re.findall(r"\bcudaError_t (cuda\w+)\(", _DECLARED)) - {"cudaGetLastError", "cudaPeekAtLastError"}


@dataclass
class Token:
    kind: str
    text: str

    @property
    def blank(self) -> bool:
        return self.kind == "space"


@dataclass
class Kernel:
    """A `__global__` function as declared: its template parameters, and the numbers of parameters of its overloads."""

    name: str  # with its namespaces
    parameters: int | None = None  # of the template; None: not one
    defaults: int = 0
    pack: bool = False
    arities: set[int] = field(default_factory=set)
    bodies: int = 0
    cluster: str = "0, 0, 0"


class NotUnderstood(Exception):
    """A launch of another form."""


def rewritten(text: str) -> tuple[str, list[lambdas.Lambda]]:
    """The file, as g++ takes it, and the lambdas that kernels take; kernels are registered at its end."""
    segments = [(_KEYWORD.sub("", part), []) if system else ("", _tokens(part)) for part, system in _segments(text)]
    own = [token for _, tokens in segments for token in tokens]
    kernels = _kernels(own)
    on_host = "/thrust/" in text or "rung_host/cub_device.h" in text  # runs the device's functions on the CPU
    for _, tokens in segments:
        _addresses(tokens, kernels)
        _stubs(tokens)  # with the lambdas of kernels
    found = _without_lambdas(own)
    out = []
    for system, tokens in segments:
        _device_functions(tokens, on_host)
        _mark_ignored_calls(tokens)
        tokens = _launches(tokens, kernels)
        _keywords(tokens)
        out += [system, *(token.text for token in tokens)]
    return "".join(out) + _registrations(kernels), found


def _segments(text: str) -> list[tuple[str, bool]]:
    """The text in pieces, each the user's or a system header's."""
    found: list[tuple[str, bool]] = []
    start, system = 0, False
    for mark in _MARKER.finditer(text):
        flags = mark[2].split()
        now = "3" in flags
        if now != system and ("1" in flags or "2" in flags):  # a file begins or goes on; else a system header's macro
            found.append((text[start : mark.start()], system))
            start, system = mark.start(), now
    found.append((text[start:], system))
    return found


def _tokens(text: str) -> list[Token]:
    return [Token(m.lastgroup if m.lastgroup != "tag" else "raw", m.group()) for m in _TOKEN.finditer(text)]  # type: ignore[arg-type]


# ---- which kernels there are -----------------------------------------------------------------------------------------


def _kernels(tokens: list[Token]) -> dict[str, Kernel]:
    """Kernels by their plain name."""
    solid = [t for t in tokens if not t.blank]
    found: dict[str, Kernel] = {}
    scopes: list[str | None] = []  # the name of each open namespace; None: another brace
    at = 0
    while at < len(solid):
        text = solid[at].text
        if text == "{":
            scopes.append(None)
        elif text == "}" and scopes:
            scopes.pop()
        elif text == "namespace":
            end = at + 1
            while end < len(solid) and solid[end].text not in "{;=":
                end += 1
            if end < len(solid) and solid[end].text == "{":
                names = [t.text for t in solid[at + 1 : end] if t.kind == "name" and t.text != "inline"]
                scopes.append("::".join(names))
                at = end
        elif text == "__rung_global__":
            _note(solid, at, [s for s in scopes if s], all(s is not None for s in scopes), found)
        at += 1
    for at, token in enumerate(solid[1:-1], 1):  # functions of the host with a kernel's name
        if token.text in found and solid[at + 1].text == "(":
            kind, before = solid[at - 1].kind, solid[at - 1].text
            if (kind == "name" and before not in _NO_TYPES) or before in ("*", "&"):
                words = [t.text for t in solid[_start(solid, at) : at]]
                if "__rung_global__" not in words and not {"(", "=", "return", "<"} & {*words}:
                    found[token.text].arities.add(-3)
    return found


def _note(solid: list[Token], at: int, names: list[str], at_namespace: bool, found: dict[str, Kernel]) -> None:
    start = at
    while start > 0 and solid[start - 1].text not in (";", "}", "{"):
        start -= 1
    end, cluster = at, "0, 0, 0"
    while end + 1 < len(solid):
        if solid[end].text in ("__rung_cluster__", "__attribute__", "alignas") and solid[end + 1].text == "(":
            close = _matching(solid, end + 1)
            if solid[end].text == "__rung_cluster__":
                cluster = ", ".join(
                    (["".join(t.text for t in part) for part in _parts(solid[end + 2 : close])] + ["1", "1"])[:3]
                )
            end = close + 1
            continue
        if solid[end].kind == "name" and solid[end + 1].text == "(":
            break
        end += 1
    if end + 1 >= len(solid):
        return
    plain = solid[end].text
    close = _matching(solid, end + 1)
    arguments = _parts(solid[end + 2 : close])
    arity = 0 if not arguments or [t.text for t in arguments[0]] == ["void"] else len(arguments)
    head = solid[start:at]
    kernel = found.setdefault(plain, Kernel("::".join(["", *names, plain])))
    kernel.arities.add(arity)
    if not (head and head[0].text == "template") and close + 1 < len(solid) and solid[close + 1].text == "{":
        kernel.bodies += 1
        if kernel.bodies > 1:
            kernel.arities.add(-4)  # overloads with as many parameters
    if any(token.text == "=" for part in arguments for token in part):
        kernel.arities.add(-2)  # some arguments may be left out
    kernel.cluster = cluster if cluster != "0, 0, 0" else kernel.cluster
    if not at_namespace:
        kernel.arities.add(-1)  # registered by no one: a friend, or a member
    if head and head[0].text == "template":
        listed = _parts(_angles(head, 1))
        if listed:
            kernel.parameters = len(listed)
            kernel.defaults = max(kernel.defaults, sum(any(t.text == "=" for t in part) for part in listed))
            kernel.pack |= any(t.text == "." for part in listed for t in part)
        else:
            kernel.arities.add(-1)  # a specialisation
            kernel.parameters = kernel.parameters or 1


def _matching(tokens: list[Token], at: int) -> int:
    """The bracket that closes the one at `at`."""
    depth = 0
    for i in range(at, len(tokens)):
        depth += (tokens[i].text in _OPEN) - (tokens[i].text in _CLOSE) if len(tokens[i].text) == 1 else 0
        if depth == 0:
            return i
    raise NotUnderstood("a bracket is not closed")


def _angles(tokens: list[Token], at: int) -> list[Token]:
    """What stands between `<` at `at` and its `>`."""
    depth, i = 0, at
    while i < len(tokens):
        text = tokens[i].text
        if text in _OPEN:
            i = _matching(tokens, i)
        elif text == "<":
            depth += 1
        elif text == ">":
            depth -= 1
            if depth == 0:
                return tokens[at + 1 : i]
        i += 1
    return []


def _parts(tokens: list[Token]) -> list[list[Token]]:
    """Pieces between commas, outside of brackets and template arguments."""
    parts: list[list[Token]] = [[]]
    depth = 0
    for i, token in enumerate(tokens):
        text = token.text
        if len(text) == 1:
            before = next((t for t in reversed(tokens[:i]) if not t.blank), None)
            opens = text in _OPEN or (text == "<" and before is not None and before.kind == "name")
            closes = text in _CLOSE or (text == ">" and depth > 0 and (before is None or before.text != "-"))
            depth += opens - closes
        if text == "," and depth == 0:
            parts.append([])
        else:
            parts[-1].append(token)
    return [part for part in parts if any(not t.blank for t in part)] if tokens else []


def _registrations(kernels: dict[str, Kernel]) -> str:
    calls = [
        f'static const bool rung_known_{i} = (rung_host_known({k.name}, "{k.name[2:]}", dim3({k.cluster})), true);'
        for i, k in enumerate(kernels.values())
        if k.parameters is None and len(k.arities) == 1 and -1 not in k.arities
    ]
    return '\n# 1 "kernels"\n' + "\n".join(calls) + "\n"


# ---- what is rewritten -----------------------------------------------------------------------------------------------


def _stubs(tokens: list[Token]) -> None:
    """Kernels hand the addresses of their parameters to the launch (host/kernels.cpp, gpu_runtime.cpp)."""
    for i, token in enumerate(tokens):
        if token.text != "__rung_global__":
            continue
        token.text = "__attribute__((noipa))"
        at = _next(tokens, i)
        while tokens[at].text not in (";", "{"):
            following = _next(tokens, at)
            if tokens[following].text == "(" and tokens[at].text in ("__attribute__", "alignas", "__rung_cluster__"):
                following = _next(tokens, _matching(tokens, following))
            elif tokens[at].kind == "name" and tokens[following].text == "(":
                break
            at = following
        if tokens[at].text in (";", "{"):
            continue
        opening = _next(tokens, at)
        closing = _matching(tokens, opening)
        parts = _parts(tokens[opening + 1 : closing])
        names = [_parameter_name(part, n) for n, part in enumerate(parts)]
        pointers = {name for name, part in zip(names, parts, strict=True) if any(t.text == "&" for t in part)}
        body = _next(tokens, closing)
        if tokens[body].text != "{":
            continue
        end = _matching(tokens, body)
        _clear(tokens, body, end)
        given = "".join(f"(void*)&{'rung_at_' * (name in pointers)}{name}, " for name in names if name) + "nullptr"
        held = "".join(f"void* rung_at_{name} = (void*)&{name}; " for name in pointers)  # a reference is a pointer
        tokens[body].text += f'{{ {held}void* rung_given[] = {{{given}}}; rung_stub(rung_given); asm volatile(""); }}'


def _parameter_name(part: list[Token], number: int) -> str:
    """The name of a parameter, given here if it has none."""
    solid = [t for t in part if not t.blank]
    if [t.text for t in solid] == ["void"]:
        return ""
    ends = next((n for n, t in enumerate(solid) if t.text in ("=", "[")), len(solid))
    pointer = next((n for n, t in enumerate(solid) if t.text == "(" and solid[n + 1].text == "*"), None)
    last = solid[pointer + 2 if pointer is not None else ends - 1]
    if last.kind != "name" or ends == 1 or last.text in ("int", "float", "unsigned", "double", "char"):
        last.text += f" rung_p{number}"
        return f"rung_p{number}"
    return last.text + ("..." if any(t.text == "." for t in solid) else "")


def _device_functions(tokens: list[Token], kept: bool) -> None:
    """Bodies of functions that the host cannot call go, unless algorithms that run on the CPU may call them. NVRTC
    reads them: g++ need not know what they use."""
    for i, token in enumerate(tokens):
        if token.text != "__rung_device__":
            continue
        start = _start(tokens, i)
        head: list[str] = []
        at, parameters = start, False
        while at < len(tokens) and tokens[at].text not in ("{", ";", "}"):
            word = tokens[at].text
            if word == "(" or (word == "[" and not parameters):
                parameters |= word == "(" and (not head or head[-1] not in _NO_PARAMETERS)
                at = _matching(tokens, at)
            elif word == ":" or (word == "=" and head[-1:] != ["operator"]):  # a constructor's members, or a variable
                break
            elif not tokens[at].blank:
                head.append(word)
            at += 1
        if at >= len(tokens) or tokens[at].text != "{" or not parameters:
            continue
        end = _matching(tokens, at)
        words = set(head)
        needs_body = words & {"__rung_on_host__", "constexpr", "consteval"} or ("auto" in words and "->" not in words)
        if kept or needs_body:
            _without_asm(tokens, at, end)
        else:
            _clear(tokens, at, end)
            tokens[at].text += "{ __builtin_trap(); }"


def _mark_ignored_calls(tokens: list[Token]) -> None:
    """A call whose statement makes no use of its result is told of an error."""
    for i, token in enumerate(tokens[:-1]):
        if token.text not in _CALLS or tokens[_next(tokens, i)].text != "(":
            continue
        before = _previous(tokens, i)
        word = tokens[before].text
        if word == ")":  # of a condition; not of a cast
            word = tokens[_previous(tokens, _opening(tokens, before))].text
        if word not in (";", "{", "}", "else", "do", "if", "while", "for"):
            continue
        end = _matching(tokens, _next(tokens, i))
        if tokens[_next(tokens, end)].text == ";":
            token.text = f'{ENTRY}::ignored("{token.text}") = {token.text}'


def _start(tokens: list[Token], at: int) -> int:
    """Where the declaration begins that this word belongs to."""
    while at > 0 and tokens[at - 1].text not in (";", "{", "}") and not tokens[at - 1].text.startswith("#"):
        at -= 1
    return at


def _without_asm(tokens: list[Token], first: int, last: int) -> None:
    for i in range(first, last):
        if tokens[i].text in ("asm", "__asm", "__asm__"):
            at = i
            while tokens[at].text != "(":
                at = _next(tokens, at)
            _clear(tokens, i, _matching(tokens, at))
            tokens[i].text += "__builtin_trap()"


def _without_lambdas(tokens: list[Token]) -> list[lambdas.Lambda]:
    """Puts an object of a struct in the place of each lambda whose code runs on the device."""
    if not any(token.text == "__rung_device__" for token in tokens):
        return []
    found: list[lambdas.Lambda] = []
    counts: dict[tuple[str, int], int] = {}
    global_names = _global_names(tokens)
    starts = _starts(tokens)
    file, line = "", 1
    for i, token in enumerate(tokens):
        if token.text.startswith("# ") and (mark := re.match(r'# (\d+) "([^"]*)"', token.text)):
            file, line = Path(mark[2]).name, int(mark[1]) - 1
        line += token.text.count("\n")
        before = tokens[_previous(tokens, i)]
        if token.text != "[" or (before.kind == "name" and before.text != "return") or before.text in (")", "]", "["):
            continue
        close = _matching(tokens, i)
        at, marks = _next(tokens, close), set()
        while tokens[at].text in ("__rung_device__", "__rung_on_host__"):
            marks.add(tokens[at].text)
            at = _next(tokens, at)
        if "__rung_device__" not in marks or tokens[at].text not in ("(", "{"):
            continue
        counts[file, line] = number = counts.get((file, line), -1) + 1
        parameters: list[Token] = []
        if tokens[at].text == "(":
            end = _matching(tokens, at)
            parameters = tokens[at + 1 : end]
            at = end + 1
        opening = at
        while tokens[opening].text != "{":
            opening += 1
        end = _matching(tokens, opening)
        start = starts[i]
        words = [t.text for t in tokens[start:i] if not t.blank]
        inside = [t.text for t in tokens[opening : end + 1] if not t.blank]
        listed = [[t.text for t in part if not t.blank] for part in _parts(tokens[i + 1 : close])]
        named = [_last_name(part) for part in _parts(parameters)]
        of_templates = {one.split()[-1]: one for one in _template_parameters(tokens[start:i])}
        captures = lambdas.captured(inside, words, listed, named, global_names | of_templates.keys())
        if captures is None:
            continue
        uses = set(inside) | {t.text for t in parameters}
        templates = tuple(one for name, one in of_templates.items() if name in uses)
        of = lambdas.Lambda(lambdas.Place(file, line, number), tuple(name for name, _ in captures), templates)
        found.append(of)
        _without_asm(tokens, opening, end)
        struct = of.struct(_flat(parameters), _flat(tokens[at:opening]), _flat(tokens[opening : end + 1]))
        first = next(j for j in range(start, len(tokens)) if not tokens[j].blank)
        _clear(tokens, i, end)
        tokens[i].text += of.made([value for _, value in captures])
        tokens[first].text = struct + tokens[first].text
    return found


def _last_name(parameter: list[Token]) -> str:
    solid = [t.text for t in parameter if not t.blank]
    return solid[next((n for n, word in enumerate(solid) if word in ("=", "[")), len(solid)) - 1]


def _flat(tokens: Sequence[Token]) -> str:
    """In a line."""
    return "".join(" " if t.blank else t.text for t in tokens)


def _starts(tokens: list[Token]) -> list[int]:
    """For each token where the declaration at namespace level begins that has it."""
    starts: list[int] = []
    scopes: list[bool] = []
    start, named = 0, False
    for i, token in enumerate(tokens):
        text = token.text
        if all(scopes) and text in ("namespace", "extern"):
            named = True
        elif all(scopes) and text in (";", "=", "("):
            named = False
        if text == "{":
            if named:
                start = i + 1
            scopes.append(named)
            named = False
        starts.append(start)
        if text == "}" and scopes:
            scopes.pop()
        if text in ("}", ";") and all(scopes):
            start = i + 1
    return starts


def _global_names(tokens: list[Token]) -> set[str]:
    depths, named, found = [], False, set()
    solid = [t for t in tokens if not t.blank]
    for i, token in enumerate(solid[:-1]):
        if token.text == "namespace":
            named = True
        if token.text in "{(":
            depths.append(named and token.text == "{")
            named = False
        elif token.text in "})" and depths:
            depths.pop()
        elif token.kind == "name" and all(depths) and solid[i + 1].text in ("=", ";", "[", "{"):
            found.add(token.text)
    return found


def _template_parameters(tokens: list[Token]) -> list[str]:
    solid = [t for t in tokens if not t.blank]
    found = []
    for i, token in enumerate(solid[:-1]):
        if token.text == "template" and solid[i + 1].text == "<":
            for part in _parts(_angles(solid, i + 1)):
                words = [t.text for t in part]
                words = words[: words.index("=")] if "=" in words else words
                if len(words) > 1:
                    found.append(" ".join(words))
    return found


def _keywords(tokens: list[Token]) -> None:
    for i, token in enumerate(tokens):
        if token.text in ("__rung_global__", "__rung_device__", "__rung_on_host__"):
            token.text = ""
        elif token.text == "__rung_cluster__":
            _clear(tokens, i, _matching(tokens, _next(tokens, i)))
        elif token.text == "__noinline__" and tokens[_previous(tokens, i)].text != "(":
            token.text = "__attribute__((noinline))"
        elif token.text == "__rung_shared__":
            token.text = ""
            after = _next(tokens, i)
            if tokens[after].text == "alignas":  # accepted by CUDA behind a storage class
                close = _matching(tokens, _next(tokens, after))
                tokens[after].text = "__attribute__((aligned"
                tokens[close].text = ")))"


def _clear(tokens: list[Token], first: int, last: int) -> None:
    for token in tokens[first : last + 1]:
        token.text = "\n" * token.text.count("\n") if not token.text.startswith("#") else token.text


def _next(tokens: list[Token], at: int) -> int:
    at += 1
    while at < len(tokens) and tokens[at].blank:
        at += 1
    return min(at, len(tokens) - 1)


def _previous(tokens: list[Token], at: int) -> int:
    at -= 1
    while at > 0 and tokens[at].blank:
        at -= 1
    return max(at, 0)


def _addresses(tokens: list[Token], kernels: dict[str, Kernel]) -> None:
    """`(void*)kernel<T>` registers the kernel, of which the address says nothing."""
    for i, token in enumerate(tokens):
        if token.text != "(" or tokens[_next(tokens, i)].text not in ("void", "const"):
            continue
        at = _next(tokens, i)
        words = []
        while tokens[at].text in ("const", "void", "*"):
            words.append(tokens[at].text)
            at = _next(tokens, at)
        if tokens[at].text != ")" or words.count("*") != 1:
            continue
        start = at = _next(tokens, at)
        if tokens[at].text == "&":
            start = at = _next(tokens, at)
        while tokens[_next(tokens, at)].text == "::":
            at = _next(tokens, _next(tokens, at))
        kernel = kernels.get(tokens[at].text)
        if kernel is None or kernel.parameters is None:
            continue
        after = _next(tokens, at)
        if tokens[after].text == "<" and tokens[_next(tokens, after)].text != "<":
            end = _close_angle(tokens, after)
            before = _previous(tokens, start)
            tokens[before].text = "" if tokens[before].text == "&" else tokens[before].text
            tokens[start].text = f"{ENTRY}::address({tokens[start].text}"
            tokens[end].text += ")"


def _close_angle(tokens: list[Token], at: int) -> int:
    depth, i = 0, at
    while i < len(tokens):
        text = tokens[i].text
        if text in _OPEN and len(text) == 1:
            i = _matching(tokens, i)
        elif text == "<":
            depth += 1
        elif text == ">":
            depth -= 1
            if depth == 0:
                return i
        elif text in (";", "{"):
            break
        i += 1
    raise NotUnderstood("template arguments are not closed")


def _launches(tokens: list[Token], kernels: dict[str, Kernel]) -> list[Token]:
    at = 0
    while at < len(tokens):
        if not _three(tokens, at, "<"):
            at += 1
            continue
        third = _third(tokens, at)
        close = _close_launch(tokens, third + 1)
        last = _third(tokens, close)
        first = _start_of_kernel(tokens, at)
        callee = "".join(" " if t.blank else t.text for t in tokens[first:at]).strip()
        inside = "".join(t.text for t in tokens[third + 1 : close] if not t.text.startswith("#"))
        name = " ".join(callee.split())
        configuration = f"{ENTRY}::Configuration({inside.strip()})"
        if _deduced(callee, kernels):
            parenthesis = _next(tokens, last)
            end = _matching(tokens, parenthesis)
            arguments = _parts(tokens[parenthesis + 1 : end])
            for part in arguments:
                solid = [t for t in part if not t.blank]
                if len(solid) == 1 and solid[0].text in ("0", "__null"):
                    solid[0].text = f"{ENTRY}::Zero{{}}"
            run = f"[=](auto... rung_a) {{ {callee}(rung_a...); }}"
            made = f"{ENTRY}::deduced({_quote(name)}, {run}, {configuration})"
        else:
            made = f"{ENTRY}::bound({_quote(name)}, {callee}, {configuration})"
        lines = sum(t.text.count("\n") for t in tokens[first : last + 1] if not t.text.startswith("#"))
        lines -= made.count("\n")
        tokens[first : last + 1] = [Token("mark", made + "\n" * max(0, lines))]
        at = first + 1
    return tokens


def _quote(text: str) -> str:
    return '"' + text.replace("\\", "\\\\").replace('"', '\\"') + '"'


def _three(tokens: list[Token], at: int, mark: str) -> bool:
    """`<<<`, or `<< <` as a formatter that does not know CUDA leaves it."""
    if tokens[at].text != mark or at + 2 >= len(tokens) or tokens[at + 1].text != mark:
        return False
    return tokens[_third(tokens, at)].text == mark


def _third(tokens: list[Token], at: int) -> int:
    return _next(tokens, at + 1)


def _close_launch(tokens: list[Token], at: int) -> int:
    while at < len(tokens):
        text = tokens[at].text
        if len(text) == 1 and text in _OPEN:
            at = _matching(tokens, at)
        elif _three(tokens, at, ">") and tokens[_next(tokens, _third(tokens, at))].text == "(":
            return at
        elif text == ";":
            break
        at += 1
    raise NotUnderstood("a launch has no '>>>' followed by arguments")


def _start_of_kernel(tokens: list[Token], at: int) -> int:
    """Where the expression before `<<<` begins: a name with scopes, members, indices and template arguments."""
    i = _previous(tokens, at)
    while True:
        text = tokens[i].text
        if text == ">":
            depth = 0
            while i > 0:
                depth += (tokens[i].text == ">") - (tokens[i].text == "<")
                if tokens[i].text == ")":
                    i = _opening(tokens, i)
                if depth == 0:
                    break
                i -= 1
            i = _previous(tokens, i)
            continue
        if text in (")", "]"):
            i = _opening(tokens, i)
            before = _previous(tokens, i)
            word = tokens[before].text
            if word in (")", "]") or (tokens[before].kind == "name" and word not in ("return", "else", "do")):
                i = before
                continue
            return i
        if tokens[i].kind != "name":
            raise NotUnderstood(f"a launch of '{text}'")
        before = _previous(tokens, i)
        if before < i and tokens[before].text in ("::", ".", "->"):
            earlier = _previous(tokens, before)
            if tokens[before].text == "::" and (tokens[earlier].kind != "name" and tokens[earlier].text != ">"):
                return before
            if tokens[earlier].text in ("return", "else", "do"):
                return before
            i = earlier
            continue
        if before < i and tokens[before].text == "template":
            i = before
        return i


def _opening(tokens: list[Token], at: int) -> int:
    depth = 0
    while at >= 0:
        text = tokens[at].text
        if len(text) == 1:
            depth += (text in _CLOSE) - (text in _OPEN)
        if depth == 0:
            return at
        at -= 1
    raise NotUnderstood("a bracket is not opened")


def _deduced(callee: str, kernels: dict[str, Kernel]) -> bool:
    """Whether template arguments, or the choice of an overload, follow from the call's arguments."""
    match = re.match(r"(?:::)?\s*(?:\w+\s*::\s*)*(\w+)\s*(<.*>)?$", callee, re.DOTALL)
    kernel = kernels.get(match[1]) if match else None
    if match is None or kernel is None:
        return False
    if kernel.parameters is None:
        return len(kernel.arities - {-1}) > 1
    if match[2] is None:
        return True
    given = len(_parts(_tokens(match[2].strip()[1:-1])))
    return kernel.pack or given < kernel.parameters - kernel.defaults
