"""Exports are loaded by the tools they are for, and compute what the operation says: on the emulator, without a GPU."""

import importlib.util
import json
import re
import shutil
import subprocess
import sys
from contextlib import nullcontext
from pathlib import Path
from types import ModuleType
from typing import Any

import pytest
import torch
import torch.nn.functional as F

from gpuless.launch import Build, LaunchConfig
from rung import RungError
from rung.arrays import put, to_torch
from rung.check.judge import device_named, report_on, requests
from rung.check.operands import Operands
from rung.check.report import QUICK, CheckRequest
from rung.cuda import triton
from rung.dtypes import dtype
from rung.exchange import problem, runtime
from rung.exchange.export import TARGETS, export
from rung.exchange.standalone import signature, standalone
from rung.rungs import catalogue, python_module
from rung.rungs.cuda import load_module


def emulated(
    source: str, defines: dict[str, int], options: tuple[str, ...], kernel: str, grid: Any, block: Any, shared: int,
    arguments: Any,
) -> None:  # fmt: skip
    """In place of the runtime's launch: the exported text, compiled for the emulator."""
    macros = tuple(sorted((name, str(value)) for name, value in defines.items()))
    module = load_module(Build(source, "export", (kernel,), macros, options), "emulator")
    module.launch(kernel, LaunchConfig(grid, block, shared), arguments)


def loaded(path: Path) -> ModuleType:
    """An exported file, to run without a GPU."""
    module = python_module.load(path, emulated="triton" in path.read_text())
    if hasattr(module, "_launch"):
        module._launch = emulated
    return module


ALONE = [
    "gelu/02_vector", "gelu/05_triton", "layernorm/07_warp", "layernorm/11_fused_residual", "layernorm/06_two_stage",
    "embedding/03_vector", "softmax/07_registers", "matmul/05_register_tiles", "residual/04_triton", "reduce/08_last_block",
    "transpose/02_tiled", "matmul_gelu/02_fused", "attention/03_launch",
]  # fmt: skip


@pytest.mark.parametrize("name", ALONE)
def test_a_rung_computes_without_rung(name: str, tmp_path: Path) -> None:
    rung = catalogue.find(name)
    path = tmp_path / "alone.py"
    path.write_text(standalone(rung))
    assert not re.search(r"^\s*(import|from) rung", path.read_text(), re.MULTILINE)
    module, called = loaded(path), signature(rung)
    of, f32 = rung.operation, dtype("f32")
    small = [of.complete(c.values) for c in of.cases if c.where == "any"]
    values = next(v for v in small[1:] if rung.refusal(v, f32) is None)
    names = [o.name for o in (*called.inputs, *called.outputs)]
    names += [o.name for o in of.operands if o.view_of in names]  # what the reference reads
    operands = Operands(of, values, f32, names, 3, device="cpu")
    numbers = {n: values[n] for n in called.numbers}
    with triton.enabled() if "triton" in path.read_text() else nullcontext():
        found = getattr(module, of.name)(*(to_torch(operands.tensors[o.name]) for o in called.inputs), **numbers)
    for operand, tensor in zip(called.outputs, (found,) if torch.is_tensor(found) else found, strict=True):
        put(operands.tensors[operand.name], tensor)
    assert all(d.ok for d in operands.deviations(operands.reference())), name


@pytest.mark.slow
def test_every_rung_is_exported_or_refused_in_a_sentence() -> None:
    made = 0
    for name in catalogue.operations():
        for rung in catalogue.rungs(name, libraries=False):
            for target, write in TARGETS.items():
                try:
                    texts = write(rung)
                except RungError as error:
                    assert str(error).endswith("."), str(error)
                    continue
                made += 1
                for path, text in texts.items():
                    if path.endswith(".py"):
                        compile(text, f"{rung.full_name} {target} {path}", "exec")
    assert made > 300


def test_the_runtime_compiles_with_nvrtc(tmp_path: Path) -> None:
    (tmp_path / "alone.py").write_text(standalone(catalogue.find("layernorm/07_warp")))
    module = loaded(tmp_path / "alone.py")
    defines = (("BLOCK", 128), ("RUNG_BF16", 1))
    assert module._cubin(module.SOURCE, defines, (), "sm_90")[:4] == b"\x7fELF"
    with pytest.raises(RuntimeError, match="NVRTC refuses"):
        runtime._cubin("extern \"C\" __global__ void f() { oops }", (), (), "sm_90")


def test_a_kernel_of_the_hub_is_loaded_by_kernels(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    kernels = pytest.importorskip("kernels")
    export(catalogue.find("gelu/02_vector"), "hf-kernel", tmp_path)
    monkeypatch.setattr(torch.version, "cuda", torch.version.cuda or "13.0")  # a build of torch for GPUs
    module = kernels.get_local_kernel(tmp_path)
    sys.modules[module.gelu.__module__]._launch = emulated
    x = torch.randn(2, 3, 64)
    torch.testing.assert_close(module.gelu(x), F.gelu(x, approximate="tanh"))
    with pytest.raises(ValueError, match="contiguous"):
        module.gelu(x.transpose(0, 1))


@pytest.mark.slow
def test_torchs_own_checks_pass_on_the_operator(tmp_path: Path) -> None:
    export(catalogue.find("layernorm/07_warp"), "torch", tmp_path)
    spec = importlib.util.spec_from_file_location("rung_layernorm", tmp_path / "rung_layernorm" / "__init__.py")
    assert spec is not None and spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    sys.modules["rung_layernorm"] = module
    spec.loader.exec_module(module)
    module.kernel._launch = emulated
    x, weight, bias = torch.randn(2, 3, 64), torch.randn(64), torch.randn(64)
    torch.library.opcheck(torch.ops.rung_export.layernorm.default, (x, weight, bias))
    compiled = torch.compile(lambda x: torch.ops.rung_export.layernorm(x, weight, bias, 0.5) + 1, backend="eager")
    torch.testing.assert_close(compiled(x), F.layer_norm(x, (64,), weight, bias, 0.5) + 1, rtol=1e-5, atol=1e-5)


@pytest.mark.parametrize("name", ["gelu/05_triton", "layernorm/07_warp", "matmul/05_register_tiles"])
def test_a_model_of_kernelbench_is_its_new_model(name: str, tmp_path: Path) -> None:
    rung = catalogue.find(name)
    export(rung, "kernelbench", tmp_path)
    text = (tmp_path / "problem.py").read_text()
    sizes = {"B": 2, "T": 3, "C": 64, "OC": 32}
    (tmp_path / "problem.py").write_text(re.sub(r"^([A-Z]+) = \d+$", lambda m: f"{m[1]} = {sizes[m[1]]}", text, flags=re.M))
    given, solved = loaded(tmp_path / "problem.py"), loaded(tmp_path / "solution.py")
    inputs = given.get_inputs()
    expected = given.Model(*given.get_init_inputs())(*inputs)
    with triton.enabled() if "triton" in name else nullcontext():
        found = solved.ModelNew(*given.get_init_inputs())(*inputs)
    torch.testing.assert_close(found, expected, rtol=1e-4, atol=1e-4)


@pytest.mark.slow
def test_a_problem_of_gpu_mode_is_judged_right(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("RUNG_LADDERS", "")
    export(catalogue.find("gelu/05_triton"), "popcorn", tmp_path)
    rung = problem.submission(tmp_path, tmp_path / "submission.py")
    (task,) = requests([rung], CheckRequest(device=device_named(None), effort=QUICK))
    report = report_on(task)
    assert report.verdict == "ok", report.reason


def test_a_definition_is_read_by_flashinfer_bench(tmp_path: Path) -> None:
    data = pytest.importorskip("flashinfer_bench.data")
    made = export(catalogue.find("layernorm/07_warp"), "flashinfer", tmp_path)
    definition = data.Definition.model_validate_json(made[0].read_text())
    solution = data.Solution.model_validate_json(made[1].read_text())
    assert solution.definition == definition.name
    for line in made[2].read_text().splitlines():
        output = json.loads(line)
        assert data.Workload.model_validate(output["workload"]).axes.keys() == definition.axes.keys()
    space: dict[str, Any] = {}
    exec(definition.reference, space)
    x, weight, bias = torch.randn(2, 3, 64), torch.randn(64), torch.randn(64)
    torch.testing.assert_close(space["run"](x, weight, bias), F.layer_norm(x, (64,), weight, bias))


@pytest.mark.slow
@pytest.mark.parametrize("name", ["gelu/02_vector", "reduce/08_last_block"])
def test_an_answer_of_leetgpu_compiles(name: str, tmp_path: Path) -> None:
    nvcc = shutil.which("nvcc")
    if nvcc is None:
        pytest.skip("no nvcc")
    (path,) = export(catalogue.find(name), "leetgpu", tmp_path)
    words = [nvcc, "-arch=sm_80", "-std=c++17", "-c", str(path), "-o", str(tmp_path / "solve.o")]
    ran = subprocess.run(words, capture_output=True, text=True)
    assert ran.returncode == 0, ran.stderr
    assert b"solve" in (tmp_path / "solve.o").read_bytes()


def test_what_cannot_be_exported_is_reported(tmp_path: Path) -> None:
    with pytest.raises(RungError, match="use one of hf-kernel"):
        export(catalogue.find("gelu/1"), "nowhere", tmp_path)
    (tmp_path / "mine").write_text("")
    with pytest.raises(RungError, match="not empty"):
        export(catalogue.find("gelu/1"), "torch", tmp_path)
    with pytest.raises(RungError, match="not CUDA"):
        TARGETS["leetgpu"](catalogue.find("gelu/5"))
    with pytest.raises(RungError, match="one shape at a time") as refused:
        TARGETS["leetgpu"](catalogue.find("softmax/7"))
    names = [rung.name for rung in catalogue.rungs("softmax", libraries=False) if rung.name in str(refused.value)]
    assert all(TARGETS["leetgpu"](catalogue.find(f"softmax/{n}")) for n in names if n != "07_registers") and len(names) > 1
    with pytest.raises(RungError, match="a view or a state"):
        standalone(catalogue.find("cached_attention/1"))


@pytest.mark.gpu
@pytest.mark.parametrize("name", ["gelu/02_vector", "layernorm/07_warp", "matmul/05_register_tiles", "gelu/05_triton"])
def test_an_export_runs_on_a_gpu(name: str, tmp_path: Path) -> None:
    rung = catalogue.find(name)
    export(rung, "kernelbench", tmp_path)
    given, solved = (python_module.load(tmp_path / f"{n}.py") for n in ("problem", "solution"))
    inputs = [t.cuda() for t in given.get_inputs()]
    expected = given.Model()(*inputs)
    torch.testing.assert_close(solved.ModelNew()(*inputs), expected, rtol=1e-3, atol=1e-3)
