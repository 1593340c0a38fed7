"""What machine code is made of, counted."""

from pathlib import Path

import pytest

from gpuless.compile import nvrtc, sass
from gpuless.launch import Build

LISTING = """
//--------------------- .text.kernel --------------------------
\t.section\t.text.kernel,"ax",@progbits
kernel:
.text.kernel:
        /*0000*/                   LDC R1, c[0x0][0x28] ;
        /*0010*/              @!P0 LDG.E.128.CONSTANT R4, [R2.64] ;
        /*0020*/             @UP0 UIADD3 UR4, UR4, 0x1, URZ ;
        /*0030*/                   STS.64 [R9], R4 ;
        /*0040*/                   BAR.SYNC.DEFER_BLOCKING 0x0 ;
.L_x_1:
        /*0050*/                   FFMA R0, R1, R2, R3 ;
        /*0060*/                   HMMA.16816.F32 R4, R8, R6, R4 ;
        /*0070*/               @P1 BRA `(.L_x_1) ;
        /*0080*/                   STL [R1+0x4], R0 ;
        /*0090*/                   EXIT ;
.L_x_2:
        /*00a0*/                   BRA `(.L_x_2);
        /*00b0*/                   NOP;
.text.second:
        /*0000*/                   EXIT ;
"""


def test_instructions_are_counted_by_class_and_width_and_padding_is_not() -> None:
    assert sass.count(LISTING) == {
        "kernel": {
            "total": 10, "LDC": 1, "LDG": 1, "LDG.128": 1, "other": 2, "STS": 1, "STS.64": 1, "BAR": 1,
            "FFMA": 1, "tensor": 1, "branch": 1, "STL": 1,
        },
        "second": {"total": 1, "other": 1},
    }  # fmt: skip


@pytest.mark.parametrize("arch", ["sm_75", "sm_90", "sm_120"])
def test_a_real_kernel_shows_what_its_source_does(
    arch: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    if sass.disassembler() is None:
        pytest.skip("no nvdisasm is at hand")
    monkeypatch.setenv("RUNG_CACHE", str(tmp_path))
    source = """
    extern "C" __global__ void k(const float4* x, float4* out) {
      __shared__ float4 s[64];
      s[threadIdx.x] = x[threadIdx.x];
      __syncthreads();
      float4 v = s[63 - threadIdx.x];
      v.x = __fmaf_rn(v.x, v.y, v.z) + __shfl_xor_sync(~0u, v.w, 1);
      v.y = __expf(v.y);
      out[threadIdx.x] = v;
    }"""
    mix = sass.instruction_mix(nvrtc.compile_cubin(Build(source, "k.cu", ("k",), ()), arch))["k"]
    for once in ("LDG.128", "STG.128", "LDS.128", "STS.128", "BAR", "SHFL", "FFMA", "MUFU"):
        assert mix[once] == 1, once
    assert "tensor" not in mix
    assert mix["total"] == sum(n for name, n in mix.items() if name != "total" and "." not in name)


def test_labels_become_addresses_and_lines_are_those_of_the_last_comment() -> None:
    listing = """
kernel:
.text.kernel:
\t//## File "/a/sum.cuh", line 7 inlined at "/a/k.cu", line 3
\t//## File "/a/k.cu", line 3
        /*0000*/               @P0 BRA `(.L_x_1) ;
        /*0010*/                   CALL.REL.NOINC `($__internal_0_$divide) ;
\t//## File "/a/k.cu", line 4
        /*0020*/                   BRX R2 -0x30                    (*"BRANCH_TARGETS .L_x_1"*);
.L_x_1:
        /*0030*/                   HGMMA.64x128x16.F32 R24, gdesc[UR4], RZ, !UPT ;
$__internal_0_$divide:
        /*0040*/                   RET.REL.NODEC R2 `(kernel) ;
"""
    stacks, functions = sass._functions(listing, {}, (), {})
    assert stacks == [(("/a/sum.cuh", 7), ("/a/k.cu", 3)), (("/a/k.cu", 4),), ()]
    assert functions["kernel"] == [
        (0x00, "@P0 BRA 0x30", 0), (0x10, "CALL.REL.NOINC 0x40", 0), (0x20, "BRX R2 -0x30", 1),
        (0x30, "HGMMA.64x128x16.F32 R24, gdesc[UR4], RZ, !UPT", 1), (0x40, "RET.REL.NODEC R2 0x0", 2),
    ]  # fmt: skip
    branch = sass.Instruction(0, "@P0 BRA 0x30", stacks[0])
    assert (branch.name, branch.opcode) == ("BRA", "BRA")


def test_functions_in_sections_of_their_own_follow_the_kernel_that_calls_them() -> None:
    listing = """
kernel:
.text.kernel:
        /*0000*/                   MOV R20, 32@lo((kernel + .L_x_1@srel)) ;
        /*0010*/                   CALL.ABS.NOINC `(callee) ;
.L_x_1:
        /*0020*/                   MOV R4, 32@lo(table) ;
        /*0030*/                   MOV R5, 32@lo(stored) ;
callee:
.text.callee:
        /*0000*/                   MOV R20, 32@hi((callee + .L_x_1@srel)) ;
.L_x_1:
        /*0010*/                   RET.REL.NODEC R20 `(callee) ;
stored:
.text.stored:
        /*0000*/                   RET.ABS.NODEC R20 0x0 ;
unused:
.text.unused:
        /*0000*/                   RET.ABS.NODEC R20 0x0 ;
"""
    starts = {"callee": 0x1000000, "stored": 0x1000080, "unused": 0x1000100}
    _, functions = sass._functions(listing, starts, ["stored"], {})
    assert [(at, text) for at, text, _ in functions.pop("kernel")] == [
        (0x00, "MOV R20, 0x20"), (0x10, "CALL.ABS.NOINC 0x1000000"), (0x20, "MOV R4, 32@lo(table)"),
        (0x30, "MOV R5, 0x1000080"), (0x1000000, "MOV R20, 0x0"), (0x1000010, "RET.REL.NODEC R20 0x1000000"),
        (0x1000080, "RET.ABS.NODEC R20 0x0"),
    ]  # fmt: skip
    assert not functions
