"""pytest's plugin: with `pytest --gpuless`, kernels run on the GPU in software, and a fault fails the test in which it
happened. docs/doors.md has the options and the mark."""

from __future__ import annotations

import ctypes
import importlib.abc
import importlib.machinery
import importlib.util
import json
import os
import subprocess
import sys
import tempfile
from collections.abc import Generator
from pathlib import Path
from types import ModuleType
from typing import Any

import pytest

_KEYS = {"races": "auto", "gpu": "", "order": "", "seed": 0, "seeds": 0, "expect": ()}
_MARK = (
    "gpuless(races=True|False, gpu='a100', order='reverse', seed=1, seeds=3, expect=('bounds',)): how kernels of the "
    "test run on the GPU in software; `seeds` repeats the test in shuffled orders, `expect` names kinds of faults that "
    "the test provokes"
)
_SEED = "gpuless_seed"
_REPORTS = "GPULESS_PYTEST_REPORTS"


def pytest_addoption(parser: pytest.Parser) -> None:
    group = parser.getgroup("gpuless", "a GPU in software")
    group.addoption("--gpuless", action="store_true", help="run kernels on the GPU in software; faults fail their test")
    group.addoption("--gpuless-gpu", default="", metavar="GPU", help="the GPU that tests see (default: h200)")
    parser.addini("gpuless", "run kernels on the GPU in software", type="bool", default=False)
    parser.addini("gpuless_gpu", "the GPU that tests see", default="")
    parser.addini("gpuless_suppress", "a file of faults that are suppressed, each with its reason", default="")


@pytest.hookimpl(tryfirst=True)
def pytest_load_initial_conftests(early_config: pytest.Config) -> None:
    """Before anything of the project is imported, and so before anything that uses CUDA."""
    options = early_config.known_args_namespace
    if options.gpuless or early_config.getini("gpuless"):
        judge = _Judge(early_config, options.gpuless_gpu or str(early_config.getini("gpuless_gpu")))
        early_config.pluginmanager.register(judge, "gpuless-judge")


def pytest_configure(config: pytest.Config) -> None:
    config.addinivalue_line("markers", _MARK)


class _Judge:
    """The GPU in software of this process, and what it has reported."""

    def __init__(self, config: pytest.Config, gpu: str) -> None:
        from gpuless import driver
        from gpuless.base.errors import UserError
        from gpuless.doors import findings
        from gpuless.driver import library
        from gpuless.facts import gpus
        from gpuless.program import execution

        self._config, self._findings = config, findings
        try:
            self._gpu = gpus.find(gpu or gpus.USUAL).key
            file = str(config.getini("gpuless_suppress"))
            self._suppressed = findings.read_suppressions(config.rootpath / file) if file else []
            handle, report = tempfile.mkstemp(prefix="gpuless-pytest-")
            os.close(handle)
            chosen = execution.Execution(gpu=self._gpu, quiet=True, own_code=True)
            os.environ.update(chosen.environment(Path(report)))  # the test fails; programs keep their exit codes
            driver.use()
        except UserError as problem:
            raise pytest.UsageError(f"gpuless: {problem}") from None
        self._report, self._read = Path(report), 0
        self._library = ctypes.CDLL(str(library.folder() / driver.NAME))
        sys.meta_path.insert(0, _NumbaFinder())

    def pytest_report_header(self) -> str:
        from gpuless.facts import gpus

        return f"gpuless: {gpus.find(self._gpu).name} in software"

    def pytest_unconfigure(self) -> None:
        self._report.unlink(missing_ok=True)

    def pytest_generate_tests(self, metafunc: pytest.Metafunc) -> None:
        seeds = _marked(metafunc.definition)["seeds"]
        if seeds:
            metafunc.fixturenames.append(_SEED)
            metafunc.parametrize(_SEED, range(1, seeds + 1), ids=lambda seed: f"seed{seed}")

    @pytest.hookimpl(tryfirst=True)
    def pytest_runtest_protocol(self, item: pytest.Item) -> bool | None:
        """A process has one GPU: a test for another runs in a process of its own."""
        from gpuless.base.errors import UserError
        from gpuless.facts import gpus

        wanted = _marked(item)["gpu"]
        try:
            if not wanted or gpus.find(wanted).key == self._gpu:
                return None
        except UserError as problem:
            raise pytest.UsageError(f"{item.nodeid}: {problem}") from None
        item.ihook.pytest_runtest_logstart(nodeid=item.nodeid, location=item.location)
        for report in self._reports_of(item, wanted):
            item.ihook.pytest_runtest_logreport(report=report)
        item.ihook.pytest_runtest_logfinish(nodeid=item.nodeid, location=item.location)
        return True

    def _reports_of(self, item: pytest.Item, gpu: str) -> list[pytest.TestReport]:
        config = self._config
        with tempfile.TemporaryDirectory(prefix="gpuless-pytest-") as folder:
            written = Path(folder) / "reports.jsonl"
            plugins = [word for name in config.option.plugins for word in ("-p", name)]
            ini = ["-c", str(config.inipath)] if config.inipath else []
            command = [sys.executable, "-m", "pytest", *ini, f"--rootdir={config.rootpath}", *plugins, "--gpuless"]
            command += [f"--gpuless-gpu={gpu}", f"{config.rootpath}/{item.nodeid}"]
            environment = {k: v for k, v in os.environ.items() if not k.startswith("PYTEST_XDIST")}
            environment[_REPORTS] = str(written)
            with (Path(folder) / "output").open("w+") as output:  # not a pipe: processes that it leaves may hold it
                done = subprocess.run(command, env=environment, stdout=output, stderr=subprocess.STDOUT)
                output.seek(0)
                said = output.read()
            lines = written.read_text().splitlines() if written.exists() else []
        reports = [
            config.hook.pytest_report_from_serializable(config=config, data=json.loads(line) | {"nodeid": item.nodeid})
            for line in lines
        ]
        if not reports or reports[-1].when != "teardown":
            text = f"the test's own process ended with {done.returncode}\n{said}"
            facts = {"nodeid": item.nodeid, "location": item.location, "keywords": {}, "outcome": "failed"}
            reports.append(pytest.TestReport(**facts, longrepr=text, when="call"))  # type: ignore[arg-type]
        return reports

    @pytest.hookimpl(wrapper=True)
    def pytest_runtest_logreport(self, report: pytest.TestReport) -> Generator[None]:
        yield
        if where := os.environ.get(_REPORTS):
            data = self._config.hook.pytest_report_to_serializable(config=self._config, report=report)
            with Path(where).open("a") as file:
                file.write(json.dumps(data) + "\n")

    @pytest.hookimpl(wrapper=True, tryfirst=True)
    def pytest_runtest_setup(self, item: pytest.Item) -> Generator[None]:
        from gpuless.program.execution import ORDERS

        marked = _marked(item)
        call = getattr(item, "callspec", None)
        seed = call.params.get(_SEED, 0) if call else 0
        order = marked["order"] or ("shuffled" if seed or marked["seed"] else "forward")
        if order not in ORDERS:
            raise pytest.UsageError(f"{item.nodeid}: order {order!r} is none of {', '.join(ORDERS)}")
        os.environ["GPULESS_ORDER"] = str(ORDERS.index(order))
        os.environ["GPULESS_SEED"] = str(seed or marked["seed"])
        os.environ["GPULESS_RACES"] = {"auto": "1", True: "2", False: "0"}[marked["races"]]
        self._library.gpuless_begin_period()
        yield from self._judge(item, "setup")

    @pytest.hookimpl(wrapper=True, tryfirst=True)
    def pytest_runtest_call(self, item: pytest.Item) -> Generator[None]:
        yield from self._judge(item, "call")

    @pytest.hookimpl(wrapper=True, tryfirst=True)
    def pytest_runtest_teardown(self, item: pytest.Item) -> Generator[None]:
        yield from self._judge(item, "teardown")

    def _judge(self, item: pytest.Item, when: str) -> Generator[None]:
        try:
            yield
        except BaseException:
            if told := self._told(item):
                item.add_report_section(when, "gpuless", told)
            raise
        if told := self._told(item):
            pytest.fail(told, pytrace=False)

    def _told(self, item: pytest.Item) -> str:
        """The faults since the last call, as text."""
        self._library.gpuless_begin_period()
        with self._report.open("rb") as file:
            file.seek(self._read)
            new = file.read()
        whole = new[: new.rfind(b"\n") + 1]  # a child may be writing
        self._read += len(whole)
        faults = [one for one in map(json.loads, whole.splitlines()) if one["record"] == "fault"]
        left, passed = self._findings.divided(faults, self._suppressed)
        for _, entry in passed:
            item.user_properties.append(("gpuless suppressed", entry.reason))
        expected = _marked(item)["expect"]
        return "\n".join(self._findings.paragraph(one) for one in left if one["kind"] not in expected)


def _marked(item: Any) -> dict[str, Any]:
    """The marks of a test, the nearest first."""
    found = dict(_KEYS)
    for mark in reversed(list(item.iter_markers("gpuless"))):
        if mark.args or set(mark.kwargs) - set(_KEYS):
            raise pytest.UsageError(f"{item.nodeid}: the mark gpuless takes {', '.join(_KEYS)}, by name")
        found |= mark.kwargs
    if isinstance(found["expect"], str):
        found["expect"] = (found["expect"],)
    return found


class _NumbaFinder(importlib.abc.MetaPathFinder, importlib.abc.Loader):
    """Numba keeps the lines of a kernel where `lineinfo=True` asks for them: here it is the default."""

    _inner: Any = None

    def find_spec(self, name: str, path: Any = None, target: Any = None) -> Any:
        if name != "numba.cuda":
            return None
        sys.meta_path.remove(self)  # what finds it now may ask all finders
        spec = importlib.util.find_spec(name)
        if spec and spec.loader:
            self._inner, spec.loader = spec.loader, self
        return spec

    def create_module(self, spec: importlib.machinery.ModuleSpec) -> ModuleType | None:
        found: ModuleType | None = self._inner.create_module(spec)
        return found

    def exec_module(self, module: ModuleType) -> None:
        self._inner.exec_module(module)
        plain = module.jit

        def jit(*words: Any, **options: Any) -> Any:
            return plain(*words, **({"lineinfo": not options.get("debug")} | options))

        module.jit = jit  # type: ignore[attr-defined]
