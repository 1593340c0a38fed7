"""Right rungs with one change each that only some shape, number, tunable, run or access shows."""

from __future__ import annotations

import re
import time
from dataclasses import dataclass
from pathlib import Path

import pytest

from rung.check.judge import check
from rung.check.report import THOROUGH, Report
from rung.check.runner import LocalRunner
from rung.rungs import catalogue
from rung.rungs.numbers import sizes_in, sizes_in_python

TRUNCATE = "\n__device__ float cut(float v) { return __int_as_float(__float_as_int(v) & 0xffff0000); }"
INCLUDED = '#include "rung.cuh"'


@dataclass(frozen=True)
class Wrong:
    """A rung, what of its text becomes what, and what its verdict says."""

    name: str
    of: str
    changes: tuple[tuple[str, str], ...]
    message: str
    dtype: str = "f32"


WRONG = [
    # ---- a term, a scalar or a parameter that no input needed
    Wrong("maximum of 128 keys", "attention/12", (("largest = fmaxf(largest, weights[t2]);", "if (t2 < 128) largest = fmaxf(largest, weights[t2]);"),), "climb over many keys"),
    Wrong("maximum of 512 columns", "softmax/05", (("m = fmaxf(m, scale * to_float(in[s]));", "if (s < 512) m = fmaxf(m, scale * to_float(in[s]));"),), "climb over many columns"),
    Wrong("maximum of 132 cached keys", "cached_attention/02", (("largest = fmaxf(largest, row[i]);", "if (i < 132) largest = fmaxf(largest, row[i]);"),), "one key far above many"),
    Wrong("scale of at most one", "cached_attention/04", (("scale * to_float(query[hs])", "fminf(scale, 1.0f) * to_float(query[hs])"),), "climbing scores"),
    Wrong("largest rstd", "layernorm/07", (("rsqrtf(warp_sum(squares) / C + eps)", "fminf(rsqrtf(warp_sum(squares) / C + eps), 400.0f)"),), "a tiny eps"),
    Wrong("eps of even widths", "layernorm/07", (("+ eps)", "+ (C % 128 == 0 ? 1e-5f : eps))"),), "three batches"),
    Wrong("scale of heads of 64", "attention/12", (("scale * sum;", "(HS == 64 ? 0.125f : scale) * sum;"),), "heads of 64"),
    Wrong("window of at most 256", "local_attention/02", (("t1 - window + 1", "t1 - min(window, 256) + 1"),), "many keys"),
    Wrong("at most 96 first keys", "local_attention/07", (("Seen seen(t1, window, globals);", "Seen seen(t1, window, min(globals, 96));"),), "many first keys"),
    Wrong("last token not kept", "cached_projection/01", (("if (kept) *kept", "if (kept && (t < T - 1 || past > 0 || MAXT == T)) *kept"),), "first pass"),
    # ---- real sizes
    Wrong("128 rows", "layernorm/05", (("x + int64_t(blockIdx.x) * C", "x + int64_t(blockIdx.x & 127) * C"),), "300 rows"),
    Wrong("128 rows of a product", "matmul/03", (("if (row < M && col < OC) out", "if (row < min(M, 256) && col < OC) out"),), "300 rows"),
    Wrong("columns of 15 bits", "softmax/05", (("s < S;", "s < min(S, 32767);"),), "the vocabulary's columns"),
    Wrong("512 tokens", "attention/12", (("causal ? t1 + 1", "causal ? min(t1 + 1, 512)"),), "gpt2's context"),
    Wrong("eight heads", "attention/12", (("+ nh * stride_NH;", "+ (nh & 7) * stride_NH;"),), "twelve heads, two batches"),
    Wrong("targets of 16 bits", "token_logprob/02", (("const int target = targets", "const int target = (unsigned short)targets"),), "beyond 16 bits"),
    # ---- numbers
    Wrong("scores up to 150", "attention/12", (("weights[t2] = scale * sum;", "weights[t2] = fminf(scale * sum, 150.0f);"),), "scores far apart", "bf16"),
    Wrong("copied with 20 bits", "copy/02", (("out[i] = x[i];", "out[i] = from_float<Real>(__int_as_float(__float_as_int(to_float(x[i])) & ~15));"),), "only moved"),
    Wrong("the smallest are zero", "copy/02", (("out[i] = x[i];", "out[i] = fabsf(to_float(x[i])) < 1.2e-38f ? from_float<Real>(0.0f) : x[i];"),), "down to float32's end"),
    Wrong("NaN is lost", "transpose/02", (("tile[k][threadIdx.x] = x[(size_t)r * C + c];", "tile[k][threadIdx.x] = fmaxf(x[(size_t)r * C + c], -INFINITY);"),), "infinities and NaN"),
    Wrong("sine and cosine forgotten", "pointwise/04", (("sine * sine + cosine * cosine", "1.0f"),), "infinities and NaN"),
    Wrong("cut off", "layernorm/07", ((INCLUDED, INCLUDED + TRUNCATE), ("from_float<Real>((to_float(in[c]) - mean) * rstd * to_float(weight[c]) + to_float(bias[c]))", "from_float<Real>(cut((to_float(in[c]) - mean) * rstd * to_float(weight[c]) + to_float(bias[c])))")), "cut off, not rounded", "bf16"),
    Wrong("sums of 16 bits", "reduce/05", (("sum += to_float(row[n]);", "sum = to_float(from_float<Real>(sum + to_float(row[n])));"),), "relative error", "f16"),
    # ---- tunables and needs
    Wrong("a tunable at one size", "layernorm/05", (("c < C; c += BLOCK) sum", "c < C - (BLOCK == 4 && C == 67); c += BLOCK) sum"),), "with BLOCK=4"),
    Wrong("needs that hide an eps", "layernorm/07", (('"BLOCK % 32 == 0"', '["BLOCK % 32 == 0", "C % 64 == 0", "eps == 1e-5"]'), ("+ eps)", "+ 3e-5f)")), "variances"),
    Wrong("needs that hide large scores", "softmax/05", (('"BLOCK % 32 == 0"', '["BLOCK % 32 == 0", "scale != 0.3", "S != 130"]'), ("m = warp_max(m);", "m = 0.0f;")), "far below zero, at"),
    # ---- later runs
    Wrong("weights kept from the first run", "layernorm/07", (('extern "C"', '__device__ float kept[4096];\n__device__ const void* of[4096];\nextern "C"'), ("to_float(weight[c])", "(of[c] == weight ? kept[c] : (of[c] = weight, kept[c] = to_float(weight[c])))")), "off"),
    # ---- races
    Wrong("two blocks add", "reduce/07", (("atomicAdd(&out[blockIdx.x], sum)", "out[blockIdx.x] += N % 4 == 0 || gridDim.y == 1 ? sum : sum"),), "has written"),
    Wrong("a sum fetched and put back", "reduce/07", (("atomicAdd(&out[blockIdx.x], sum)", "atomicExch(&out[blockIdx.x], atomicExch(&out[blockIdx.x], 0.0f) + sum)"),), "a race"),
    Wrong("no fence before the count", "reduce/08", (("__threadfence();  // the sum", "// the sum"),), "parameter 'partial'"),
    Wrong("no fence at one block size", "reduce/08", (("__threadfence();  // the sum", "if (BLOCK != 128) __threadfence();  // the sum"),), "BLOCK=128: "),
    Wrong("a sum fetched and put back without a bias", "matmul/03", (("if (row < M && col < OC) out", "__shared__ float all; if (!bias) { all += sum; sum = sum + 0.0f * (all == all); } if (row < M && col < OC) out"),), "with no barrier"),
    # ---- sizes that no case has
    Wrong("one width", "matmul/03", (("c0 < C;", "c0 < (C == 768 ? 736 : C);"),), "with C=768"),
    Wrong("steps of seven bits", "divergence/03", (("s < STEPS;", "s < int(unsigned(STEPS) << 25 >> 25);"),), "STEPS="),
    Wrong("deep products of several tiles", "matmul/03", (("c0 < C;", "c0 < (C > 99 * 11 && M > 33 && OC > 17 ? C / 2 : C);"),), ", with "),
    Wrong("one width, calculated", "matmul/03", (("c0 < C;", "c0 < (C == 3 * THIRD ? 736 : C);"), ('extern "C"', 'constexpr int THIRD = 1 << 8;\nextern "C"')), "with C=768"),
    Wrong("two sizes together", "transpose/02", (("out[(size_t)c * R + r] = tile", "out[(size_t)c * R + r] = R == 768 && C == 2304 && r == 767 ? Real(0.0f) : tile"),), "with R=768, C=2304"),
    Wrong("five numbers of one size", "transpose/02", (("out[(size_t)c * R + r] = tile", "out[(size_t)c * R + r] = R == 778 && c == 0 && r < 5 ? Real(0.0f) : tile"),), "with R=778"),
    Wrong("all of a large vocabulary", "sample/03", (("s.top_k > 0 && s.top_k < V;", "s.top_k > 0 && s.top_k < V && V < 30000;"),), "vocabulary"),
    Wrong("all of one vocabulary", "sample/01", (("s.top_k > 0 && s.top_k < V)", "s.top_k > 0 && s.top_k < V && V != 2311)"),), "with V=2311"),
    Wrong("rows from 700 on", "softmax/01", (("S - T + row % T + 1", "S - T + min(row % T, 700) + 1"),), "with T=702, S=702"),
    Wrong("one row without a bias", "matmul/03", (("if (row < M && col < OC) out", "if (!bias && M == 1) sum *= 1.5f; if (row < M && col < OC) out"),), "one: out"),
    Wrong("a counter of twelve bits", "reduce/08", (("zero  = true", 'zero  = "once"'), ("atomicAdd(&finished[blockIdx.x], 1) ==", "(atomicAdd(&finished[blockIdx.x], 1) & 4095) % gridDim.y ==")), "after 20 runs"),
    Wrong("a maximum that begins anywhere", "softmax/01", (("float m = -INFINITY;", "float m;"),), "far below zero"),
    Wrong("scores below a maximum that begins at -5000", "cached_attention/03", (("    m = -INFINITY;", "    m = -5000.0f;"),), "at -100000"),
    Wrong("a maximum that begins at -5000", "softmax/01", (("float m = -INFINITY;", "float m = -5000.0f;"),), "at -100000"),
    Wrong("a wait that is never reached", "layernorm/14", (("pdl_wait();", "if (C < 0) pdl_wait();"),), "no thread waits"),
    Wrong("no wait for the kernel ahead", "layernorm/14", (("pdl_wait();", ""),), "waits nowhere"),
    Wrong("a wait behind the loads", "layernorm/14", (("    pdl_wait();", ""), ("    // The unrounded", "    pdl_wait();  // The unrounded")), "reads what the launch ahead may still write, before it waits for that launch (pdl_wait): parameter 'x'"),
    Wrong("a store before the wait", "layernorm/14", (("pdl_wait();", "if (lane_id() == 0) out[first] = from_float<Real>(0.0f); pdl_wait();"),), "writes what the launch ahead may still write"),
    Wrong("a wait behind the other launch's results", "sample/04", (("    const int b = blockIdx.x;\n    pdl_wait();", "    const int b = blockIdx.x;"), ("    int token;\n", "    pdl_wait();\n    int token;\n")), "waits for that launch (pdl_wait): parameter 'maxima'"),
]  # fmt: skip


def verdict_on(wrong: Wrong, folder: Path) -> Report:
    rung = catalogue.find(wrong.of)
    assert rung.path is not None
    text = rung.path.read_text()
    for before, after in wrong.changes:
        assert before in text, before
        text = text.replace(before, after)
    path = folder / "wrong.cu"
    path.write_text(re.sub(r"^from .*\n", "", text, flags=re.MULTILINE) if "inherit" not in text else text)
    for header in rung.path.parent.glob("*.cuh"):
        (folder / header.name).symlink_to(header)
    changed = catalogue.rung_from_file(rung.operation, path)
    return check(changed, wrong.dtype, device="emulator", effort=THOROUGH, host=LocalRunner("emulator"))


@pytest.mark.slow
@pytest.mark.parametrize("wrong", WRONG, ids=lambda wrong: wrong.name)
def test_is_refused_for_the_right_reason(wrong: Wrong, tmp_path: Path) -> None:
    report = verdict_on(wrong, tmp_path)
    assert report.verdict == "failed", report
    assert wrong.message in f"{report.case}: {report.reason}"


@pytest.mark.slow
def test_a_files_name_changes_no_verdict(tmp_path: Path) -> None:
    """A fault in another setting of the tunables names the file: one called room.cu was taken for a lack of room."""
    folder = tmp_path / "room"
    folder.mkdir()
    report = verdict_on(next(wrong for wrong in WRONG if wrong.name == "no fence at one block size"), folder)
    assert report.verdict == "failed" and "BLOCK=128: " in report.reason, report


@pytest.mark.slow
@pytest.mark.parametrize("name", ["no fence at one block size", "rows from 700 on"])
@pytest.mark.parametrize("pace", [0.3, 2.0, 10.0])
def test_is_refused_by_a_machine_of_any_speed(
    name: str, pace: float, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """How long runs take decides at which cases settings and races are tried: none of that may decide the verdict."""
    busy, real = time.monotonic, time.thread_time
    monkeypatch.setattr(time, "thread_time", lambda: pace * real())
    monkeypatch.setattr(time, "monotonic", lambda: 1000 * busy())
    report = verdict_on(next(wrong for wrong in WRONG if wrong.name == name), tmp_path)
    assert report.verdict == "failed", report


@pytest.mark.parametrize(
    "text",
    [
        "C == 0x300",
        "C == 3u * 256u",
        "C == 2 * (350 + 34)",
        "C == 1 << 8 | C == 3 << 8",
        "constexpr int A = 24, *b;\nconstexpr int D = A * 32;\nif (C == D)",
        "#define A 24\nC % (A * (30 + 2))",
        "const int a{700 + 68};",
        "enum { A = 96 };\nif (C > 8 * A)",
    ],
)
def test_a_calculated_size_is_found(text: str) -> None:
    assert 768 in sizes_in(text)
    assert 768 not in sizes_in(f"/* {text} */ // {text}".replace("\n", " "))


@pytest.mark.parametrize(
    "text",
    [
        "if C == 0x300: pass",
        "C == 3 * 256",
        "C == 2 * (350 + 34)",
        "THIRD = 1 << 8\nC == 3 * THIRD",
        "NEEDS = ['C != 768']",
        "C == 768.0",
        "C == int('768')",
        "TUNE = {'BLOCK': [768, 512]}",
    ],
)
def test_a_size_in_python_is_found(text: str) -> None:
    assert 768 in sizes_in_python(text)
    assert 768 not in sizes_in_python("TUNE = {'BLOCK': [512, 768]}  # 768\nC == 1 << 10**9")


@pytest.mark.parametrize("text", ["const " * 50000, "(1+" * 50000, "x" + " " * 200000, "(" * 99999 + "1", "5%0<<99*1.5"])
def test_sizes_of_any_text_are_found_in_time(text: str) -> None:
    start = time.monotonic()
    assert all(4 < size < 70_000 for size in sizes_in(text))
    assert time.monotonic() - start < 5


@pytest.mark.slow
def test_sizes_that_were_not_tried_are_told(tmp_path: Path) -> None:
    numbers = ", ".join(str(n) for n in range(901, 1401, 10))
    many = ("float m = -INFINITY;", f"const int sizes[] = {{{numbers}}};\n    float m = sizes[T % 2] * -INFINITY;")
    report = verdict_on(Wrong("many sizes", "softmax/01", (many,), ""), tmp_path)
    assert report.verdict == "ok", report
    assert any("sizes that its text names, but that were not all tried: " in note for note in report.notes), report.notes
