"""A problem in GPU MODE's format as an operation, and a submission to it as a rung.

The problem is a folder with task.yml (its tests) and reference.py (generate_input, ref_kernel, check_implementation),
which are the user's own and run in this process. A submission is a file with `custom_kernel(data)`; it becomes a rung
of a ladder in a temporary folder and is checked like any user's file: in a separate process, on memory that is
poisoned and guarded, with changed inputs behind the same pointers. The problem's check_implementation decides.
"""

from __future__ import annotations

import ast
import atexit
import contextlib
import importlib.util
import json
import os
import re
import shutil
import sys
import tempfile
from collections.abc import Callable, Iterator, Mapping, Sequence
from functools import cached_property
from pathlib import Path
from types import ModuleType
from typing import Any

import torch

from gpuless.base import files
from rung.arrays import moved, to_torch
from rung.cuda import triton
from rung.dtypes import DTYPES, ELEMENTS, name_of
from rung.errors import RungError
from rung.operation import MORE_LADDERS, Case, Cost, Operand, Operation, Tensors, Values
from rung.rungs import catalogue
from rung.rungs.base import Rung

TASK = 1 << 17  # bytes of task.yml at most, of which PyYAML reads 100 kB in a second
FUNCTIONS = ("generate_input", "ref_kernel", "check_implementation")
DESCRIPTION = "problem.json"
_OPERATION = """# Made by `rung check --problem`: a problem in GPU MODE's format.
from pathlib import Path

from rung.exchange import problem

OPERATION = problem.described(Path(__file__).parent)
"""
_ADDED = """

# ---- what rung adds: these hold whatever stands above ----
DTYPES = {dtypes}
NEEDS = ()
TUNE = LET = BUFFERS = {{}}
ALIGN = 1
EMULATE = FROM = REWRITE = FOUND = ""


def run({inputs}, {outputs}, *, test):
    from rung.exchange import problem

    problem.submitted(custom_kernel, {folder!r}, int(test), ({inputs},), ({outputs},))
"""


def submission(folder: Path, file: Path) -> Rung:
    """The file as a rung of the problem in the folder."""
    place = ladder(folder)
    of = catalogue.operation(place.name)
    try:
        source = files.read_bytes(file).decode("utf-8")
        tree = ast.parse(source)
    except (OSError, ValueError, SyntaxError, RecursionError) as error:
        raise RungError(f"{file} is no Python file that can be read ({_message(error)}); name a submission.") from None
    defined = {node.name for node in tree.body if isinstance(node, ast.FunctionDef)}
    defined |= {ast.unparse(t) for node in tree.body if isinstance(node, ast.Assign) for t in node.targets}
    if "custom_kernel" not in defined:
        raise RungError(f"{file} has no custom_kernel; define custom_kernel(data), as GPU MODE's submissions do.")
    if "run" in defined:
        raise RungError(f"{file} defines run, a name that rung needs; call it something else.")
    inputs = [o.name for o in of.operands if o.role != "out"]
    outputs = [o.name for o in of.operands if o.role == "out"]
    dtypes = sorted({d for case in of.cases for d in case.dtypes})
    added = _ADDED.format(dtypes=dtypes, inputs=", ".join(inputs), outputs=", ".join(outputs), folder=str(place))
    docstring = "" if ast.get_docstring(tree) else f'"""The submission {file.name}."""\n'
    path = place / f"{re.sub(r'[^A-Za-z0-9_]', '_', file.stem)}.py"
    path.write_text(docstring + source + added, encoding="utf-8")
    return catalogue.rung_from_file(of, path)


# ---- the problem, read where it is judged ----------------------------------------------------------------------------


def ladder(folder: Path) -> Path:
    """A ladder for the problem, in a temporary folder that other processes find as well."""
    tests, listed = _task(folder)
    name = "problem_" + re.sub(r"[^a-z0-9]+", "_", folder.resolve().name.lower())
    top = Path(tempfile.mkdtemp(prefix="rung-problem-"))
    atexit.register(shutil.rmtree, top, ignore_errors=True)
    place = top / name
    for part in ("judge", "beside"):  # a submission can read the files next to it, but not the reference
        (place / part).mkdir(parents=True)
    for target, source in listed.items():
        part = "judge" if target == "reference.py" else "beside"
        if not source.is_file():
            raise RungError(f"{folder} names {source}, which is not there; task.yml lists its files.")
        (place / part / Path(target).name).write_bytes(files.read_bytes(source))
    described = _describe(_Judge(place), tests, folder)
    (place / DESCRIPTION).write_text(json.dumps({"folder": str(folder), **described}), encoding="utf-8")
    (place / "operation.py").write_text(_OPERATION, encoding="utf-8")
    more = os.environ.get(MORE_LADDERS)
    os.environ[MORE_LADDERS] = f"{more}{os.pathsep}{top}" if more else str(top)
    return place


def _message(error: BaseException) -> str:
    """An exception of foreign code, shortened to fit into a sentence."""
    return f"{type(error).__name__}: {error}"[:300]


def _task(folder: Path) -> tuple[list[dict[str, Any]], dict[str, Path]]:
    """The tests of task.yml, and the problem's files by the names under which they import each other."""
    import yaml

    try:
        task = yaml.safe_load(files.read_bytes(folder / "task.yml", TASK))
        tests = [dict(test) for test in task["tests"]]
        listed = {str(f["name"]): str(f["source"]) for f in task.get("files", [])}
    except (OSError, ValueError, TypeError, KeyError, AttributeError, RecursionError, yaml.YAMLError) as error:
        problem = _message(error)
        raise RungError(f"{folder / 'task.yml'} cannot be read as a task ({problem}); it must list `tests`.") from None
    if not tests:
        raise RungError(f"{folder / 'task.yml'} has no tests; name at least one.")
    listed = listed or {p.name: p.name for p in folder.glob("*.py")}
    listed.setdefault("reference.py", "reference.py")
    sources = {n: s for n, s in listed.items() if n.endswith(".py") and not s.startswith("@") and n != "eval.py"}
    return tests, {name: (folder / source).resolve() for name, source in sources.items()}


class _Judge:
    """The problem's own functions."""

    def __init__(self, place: Path) -> None:
        self._place = place

    @cached_property
    def module(self) -> ModuleType:
        path = self._place / "judge" / "reference.py"
        before = set(sys.modules)
        sys.path[:0] = [str(path.parent), str(self._place / "beside")]
        try:
            spec = importlib.util.spec_from_file_location("reference", path)
            assert spec is not None and spec.loader is not None
            found = importlib.util.module_from_spec(spec)
            with _on_this_machine():
                spec.loader.exec_module(found)
        except KeyboardInterrupt:
            raise
        except BaseException as error:  # SystemExit as well, which would end the check without a verdict
            raise RungError(f"the problem's reference.py fails: {_message(error)}.") from None
        finally:
            del sys.path[:2]
            for name in set(sys.modules) - before:  # another problem may have its own `utils`
                if str(getattr(sys.modules[name], "__file__", "") or "").startswith(str(self._place)):
                    del sys.modules[name]
        for name in FUNCTIONS:
            if not callable(getattr(found, name, None)):
                raise RungError(f"the problem's reference.py has no {name}; it needs {', '.join(FUNCTIONS)}.")
        return found

    def data(self, test: Mapping[str, Any], seed: int | None = None) -> Any:
        """The input of a test; with a seed another one of the same shapes."""
        arguments = dict(test)
        if seed is not None and "seed" in arguments:
            arguments["seed"] = int(arguments["seed"]) + seed
        torch.manual_seed(seed or 0)
        return self._call("generate_input", **arguments)

    def reference(self, data: Any) -> Any:
        return self._call("ref_kernel", data)

    def complaint(self, data: Any, output: Any) -> str:
        """check_implementation's objection to an output; empty if it is right."""
        message = self._call("check_implementation", data, output)
        if isinstance(message, tuple):
            good, text = message
            return "" if good else str(text) or "check_implementation refuses it"
        return str(message or "")

    def _call(self, name: str, *args: Any, **options: Any) -> Any:
        try:
            with _on_this_machine():
                return getattr(self.module, name)(*args, **options)
        except (RungError, KeyboardInterrupt):
            raise
        except BaseException as error:
            raise RungError(f"the problem's {name} fails: {_message(error)}.") from None


def _describe(judge: _Judge, tests: Sequence[Mapping[str, Any]], folder: Path) -> dict[str, Any]:
    """A submission's inputs and outputs in each test, found by calling the problem's functions once."""
    found: list[dict[str, Any]] = []
    for test in tests:
        data = judge.data(test)
        inputs, form = _flat(data)
        copies = [t.clone() for t in inputs]
        results, out_form = _flat(judge.reference(data))
        given = {t.data_ptr(): i for i, t in enumerate(inputs) if t.numel()}
        places = [given.get(t.data_ptr()) for t in results]  # an input that receives the result
        changed = [i for i, (a, b) in enumerate(zip(copies, inputs, strict=True)) if not torch.equal(a, b)]
        if any(i not in places for i in changed) or not results:
            raise RungError(f"{folder}: ref_kernel changes an input that is not an output; rung cannot judge that.")
        unchanged = [i for i in range(len(inputs)) if i not in places]
        given_names: list[str] = getattr(judge.module, "names", lambda _: [])(len(unchanged))
        names = {i: given_names[n] if n < len(given_names) else f"in{n}" for n, i in enumerate(unchanged)}
        names |= {place: f"out{n}" for n, place in enumerate(places) if place is not None}
        described = [_operand(names[i], t, "out" if i in places else "in") for i, t in enumerate(inputs)]
        described += [_operand(f"out{n}", t, "out") for n, t in enumerate(results) if places[n] is None]
        found.append({
            "name": ", ".join(f"{k} {v}" for k, v in test.items()),
            "test": dict(test),
            "data": form,
            "names": [names[i] for i in range(len(inputs))],
            "output": out_form,
            "operands": described,
            "numbers": getattr(judge.module, "numbers", lambda _: {})(data),
        })  # fmt: skip
    first = [(o["name"], o["dtype"], len(o["shape"]), o["role"]) for o in found[0]["operands"]]
    for case in found:
        if [(o["name"], o["dtype"], len(o["shape"]), o["role"]) for o in case["operands"]] != first:
            raise RungError(f"{folder}: the tests differ in the number, dtype or rank of their tensors.")
    return {"cases": found}


def _operand(name: str, tensor: torch.Tensor, role: str) -> dict[str, Any]:
    kind = name_of(tensor.dtype)
    if kind not in ELEMENTS:
        raise RungError(f"the problem has a tensor of {kind}; rung judges {', '.join(ELEMENTS)}.")
    return {"name": name, "shape": list(tensor.shape), "dtype": kind, "role": role}


# ---- the operation, in any process ------------------------------------------------------------------------------


def described(place: Path) -> Operation:
    """The operation of a problem's description; the problem's functions are called only in the checking process."""
    sys.path.append(str(place / "beside"))  # what a submission imports
    description = json.loads((place / DESCRIPTION).read_text(encoding="utf-8"))
    cases, judge = description["cases"], _Judge(place)
    alike: dict[tuple[int, ...], str] = {}  # axes that are as long in every test have one name

    def axes(nth: int, name: str) -> tuple[str, ...]:
        every = zip(*(case["operands"][nth]["shape"] for case in cases), strict=True)
        return tuple(alike.setdefault(sizes, f"{name}_{axis}") for axis, sizes in enumerate(every))

    told = enumerate(cases[0]["operands"])
    operands = tuple(Operand(o["name"], axes(nth, o["name"]), o["role"], o["dtype"]) for nth, o in told)
    kind = next((o.dtype for o in operands if o.role == "out" and o.dtype in DTYPES), "f32")

    def values(number: int, case: Mapping[str, Any]) -> Values:
        shapes = zip(operands, case["operands"], strict=True)
        sizes = {str(axis): n for o, one in shapes for axis, n in zip(o.shape, one["shape"], strict=True)}
        return {"test": number, **sizes}

    def draw(v: Values, seed: int) -> Tensors:
        case = cases[int(v["test"]) - 1]
        flat, _ = _flat(judge.data(case["test"], seed))
        return dict(zip(case["names"], flat, strict=True))

    def data(tensors: Tensors, test: int) -> Any:
        case = cases[test - 1]
        of = {o.name: o for o in operands}
        given = {n: to_torch(tensors[n]) for n in case["names"]}
        values = [
            torch.zeros_like(t) if of[n].role == "out" else _as_declared(t, of[n]) for n, t in given.items()
        ]
        return _formed(case["data"], values)

    def reference(tensors: Tensors, v: Values) -> Tensors:
        test = int(v["test"])
        outs = {o.name: torch.empty(o.size(v), dtype=getattr(torch, ELEMENTS[o.dtype])) for o in operands}
        flat, _ = _flat(judge.reference(data({**outs, **tensors}, test)))
        like = next(iter(tensors.values()), flat[0])
        return {f"out{n}": moved(t.double() if t.is_floating_point() else t, like) for n, t in enumerate(flat)}

    def complaint(tensors: Tensors, v: Values) -> str:
        test = int(v["test"])
        outputs = [to_torch(tensors[o.name]).clone() for o in sorted(operands, key=lambda o: o.name) if o.role == "out"]
        message = judge.complaint(data(tensors, test), _formed(cases[test - 1]["output"], outputs))
        return f"check_implementation: {' '.join(message.split())[:300]}" if message else ""

    every = [values(number, case) for number, case in enumerate(cases, 1)]
    first = cases[0]["numbers"]  # others follow from sizes
    scalars = {n: v for n, v in first.items() if all(case["numbers"].get(n) == v for case in cases)}
    return Operation(
        name=place.name,
        summary=f"the problem in {description['folder']}",
        dims=tuple(every[0]),
        operands=operands,
        reference=reference,
        scalars=scalars,
        cost=lambda v, size: Cost(0.0, float(sum(4 * n for n in v.values()))),
        cases=tuple(Case(c["name"], v, dtypes=(kind,)) for c, v in zip(cases, every, strict=True)),
        shapes={c["name"]: v for c, v in zip(cases, every, strict=True)},
        custom_check=complaint,
        draw=draw,
    )


def _as_declared(tensor: torch.Tensor, operand: Operand) -> torch.Tensor:
    """A copy in the operand's own format (other references are computed in float64)."""
    return tensor.to(getattr(torch, ELEMENTS[operand.dtype]), copy=True)


# ---- the submission, in its own process ------------------------------------------------------------------------------


def submitted(
    kernel: Callable[[Any], Any], place: str, test: int, inputs: Sequence[torch.Tensor], outputs: Sequence[torch.Tensor]
) -> None:
    """Call a submission, and copy its result to where the checker compares it."""
    case = json.loads((Path(place) / DESCRIPTION).read_text(encoding="utf-8"))["cases"][test - 1]
    names = [o["name"] for o in case["operands"] if o["role"] != "out"]
    tensors = dict(zip(names, inputs, strict=True))
    tensors |= {o["name"]: outputs[int(o["name"][3:])] for o in case["operands"] if o["role"] == "out"}
    with _on_this_machine():
        given = kernel(_formed(case["data"], [tensors[n] for n in case["names"]]))
    flat, form = _flat(given)
    if form != case["output"]:
        raise RungError("custom_kernel returns a different number of tensors than ref_kernel.")
    for out, result in zip(outputs, flat, strict=True):
        if type(result) is not torch.Tensor:
            raise RungError(f"custom_kernel returns a {type(result).__name__}, not a plain computed tensor.")
        if result.shape != out.shape or result.dtype != out.dtype:
            actual = f"{tuple(result.shape)} of {result.dtype}, not {tuple(out.shape)} of {out.dtype}"
            raise RungError(f"custom_kernel returns {actual}.".replace("torch.", ""))
        if result.data_ptr() != out.data_ptr():
            out.copy_(result)


# ---- data as plain forms ---------------------------------------------------------------------------------------------


def _flat(value: Any) -> tuple[list[torch.Tensor], Any]:
    """The tensors in tuples, lists and dictionaries, and the form that holds them, as JSON keeps it."""
    tensors: list[torch.Tensor] = []

    def form(part: Any) -> Any:
        if isinstance(part, torch.Tensor):
            tensors.append(part)
            return {"tensor": len(tensors) - 1}
        if isinstance(part, tuple | list):
            return {type(part).__name__ if type(part) in (tuple, list) else "tuple": [form(p) for p in part]}
        if isinstance(part, dict) and all(isinstance(k, str) for k in part):
            return {"dict": {k: form(p) for k, p in part.items()}}
        if part is None or isinstance(part, bool | int | float | str):
            return {"value": part}
        raise RungError(f"the problem passes a {type(part).__name__}; rung takes tensors, numbers and texts.")

    return tensors, form(value)


def _formed(form: Any, tensors: Sequence[torch.Tensor]) -> Any:
    """The form with these tensors in it."""
    ((kind, content),) = form.items()
    if kind == "tensor":
        return tensors[content]
    if kind == "value":
        return content
    if kind == "dict":
        return {k: _formed(p, tensors) for k, p in content.items()}
    parts = [_formed(p, tensors) for p in content]
    return tuple(parts) if kind == "tuple" else parts


@contextlib.contextmanager
def _on_this_machine() -> Iterator[None]:
    """Without a GPU, code that requests one runs on the CPU, and so do the kernels that Triton compiles."""
    with contextlib.nullcontext() if torch.cuda.is_available() else triton.enabled():
        yield
