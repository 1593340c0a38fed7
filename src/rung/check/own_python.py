"""What a Python rung of unknown origin may name besides its kernels, decided from its text by the process that judges.

Its Python runs in one process with Triton's interpreter and with what watches it. So it may only allocate, take views,
choose sizes and launch: what it names beyond torch's operators, Triton's language and a few of Python's modules is
something else that computes, or a way to change what the judge sees.
"""

from __future__ import annotations

import ast
import importlib
from collections.abc import Iterator
from types import ModuleType

import torch


def _words(text: str) -> frozenset[str]:
    return frozenset(text.split())


# Modules of which a rung may use these names: all without an underscore where none is given.
MODULES: dict[str, frozenset[str]] = {
    "__future__": frozenset(),
    "abc": frozenset({"ABC", "abstractmethod"}),
    "collections": frozenset({"OrderedDict", "defaultdict", "deque", "namedtuple", "Counter", "ChainMap", "abc"}),
    "collections.abc": frozenset(),
    "contextlib": frozenset({"contextmanager", "suppress", "nullcontext", "ExitStack", "closing"}),
    "dataclasses": frozenset({"dataclass", "field", "replace", "asdict", "astuple", "fields"}),
    "enum": frozenset({"Enum", "IntEnum", "auto"}),
    "functools": frozenset({"cache", "lru_cache", "partial", "reduce", "wraps"}),
    "itertools": frozenset(),
    "math": frozenset(),
    "pathlib": frozenset({"Path"}),
    "types": frozenset({"SimpleNamespace"}),
    "typing": frozenset(),
    "rung": frozenset({"emulator", "cuda", "rungs", "dtypes", "precision"}),
    "rung.cuda": frozenset({"launch", "limits"}),
    "rung.cuda.launch": frozenset({"Argument", "Build", "LaunchConfig"}),
    "rung.cuda.limits": frozenset({"limits"}),
    "rung.dtypes": frozenset({"dtype"}),
    "rung.emulator": frozenset({"load"}),
    "rung.precision": frozenset({"float32_products"}),
    "rung.rungs": frozenset({"cuda", "python_module"}),
    "rung.rungs.cuda": frozenset({"INCLUDE"}),
    "rung.rungs.python_module": frozenset({"beside"}),
    "torch": _words(
        "Tensor Size Generator device dtype finfo iinfo layout memory_format strided contiguous_format preserve_format "
        "channels_last no_grad inference_mode is_tensor tensor cuda nn version get_default_dtype __version__"
    ),
    "torch.cuda": _words(
        "Stream Event CUDAGraph current_device current_stream device device_count get_device_capability graph "
        "get_device_properties is_available is_current_stream_capturing stream synchronize"
    ),
    "torch.nn": frozenset({"functional", "Parameter"}),
    "torch.nn.functional": frozenset(),
    "triton": _words(
        "Config autotune cdiv heuristics jit language must_use_result next_power_of_2 runtime set_allocator tools "
        "__version__"
    ),
    "triton.language": frozenset(),
    "triton.language.extra": frozenset({"libdevice", "cuda"}),
    "triton.language.math": frozenset(),
    "triton.language.extra.cuda": frozenset(),
    "triton.language.extra.libdevice": frozenset(),
    "triton.runtime": frozenset({"driver"}),
    "triton.runtime.driver": frozenset({"active"}),
    "triton.tools": frozenset({"tensor_descriptor"}),
    "triton.tools.tensor_descriptor": frozenset({"TensorDescriptor"}),
}
# Python's own functions that reach objects by a name in a string, or files.
NAMES = _words(
    "__import__ __builtins__ __loader__ __spec__ breakpoint compile delattr dir eval exec exit getattr globals help "
    "input locals memoryview open quit setattr super vars"
)
# Attributes that lead to modules, to code, to a kernel's inside or to files, whatever has them.
ATTRIBUTES = _words(
    "add_pre_run_hook ast builder builtins code ctypes fn from_address from_buffer gc handle importlib inspect "
    "interpreter io iterdir linecache marshal mmap modules multiprocessing np numpy open operator os pickle "
    "pre_run_hooks read_bytes rewriter rewritten_fn rename signal socket struct subprocess symlink_to sys threading "
    "tokenize traceback types unlink warnings write_bytes write_text"
)
FRAMES = ("f_", "gi_", "co_", "tb_", "cr_", "ag_", "func_")
BASES = frozenset({"ABC", "Enum", "IntEnum", "NamedTuple", "Protocol", "TypedDict", "Generic"})
METHODS = _words("__init__ __post_init__ __call__ __enter__ __exit__ __iter__ __len__ __repr__")
LANGUAGE = dict.fromkeys(["core", "random", "semantic", "standard", "target_info"], ast)  # modules, as ast is one
DUNDER = frozenset({"__doc__", "__file__", "__name__", "__all__", "__version__"})
# Functions that compute outside a kernel, and those that would hide it.
ELSEWHERE = {
    *("numpy", "scipy", "cupy", "jax", "numba", "pandas"),
    *("threading", "concurrent", "multiprocessing", "asyncio", "subprocess", "importlib", "gc"),
}
UNSEEN = {"__import__", "exec", "eval", "fork", "from_address", "from_buffer", "memmove"}
UNSEEN |= {"_disable_current_modes", "_DisableTorchDispatch", "_getframe"}
OPERATORS = frozenset(dir(torch._C._VariableFunctions))  # what torch computes with: seen while it runs


def beyond(source: str) -> str:
    """The first thing that a text names beyond what a rung needs besides its kernels; empty if there is none."""
    return next(_Text(ast.parse(source)).found(), "")


def computes_by_itself(source: str) -> str:
    """What a submission to another project's problem computes with besides its own kernels, as far as its text shows.
    Such files import what that project gives them, and compile CUDA C++ in ways of their own."""
    tree = ast.parse(source)
    names = {n.id for n in ast.walk(tree) if isinstance(n, ast.Name)}
    attributes = {n.attr for n in ast.walk(tree) if isinstance(n, ast.Attribute)}
    imported = {
        (alias.name if isinstance(n, ast.Import) else n.module or "").split(".")[0]
        for n in ast.walk(tree)
        if isinstance(n, ast.Import | ast.ImportFrom)
        for alias in n.names
    }
    other = (imported & ELSEWHERE) | ((names | attributes) & UNSEEN)
    if other:
        return sorted(other)[0]
    if "triton" not in imported and ("numpy" in attributes or "tolist" in attributes or "ctypes" in names):
        return "Python, element by element"
    return ""


class _Text:
    def __init__(self, tree: ast.Module) -> None:
        self.tree = tree
        self.modules: dict[str, str] = {}  # a name that an import gives to a module, and the module's own
        plain = [n for n in tree.body if isinstance(n, ast.FunctionDef) and not n.decorator_list]
        self.functions = {n.name for n in plain}  # may have attributes, such as what they keep between calls

    def found(self) -> Iterator[str]:
        nodes = list(ast.walk(self.tree))
        inner = {id(node.value) for node in nodes if isinstance(node, ast.Attribute)}
        for node in nodes:
            if isinstance(node, ast.Import | ast.ImportFrom):
                yield from self._import(node)
        for node in nodes:
            if isinstance(node, ast.Attribute):
                yield from self._attribute(node, whole=id(node) not in inner)
            elif isinstance(node, ast.Name):
                yield from self._name(node.id)
                if node.id in self.modules and id(node) not in inner:
                    yield f"{node.id}, as a value"
            elif isinstance(node, ast.ClassDef):
                yield from self._class(node)
            elif isinstance(node, ast.Call):
                yield from self._call(node)
            elif isinstance(node, ast.MatchClass):
                yield from (f"the attribute {name}" for name in node.kwd_attrs if _bad(name))
            elif isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef):
                yield from self._name(node.name) if node.name not in METHODS else ()
            elif isinstance(node, ast.arg):
                yield from self._name(node.arg)

    def _import(self, node: ast.Import | ast.ImportFrom) -> Iterator[str]:
        if isinstance(node, ast.Import):
            for alias in node.names:
                yield from self._module(alias.name)
                self.modules[alias.asname or alias.name.partition(".")[0]] = (
                    alias.name if alias.asname else alias.name.partition(".")[0]
                )
            return
        module = node.module or ""
        if node.level:
            yield "an import of its own"
            return
        yield from self._module(module)
        for alias in node.names:
            whole = f"{module}.{alias.name}"
            if whole in MODULES:
                self.modules[alias.asname or alias.name] = whole
            elif not _has(module, alias.name):
                yield whole

    def _module(self, name: str) -> Iterator[str]:
        parts = name.split(".")
        for count in range(1, len(parts) + 1):
            if ".".join(parts[:count]) not in MODULES:
                yield name
                return

    def _attribute(self, node: ast.Attribute, *, whole: bool) -> Iterator[str]:
        chain, root = [node.attr], node.value
        while isinstance(root, ast.Attribute):
            chain.append(root.attr)
            root = root.value
        chain.reverse()
        name = root.id if isinstance(root, ast.Name) else ""
        own = name in ("self", "cls") and not node.attr.startswith("__")
        if not isinstance(node.ctx, ast.Load) and not own and not (name in self.functions and len(chain) == 1):
            yield f"sets the attribute {node.attr}"
        if name in self.modules:
            yield from self._chain(self.modules[name], chain) if whole else ()
        elif _bad(node.attr) and not own:
            yield f"the attribute {node.attr}"

    def _chain(self, module: str, chain: list[str]) -> Iterator[str]:
        for index, part in enumerate(chain):
            if f"{module}.{part}" in MODULES and _has(module, part):
                module = f"{module}.{part}"
                continue
            if not _has(module, part):
                yield f"{module}.{part}"
            yield from (f"the attribute {one}" for one in chain[index + 1 :] if _bad(one))
            return
        yield f"{module}, as a value"

    def _name(self, name: str) -> Iterator[str]:
        if name in NAMES or (name.startswith("__") and name not in DUNDER):
            yield name

    def _class(self, node: ast.ClassDef) -> Iterator[str]:
        plain = all(isinstance(base, ast.Name) and base.id in BASES for base in node.bases)
        if node.keywords or not plain:
            yield f"the class {node.name}, of another's kind"
        yield from self._name(node.name)

    def _call(self, node: ast.Call) -> Iterator[str]:
        called = node.func.id if isinstance(node.func, ast.Name) else ""
        called = node.func.attr if isinstance(node.func, ast.Attribute) else called
        if called == "type" and isinstance(node.func, ast.Name) and len(node.args) + len(node.keywords) != 1:
            yield "a class made by type"
        first = node.args[0] if node.args else None
        here = isinstance(first, ast.Name) and first.id == "__file__"
        if called == "Path" and not here:
            yield "a path other than its own"
        if called == "beside":
            named = [isinstance(one, ast.Constant) and isinstance(one.value, str) for one in node.args[1:]]
            if not here or named != [True] or node.keywords:
                yield "a file whose name it works out"


def _has(module: str, name: str) -> bool:
    """Whether a rung may use this name of a module."""
    if _bad(name) and name not in DUNDER and name not in MODULES.get(module, ()):
        return False
    names = MODULES.get(module, frozenset())
    if module == "torch" and (name in OPERATORS or isinstance(getattr(torch, name, None), torch.dtype)):
        return True
    if names:
        return name in names
    within = LANGUAGE if module == "triton.language" else vars(importlib.import_module(module)) if _here(module) else {}
    return name not in within or not isinstance(within[name], ModuleType)


def _here(module: str) -> bool:
    """Whether a module may be imported where the judge runs, to see what its names are."""
    return not module.startswith("triton")


def _bad(name: str) -> bool:
    """Whether an attribute leads beyond what has it."""
    own = name.startswith("_") and name not in ("__doc__", "__version__")
    return own or name in ATTRIBUTES or name.startswith(FRAMES)


