"""`rung check --against reference.py candidate`: any operation, from a reference as people write it.

The reference is a module with `Model` and `get_inputs` (KernelBench), a function `reference` and `get_inputs`, or
GPU MODE's pair `generate_input` and `ref_kernel`. Its module-level sizes are made smaller and odd, so that shapes
differ and a CPU can run them. The candidate has `ModelNew`, a function of the reference's name, or `custom_kernel`;
of one that compiles CUDA inline, and of a `.cu` file, the kernels are judged.
"""

from __future__ import annotations

import ast
import functools
import importlib.util
import itertools
import json
import tempfile
from collections.abc import Callable, Iterator, Mapping, Sequence
from pathlib import Path
from types import ModuleType
from typing import Any

import torch

from gpuless.base.files import read_text
from rung.check.compare import Measured
from rung.dtypes import dtype, name_of
from rung.errors import RungError
from rung.exchange import problem
from rung.rungs.base import Rung

# What a reference's sizes become, in the order in which they differ: each list is a test.
SIZES = ((5, 37, 19, 11, 7), (1, 33, 2, 3, 4), (16, 64, 32, 8, 4), (3, 129, 40, 24, 8), (2, 1, 1, 1, 1))
LARGE = 1 << 18  # numbers of a call that is also tried at the reference's own sizes
_REFERENCE = """from rung.exchange.against import Reference

_reference = Reference({path!r})
generate_input, ref_kernel = _reference.generate_input, _reference.ref_kernel
check_implementation, names, numbers = _reference.check_implementation, _reference.names, _reference.numbers
"""
_ADDED = """

def custom_kernel(data):
    from rung.exchange import against

    return against.called({name}, data)
"""


class Reference:
    """A reference's file, as the functions of a problem."""

    def __init__(self, path: str) -> None:
        self.path = Path(path)

    @functools.cached_property
    def module(self) -> ModuleType:
        spec = importlib.util.spec_from_file_location("reference_of_the_user", self.path)
        assert spec is not None and spec.loader is not None
        module = importlib.util.module_from_spec(spec)
        spec.loader.exec_module(module)
        return module

    @property
    def kind(self) -> str:
        for name in ("Model", "reference", "ref_kernel"):
            if hasattr(self.module, name):
                return name
        known = "Model, reference and ref_kernel"
        raise RungError(f"{self.path} has none of {known}; define reference(...) and get_inputs().")

    @property
    def sizes(self) -> dict[str, int]:
        """The module's own sizes."""
        found = vars(self.module).items()
        return {n: v for n, v in found if type(v) is int and v > 1 and n[0] != "_" and "seed" not in n.lower()}

    def tests(self) -> list[dict[str, int]]:
        """The sizes at which the reference runs."""
        found = []
        for number in range(len(SIZES) + 1):
            test = {"seed": 1, "sizes": number}
            try:
                data = self.generate_input(**test)
                numbers = sum(t.numel() for t in (*data["inputs"], *data["parameters"].values()) if torch.is_tensor(t))
                self.ref_kernel(data)
            except (RuntimeError, ValueError, AssertionError, IndexError, ZeroDivisionError):
                continue  # sizes that do not fit each other
            if numbers <= LARGE:
                found.append(test)
        if not found:
            raise RungError(f"{self.path}: no sizes were found at which the reference runs here.")
        return found

    def generate_input(self, seed: int, sizes: int) -> dict[str, Any]:
        own = self.sizes
        if sizes < len(SIZES):
            different = dict(zip(dict.fromkeys(own.values()), itertools.cycle(SIZES[sizes]), strict=False))
            vars(self.module).update({name: different[value] for name, value in own.items()})
        try:
            torch.manual_seed(seed)
            if self.kind == "ref_kernel":
                given = self.module.generate_input(seed=seed, **own)
                return {"inputs": [*given], "parameters": {}, "init": []}
            inputs = [one.cpu() if torch.is_tensor(one) else one for one in self.module.get_inputs()]
            init = list(getattr(self.module, "get_init_inputs", list)())
            model = self.module.Model(*init) if self.kind == "Model" else None
            parameters = {n: p.detach().clone() for n, p in model.state_dict().items()} if model else {}
            return {"inputs": inputs, "parameters": parameters, "init": init}
        finally:
            vars(self.module).update(own)

    def ref_kernel(self, data: Mapping[str, Any]) -> Any:
        with torch.no_grad():
            return self._computed(data, torch.float32)

    def _computed(self, data: Mapping[str, Any], kind: torch.dtype) -> Any:
        wide = [t.to(kind) if torch.is_tensor(t) and t.is_floating_point() else t for t in data["inputs"]]
        if self.kind == "Model":
            return module_of(self.module.Model, data, kind)(*wide)
        return self.module.reference(*wide) if self.kind == "reference" else self.module.ref_kernel(tuple(wide))

    def check_implementation(self, data: Mapping[str, Any], output: Any) -> str:
        """What is wrong with an output, by rung's own bounds against the reference in float64."""
        with torch.no_grad():
            expected = self._computed(data, torch.float64)
        pairs = zip(*((one,) if torch.is_tensor(one) else one for one in (output, expected)), strict=True)
        for number, (got, right) in enumerate(pairs):
            if got.shape != right.shape:
                return f"result {number} has the shape {tuple(got.shape)}, not {tuple(right.shape)}"
            real = dtype(name_of(got.dtype)) if got.is_floating_point() else dtype("f32")
            depth = max((t.shape[-1] for t in data["inputs"] if torch.is_tensor(t) and t.ndim), default=1)
            atol, exact = max(real.atol, 1e-4 * depth**0.5), not got.is_floating_point()
            measured = Measured("out", got, right.double(), real, atol, exact)
            if text := measured.deviation().problem:
                return text
        return ""

    def names(self, count: int) -> list[str]:
        """What the reference calls its inputs, then its parameters."""
        function = self.module.Model.forward if self.kind == "Model" else getattr(self.module, self.kind)
        code = function.__code__
        given = [n for n in code.co_varnames[: code.co_argcount] if n not in ("self", "data")]
        return given[:count]


    def numbers(self, data: Mapping[str, Any]) -> dict[str, int | float]:
        """The numbers that the reference takes, by their names: a candidate's kernels take them, too."""
        taken = {}
        if self.kind == "Model":
            taken = dict(zip(self.module.Model.__init__.__code__.co_varnames[1:], data["init"], strict=False))
        taken |= dict(zip(self.names(len(data["inputs"])), data["inputs"], strict=False))
        return {name: value for name, value in taken.items() if type(value) in (int, float)}


def module_of(kind: Callable[..., torch.nn.Module], data: Mapping[str, Any], real: torch.dtype) -> torch.nn.Module:
    """The module with the data's parameters: by their names, or else in their order."""
    module, parameters = kind(*data["init"]).to(real), data["parameters"]
    own = module.state_dict()
    named = own.keys() == parameters.keys()
    pairs = zip(own, parameters if not named else own, strict=False)
    held = {name: parameters[other].to(own[name].dtype).reshape(own[name].shape) for name, other in pairs}
    module.load_state_dict(held)
    return module.eval()


def called(what: Callable[..., Any], data: Mapping[str, Any]) -> Any:
    """The candidate's result, in its own process."""
    with torch.no_grad():
        if isinstance(what, type):
            return module_of(what, data, torch.float32)(*data["inputs"])
        return what(*data["inputs"], *data["parameters"].values())


def candidate(reference: Path, file: Path) -> list[Rung]:
    """The candidate as rungs of the reference's operation."""
    for path in (reference, file):
        if not path.is_file():
            raise RungError(f"there is no file {path}.")
    made = Reference(str(reference.resolve()))
    folder = Path(tempfile.mkdtemp(prefix="rung-against-")) / reference.stem
    folder.mkdir()
    (folder / "reference.py").write_text(_REFERENCE.format(path=str(reference.resolve())), encoding="utf-8")
    try:
        tests = made.tests()
    except RungError:
        raise
    except Exception as error:
        raise RungError(f"{reference} fails: {type(error).__name__}: {error}") from None
    (folder / "task.yml").write_text(json.dumps({"tests": tests}), encoding="utf-8")
    source = read_text(file)
    if cuda := [source] if file.suffix in (".cu", ".cuh") else [*_inline(source)]:
        from rung import adopt
        from rung.rungs import catalogue

        of = catalogue.operation(problem.ladder(folder).name)
        kernels = folder / f"{file.stem}.cu"
        kernels.write_text("".join(cuda), encoding="utf-8")
        return list(adopt.rungs_in_file(of, kernels))
    tree = ast.parse(source)
    defined = [n.name for n in tree.body if isinstance(n, ast.ClassDef | ast.FunctionDef)]
    wanted = ("custom_kernel", "ModelNew", "reference" if made.kind == "reference" else "Model", "kernel", "solution")
    name = next((name for name in wanted if name in defined), "")
    if not name:
        raise RungError(f"{file} has none of {', '.join(wanted)}; name the function or class that is judged so.")
    own = folder / file.name
    own.write_text(source if name == "custom_kernel" else source + _ADDED.format(name=name), encoding="utf-8")
    return [problem.submission(folder, own)]


def _inline(source: str) -> Iterator[str]:
    """The CUDA that a Python file compiles inline, in the file's lines."""
    try:
        nodes: Sequence[ast.AST] = [*ast.walk(ast.parse(source))]
    except SyntaxError:
        return
    line = 1
    for node in nodes:
        if isinstance(node, ast.Constant) and isinstance(node.value, str) and "__global__" in node.value:
            yield "\n" * (node.lineno - line) + node.value
            line = node.lineno + node.value.count("\n")
