"""What a Python rung of unknown origin may name besides its kernels, by the ways in which files cheated."""

from __future__ import annotations

import importlib.util
import py_compile
import shutil
from pathlib import Path

import pytest

from rung.check.sandbox import beyond_its_kernels, computes_beside
from rung.errors import RungError
from rung.rungs import catalogue, python_module

HEAD = "import torch\nimport triton\nimport triton.language as tl\n"
CHEATS = {
    "import sys": "sys",
    "import collections.abc, os": "os",
    "import numpy as np": "numpy",
    "from torch import library": "torch.library",
    "from . import helper": "helper",
    "import torch.utils.dlpack": "torch.utils.dlpack",
    "from rung.check import report": "rung.check.report",
    "import triton.runtime.interpreter": "triton.runtime.interpreter",
    "getattr(torch, 'o' + 's')": "getattr",
    "__builtins__['abs'] = max": "__builtins__",
    "eval('1')": "eval",
    "torch._C._nn.gelu": "_C",
    "def run(a): return a.numpy()": "numpy",
}


@pytest.mark.parametrize("text", CHEATS)
def test_a_file_that_reaches_beyond_its_kernels_calls_the_library(text: str) -> None:
    assert beyond_its_kernels(f"{HEAD}{text}\n") == CHEATS[text]


@pytest.mark.parametrize(
    ("text", "verdict"),
    [
        ("from .kernels import row", "not judged"),
        ("import kernels_of_others.ops", "not judged"),
        ("import numpy", "not judged"),
        ("import sys", "not judged"),
        ("import torch.utils.dlpack", "not judged"),
    ],
)
def test_a_module_of_others_is_no_library_that_is_called(text: str, verdict: str, tmp_path: Path) -> None:
    path = tmp_path / "mine.py"
    path.write_text(f"{HEAD}{text}\n\n\ndef run(a, b, out):\n    pass\n")
    told = computes_beside(catalogue.rung_from_file(catalogue.operation("residual"), path))
    assert told is not None and told[0] == verdict and text.split()[1].lstrip(".") in told[1]


def test_the_triton_rungs_of_the_ladders_name_nothing_beyond_its_kernels() -> None:
    ladders = [catalogue.rungs(name) for name in catalogue.operations() if name != "decode"]  # which calls libraries
    rungs = [rung for ladder in ladders for rung in ladder if rung.kind == "triton"]
    assert len(rungs) > 15
    assert [(rung.full_name, found) for rung in rungs if (found := beyond_its_kernels(rung.source))] == []


@pytest.mark.parametrize(
    "text",
    [
        "from __future__ import annotations\nfrom dataclasses import dataclass\n@dataclass\nclass Size:\n    n: int\n"
        "    def half(self):\n        self.n = self._half = self.n // 2\n",
        "def run(x: torch.Tensor, out):\n    run.kept = torch.empty_like(x, dtype=torch.float32).view(-1)[1:].t()\n",
        "sms = torch.cuda.get_device_properties(0).multi_processor_count\ntriton.cdiv(4, triton.next_power_of_2(3))\n",
        "from torch.nn import functional as F\nimport math\nF.gelu(torch.ones(2) * math.pi)\n",
        "from triton.tools.tensor_descriptor import TensorDescriptor\ntype(1), float('inf'), isinstance(1, int)\n",
    ],
)
def test_python_that_allocates_and_launches_is_left_alone(text: str) -> None:
    assert beyond_its_kernels(text if text.startswith("from __future__") else HEAD + text) == ""


def test_compiled_code_beside_a_file_is_not_what_runs(tmp_path: Path) -> None:
    path, other = tmp_path / "rung.py", tmp_path / "other.py"
    path.write_text("VALUE = 1\n")
    other.write_text("VALUE = 2\n")
    cached = Path(importlib.util.cache_from_source(str(path)))
    cached.parent.mkdir()
    made = py_compile.compile(str(other), invalidation_mode=py_compile.PycInvalidationMode.UNCHECKED_HASH)
    assert made is not None
    shutil.copy(made, cached)
    assert python_module.load(path).VALUE == 1


def test_a_file_in_another_encoding_is_refused(tmp_path: Path) -> None:
    path = tmp_path / "rung.py"
    path.write_text('# coding: utf-7\n"""Adds."""\n\n\ndef run(a):\n    pass\n')
    with pytest.raises(RungError, match="another encoding"):
        python_module.read_facts(path)
