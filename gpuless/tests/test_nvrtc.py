"""Compiling without a GPU: resources, templates, errors for people, and a cache that can be trusted."""

import hashlib
import json
import multiprocessing
import os
import subprocess
import threading
from dataclasses import replace
from pathlib import Path

import pytest

from gpuless.base.errors import CompileError, UserError
from gpuless.compile import headers, nvrtc
from gpuless.compile.cubin_cache import Cubin
from gpuless.launch import Build

SOURCE = """
extern "C" __global__ void reverse(float* x) {
  __shared__ float s[SIZE];
  s[threadIdx.x] = x[threadIdx.x];
  __syncthreads();
  x[threadIdx.x] = s[SIZE - 1 - threadIdx.x];
}
"""


@pytest.fixture(autouse=True)
def own_cache(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setenv("RUNG_CACHE", str(tmp_path / "cache"))
    return tmp_path / "cache" / "cubin"


def build(source: str = SOURCE, *kernels: str, **more: object) -> Build:
    given = Build(source, "kernels/mine.cu", kernels or ("reverse",), (("SIZE", "128"),))
    return replace(given, **more)  # type: ignore[arg-type]


@pytest.fixture
def compilations(monkeypatch: pytest.MonkeyPatch) -> list[str]:
    """Grows by one architecture whenever the compiler really runs."""
    ran: list[str] = []
    original = nvrtc.compile_fresh

    def counted(*args: object) -> object:
        ran.append(str(args[1]))
        return original(*args)  # type: ignore[arg-type]

    monkeypatch.setattr(nvrtc, "compile_fresh", counted)
    return ran


@pytest.mark.parametrize("arch", ["sm_75", "sm_80", "sm_90", "sm_120"])
def test_a_cubin_and_its_resources_for_each_architecture(arch: str) -> None:
    cubin = nvrtc.compile_cubin(build(), arch)
    found = cubin.resources["reverse"]
    assert cubin.arch == arch
    assert cubin.path.read_bytes().startswith(b"\x7fELF")
    assert found.static_shared == 512
    assert 4 <= found.registers <= 32
    assert (found.stack, found.spill_stores, found.spill_loads) == (0, 0, 0)


def test_spills_and_stack_are_facts() -> None:
    source = """
    template <int N> __global__ void hold(float* x) {
      float a[N];
      for (int i = 0; i < N; i++) a[i] = x[i];
      for (int i = 0; i < N; i++) x[(int)a[i]] = a[N - 1 - i] + 1;
    }"""
    few = nvrtc.compile_cubin(build(source, "hold<64>", options=("--maxrregcount=32",)), "sm_90")
    many = nvrtc.compile_cubin(build(source, "hold<64>"), "sm_90")
    assert few.spilling == ("hold<64>",)
    assert few.resources["hold<64>"].registers <= 32
    assert few.resources["hold<64>"].stack > 0
    assert few.resources["hold<64>"].spill_stores > many.resources["hold<64>"].spill_stores


def test_templates_and_mangled_kernels_are_found_by_the_names_in_the_source() -> None:
    source = """
    template <typename T, int N> __global__ void fill(T* x) { x[N] = T(N); }
    namespace deep { __global__ void inner(int* x) { *x = 1; } }
    extern "C" __global__ void plain(int* x) { *x = 2; }
    """
    kernels = ("fill<float, 3>", "deep::inner", "plain")
    cubin = nvrtc.compile_cubin(build(source, *kernels), "sm_90")
    assert cubin.lowered["plain"] == "plain"
    assert cubin.lowered["fill<float, 3>"].startswith("_Z4fillIfLi3EE")
    assert cubin.lowered["deep::inner"].startswith("_ZN4deep5inner")
    assert all(cubin.resources[k].registers > 0 for k in kernels)
    again = nvrtc.compile_cubin(build(source, *kernels), "sm_90")
    assert (again.lowered, again.resources) == (cubin.lowered, cubin.resources)


def test_specific_architectures_are_asked_for_where_they_exist() -> None:
    source = 'extern "C" __global__ void k() { asm volatile("wgmma.fence.sync.aligned;"); }'
    assert nvrtc.compile_cubin(build(source, "k", arch_specific=True), "sm_90").arch == "sm_90a"
    with pytest.raises(UserError, match="wgmma"):
        nvrtc.compile_cubin(build(source, "k"), "sm_90")
    assert nvrtc.compile_cubin(build(arch_specific=True), "sm_80").arch == "sm_80"


def test_an_error_names_file_line_and_text() -> None:
    source = (
        "/*---\nidea = 'x'\n---*/\n__global__ void k(float* x) {\n  int a = nowhere;\n  float b = \"s\";\n}\n"
    )
    with pytest.raises(UserError) as caught:
        nvrtc.compile_cubin(build(source, "k"), "sm_90")
    lines = str(caught.value).splitlines()
    assert lines[0] == "kernels/mine.cu does not compile for sm_90:"
    assert lines[1] == '  kernels/mine.cu:5: identifier "nowhere" is undefined'
    assert lines[2] == "    5 | int a = nowhere;"
    assert lines[3].startswith("  kernels/mine.cu:6: ")
    assert "Traceback" not in str(caught.value)


def test_only_the_first_errors_are_shown_and_the_rest_counted() -> None:
    source = "__global__ void k() {\n" + "".join(f"  a{i} = {i};\n" for i in range(9)) + "}\n"
    with pytest.raises(UserError, match="and 6 more") as caught:
        nvrtc.compile_cubin(build(source, "k"), "sm_90")
    assert "a2" in str(caught.value)
    assert "a3" not in str(caught.value)


def test_errors_of_the_assembler_are_reported() -> None:
    source = 'extern "C" __global__ void k(int* x) { __shared__ int s[20000]; s[*x] = *x; *x = s[1]; }'
    with pytest.raises(
        UserError, match=r"mine\.cu does not compile for sm_90:\n  ptxas .*too much shared data"
    ):
        nvrtc.compile_cubin(build(source, "k"), "sm_90")


def test_a_header_that_nobody_has_is_named() -> None:
    with pytest.raises(UserError, match="<cstdnothing>"):
        nvrtc.compile_cubin(build("#include <cstdnothing>\n" + SOURCE), "sm_90")


def test_std_has_the_integers_whatever_is_included_and_what_it_lacks_is_no_fault_of_the_file() -> None:
    source = 'extern "C" __global__ void k(std::%s* x) { x[0] = {}; }\n'
    for name in ("size_t", "ptrdiff_t", "uint32_t", "int64_t"):
        nvrtc.compile_cubin(build(source % name, "k"), "sm_90")
    with pytest.raises(CompileError) as lacks:
        nvrtc.compile_cubin(build(source % "shared_ptr<int>", "k"), "sm_90")
    assert lacks.value.missing == "shared_ptr"


@pytest.mark.parametrize(
    ("given", "message"),
    [
        (build(SOURCE, "missing"), r"has no kernel named 'missing': it defines reverse"),
        (build(options=("--frobnicate",)), r"option '--frobnicate' is not known"),
        (build(options=("--ftz=maybe",)), r"option '--ftz=maybe' is not known"),
    ],
)
def test_a_build_that_makes_no_sense(given: Build, message: str) -> None:
    with pytest.raises(UserError, match=message):
        nvrtc.compile_cubin(given, "sm_90")


@pytest.mark.parametrize(
    ("arch", "message"), [("sm_52", "cannot compile for sm_52"), ("hopper", "write it as")]
)
def test_an_architecture_that_cannot_be_compiled_for(arch: str, message: str) -> None:
    with pytest.raises(UserError, match=message):
        nvrtc.compile_cubin(build(), arch)


def test_options_reach_the_compiler() -> None:
    source = 'extern "C" __global__ void k(float* x) { *x = expf(x[0]) / x[1]; }'
    exact = nvrtc.compile_cubin(build(source, "k"), "sm_90")
    fast = nvrtc.compile_cubin(build(source, "k", options=("--use_fast_math",)), "sm_90")
    assert len(fast.path.read_bytes()) < len(exact.path.read_bytes())


# ---- the cache ----


def test_a_second_compilation_comes_from_the_cache(compilations: list[str]) -> None:
    first = nvrtc.compile_cubin(build(), "sm_90")
    second = nvrtc.compile_cubin(build(), "sm_90")
    assert compilations == ["sm_90"]
    assert second == first


@pytest.mark.parametrize(
    "changed",
    [
        build(SOURCE + "// more\n"),
        build(defines=(("SIZE", "64"),)),
        build(options=("--use_fast_math",)),
        build(SOURCE + "__global__ void other() {}", "reverse", "other"),
    ],
    ids=["source", "macro", "option", "kernels"],
)
def test_whatever_determines_the_code_is_in_the_key(changed: Build, compilations: list[str]) -> None:
    nvrtc.compile_cubin(build(SOURCE), "sm_90")
    nvrtc.compile_cubin(changed, "sm_90")
    assert len(compilations) == 2


def test_an_edited_include_of_an_include_recompiles(tmp_path: Path, compilations: list[str]) -> None:
    (tmp_path / "outer.cuh").write_text('#include "inner.cuh"\n')
    (tmp_path / "inner.cuh").write_text("#define TIMES 2\n")
    source = '#include "outer.cuh"\nextern "C" __global__ void k(int* x) { *x *= TIMES; }'
    given = build(source, "k", include=(str(tmp_path),))
    before = nvrtc.compile_cubin(given, "sm_90")
    (tmp_path / "inner.cuh").write_text("#define TIMES 3\n")
    after = nvrtc.compile_cubin(given, "sm_90")
    assert len(compilations) == 2
    assert before.path.read_bytes() != after.path.read_bytes()


def test_a_file_beside_the_kernel_can_be_included(tmp_path: Path) -> None:
    (tmp_path / "beside.cuh").write_text("#define ONE 1\n")
    source = '#include "beside.cuh"\nextern "C" __global__ void k(int* x) { *x = ONE; }'
    cubin = nvrtc.compile_cubin(build(source, "k", origin=str(tmp_path / "mine.cu")), "sm_90")
    assert cubin.resources["k"].registers > 0


@pytest.mark.parametrize(
    "damage", ["truncate code", "delete code", "garbage entry", "entry of another shape"]
)
def test_a_damaged_entry_is_rebuilt(damage: str, own_cache: Path, compilations: list[str]) -> None:
    sound = nvrtc.compile_cubin(build(), "sm_90")
    image = sound.path.read_bytes()
    entry = next(own_cache.glob("*.json"))
    if damage == "truncate code":
        sound.path.write_bytes(image[:100])
    elif damage == "delete code":
        sound.path.unlink()
    elif damage == "garbage entry":
        entry.write_text("{")
    else:
        entry.write_text(json.dumps({"sha256": 3}))
    again = nvrtc.compile_cubin(build(), "sm_90")
    assert len(compilations) == 2
    assert again.path.read_bytes() == image
    assert nvrtc.compile_cubin(build(), "sm_90") == again
    assert len(compilations) == 2


def test_code_that_somebody_else_could_have_put_there_is_not_loaded(own_cache: Path, compilations: list[str]) -> None:
    sound = nvrtc.compile_cubin(build(), "sm_90")
    planted = own_cache.parent / "planted.cubin"
    planted.write_bytes(b"planted")
    entry = next(own_cache.glob("*.json"))
    record = json.loads(entry.read_text())
    entry.write_text(json.dumps(record | {"file": "../planted.cubin", "sha256": hashlib.sha256(b"planted").hexdigest()}))
    assert nvrtc.compile_cubin(build(), "sm_90").path == sound.path and len(compilations) == 2
    for mode, who in ((0o777, "every user"), (0o775, "its group")):
        own_cache.chmod(mode)
        if os.getuid() == 0:
            os.chown(own_cache, 0, 12345)  # a group that is nobody's own
        elif who == "its group":
            continue
        with pytest.raises(UserError, match=f"can be written by {who}"):
            nvrtc.compile_cubin(build(), "sm_90")


def test_processes_that_compile_the_same_at_once_agree(own_cache: Path) -> None:
    with multiprocessing.get_context("spawn").Pool(2) as pool:
        cubins: list[Cubin] = pool.starmap(nvrtc.compile_cubin, [(build(), "sm_90")] * 4)
    assert len({c.path.read_bytes() for c in cubins}) == 1
    assert not list(own_cache.glob(".*.part"))


def test_a_cache_that_cannot_be_written_is_reported(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "file").write_text("not a folder")
    monkeypatch.setenv("RUNG_CACHE", str(tmp_path / "file"))
    with pytest.raises(UserError, match=r"cannot be written .*: set RUNG_CACHE"):
        nvrtc.compile_cubin(build(), "sm_90")


def test_what_another_machine_compiled_is_read_where_it_lies(
    tmp_path: Path, own_cache: Path, compilations: list[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    first = nvrtc.compile_cubin(build(), "sm_90")
    before = sorted((path.name, path.stat().st_mtime_ns) for path in own_cache.glob("*.*"))
    monkeypatch.setenv("RUNG_CACHE", str(tmp_path / "new"))
    monkeypatch.setenv("RUNG_SHARED_CACHE", str(own_cache.parent))
    found = headers.find(nvrtc.version())
    elsewhere = replace(found, source="toolkit /elsewhere", folders=tuple(str(tmp_path) for _ in found.folders))
    monkeypatch.setattr(headers, "find", lambda version: elsewhere)
    second = nvrtc.compile_cubin(build(), "sm_90")
    assert (second.path, second.resources) == (first.path, first.resources) and len(compilations) == 1
    monkeypatch.setattr(headers, "find", lambda version: found)
    nvrtc.compile_cubin(build(SOURCE + "// more\n"), "sm_90")
    assert len(list((tmp_path / "new" / "cubin").glob("*.json"))) == 1
    assert sorted((path.name, path.stat().st_mtime_ns) for path in own_cache.glob("*.*")) == before
    own_cache.chmod(0o777)
    with pytest.raises(UserError, match="can be written by every user"):
        nvrtc.compile_cubin(build(), "sm_90")


# ---- CUDA's own headers ----


@pytest.mark.parametrize("header", headers.NEEDED)
def test_the_headers_that_kernels_may_include_resolve(header: str) -> None:
    cubin = nvrtc.compile_cubin(build(f"#include <{header}>\n{SOURCE}"), "sm_90")
    assert cubin.resources["reverse"].static_shared == 512


def test_headers_come_from_a_toolkit_that_is_pointed_at(monkeypatch: pytest.MonkeyPatch) -> None:
    toolkit = Path("/usr/local/cuda/include")
    if not (toolkit / "cuda_fp16.h").is_file():
        pytest.skip("no CUDA toolkit is installed")
    monkeypatch.setenv(headers.OVERRIDE, str(toolkit))
    found = headers.find(nvrtc.version())
    assert found.folders[0] == str(toolkit.resolve())
    assert found.missing == ()
    cubin = nvrtc.compile_cubin(build(f"#include <mma.h>\n{SOURCE}"), "sm_90")
    assert cubin.resources["reverse"].static_shared == 512


def test_a_folder_without_headers_is_named(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv(headers.OVERRIDE, str(tmp_path))
    assert headers.find(nvrtc.version()).missing == tuple(headers.NEEDED)
    with pytest.raises(UserError, match=rf"CUDA's headers come from: {headers.OVERRIDE}={tmp_path}"):
        nvrtc.compile_cubin(build(f"#include <cuda_fp16.h>\n{SOURCE}"), "sm_90")


def test_while_a_thread_compiles_others_compile_in_processes(monkeypatch: pytest.MonkeyPatch) -> None:
    fresh = nvrtc.compile_cubin(build(), "sm_90", again=True).path.read_bytes()
    processes: list[int] = []
    run = subprocess.run

    def counted(*args: object, **more: object) -> object:
        done = run(*args, **more)  # type: ignore[call-overload]
        processes.append(done.returncode)
        return done

    monkeypatch.setattr(nvrtc.subprocess, "run", counted)
    monkeypatch.setattr(nvrtc, "processors", lambda: 8)
    with nvrtc._COMPILING:
        made = nvrtc.compile_cubin(build(), "sm_90", again=True)
    assert processes == [0]
    assert made.path.read_bytes() == fresh
    assert made.resources["reverse"].static_shared == 512

    broken = threading.Thread(target=nvrtc._COMPILING.release)  # as the thread that compiled does
    nvrtc._COMPILING.acquire()
    monkeypatch.setattr(nvrtc.subprocess, "run", lambda *a, **b: (broken.start(), counted(*a, **b))[1])
    with pytest.raises(CompileError, match=r"mine\.cu"):
        nvrtc.compile_cubin(build(SOURCE.replace("float* x", "flot* x")), "sm_90")
    assert processes[1:] == [1]
