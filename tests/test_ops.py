"""rung.ops: every ladder's operation on one's own tensors, and as an operator of torch."""

import pytest
import torch
import torch.nn.functional as F

import rung
from rung import RungError


def test_layernorm_is_torchs_for_tensors_of_any_rank() -> None:
    weight, bias = torch.randn(48), torch.randn(48)
    for shape in ((48,), (5, 48), (2, 5, 48), (2, 3, 5, 48)):
        x = torch.randn(shape)
        out = rung.ops.layernorm(x, weight, bias)
        assert out.shape == x.shape
        torch.testing.assert_close(out, F.layer_norm(x, (48,), weight, bias))


@pytest.mark.parametrize("which", ["best", "7", "07_warp", "torch"])
def test_the_rung_is_the_callers_choice(which: str) -> None:
    x, weight, bias = torch.randn(3, 64), torch.randn(64), torch.randn(64)
    out = rung.ops.layernorm(x, weight, bias, eps=0.5, rung=which)
    torch.testing.assert_close(out, F.layer_norm(x, (64,), weight, bias, 0.5), rtol=1e-5, atol=1e-5)


def test_optional_inputs_and_outputs() -> None:
    x, residual, weight, bias = torch.randn(3, 64), torch.randn(3, 64), torch.randn(64), torch.randn(64)
    out, total = rung.ops.layernorm(x, weight=weight, bias=bias, residual=residual, also=["sum"])
    torch.testing.assert_close(total, x + residual)
    torch.testing.assert_close(out, F.layer_norm(x + residual, (64,), weight, bias), rtol=1e-5, atol=1e-5)


def test_attention_takes_heads_that_were_made_apart() -> None:
    q, k, v = (torch.randn(2, 3, 17, 16) for _ in range(3))
    expected = F.scaled_dot_product_attention(q, k, v, is_causal=True).transpose(1, 2).flatten(2)
    torch.testing.assert_close(rung.ops.attention(q=q, k=k, v=v), expected, rtol=1e-4, atol=1e-5)
    packed = torch.cat([t.transpose(1, 2).flatten(2) for t in (q, k, v)], -1)
    torch.testing.assert_close(rung.ops.attention(packed, NH=3), expected, rtol=1e-4, atol=1e-5)
    full = F.scaled_dot_product_attention(q, k, v).transpose(1, 2).flatten(2)
    torch.testing.assert_close(rung.ops.attention(packed, NH=3, causal=0), full, rtol=1e-4, atol=1e-5)


def test_the_result_may_be_given_a_place() -> None:
    x, weight, bias = torch.randn(2, 7, 37), torch.randn(13, 37), torch.randn(13)
    out = torch.empty(2, 7, 13)
    assert rung.ops.matmul(x, weight, bias, out=out, rung=2) is out
    torch.testing.assert_close(out, F.linear(x, weight, bias), rtol=1e-4, atol=1e-4)
    with pytest.raises(RungError, match="`out` must be contiguous"):
        rung.ops.matmul(x, weight, bias, out=torch.empty(2, 7, 12))


def test_a_kernel_of_ones_own(tmp_path) -> None:
    file = tmp_path / "mine.cu"
    file.write_text(
        '/*---\nidea = "Twice."\ndtypes = ["f32"]\n[[launch]]\nkernel = "twice"\ngrid = "ceil_div(N, 64)"\nblock = 64\n---*/\n'
        '#include "rung.cuh"\nextern "C" __global__ void twice(const float* x, float* out, int N)\n'
        "{ int i = blockIdx.x * 64 + threadIdx.x; if (i < N) out[i] = 2 * x[i]; }\n"
    )
    x = torch.randn(3, 50)
    torch.testing.assert_close(rung.ops.copy(x, rung=file), 2 * x)


@pytest.mark.parametrize(
    ("call", "message"),
    [
        (lambda: rung.ops.layernorm(torch.randn(3, 8), torch.randn(8)), "needs the tensor bias"),
        (lambda: rung.ops.layernorm(torch.randn(3, 8), torch.randn(7), torch.randn(8)), "weight has the shape"),
        (lambda: rung.ops.layernorm(torch.randn(3, 8).double(), torch.randn(8), torch.randn(8)), "dtype"),
        (lambda: rung.ops.gelu(torch.randn(3, 8), epsilon=1), "no argument 'epsilon'"),
        (lambda: rung.ops.gelu(torch.randn(3, 8), also=["mean"]), "no optional output"),
        (lambda: rung.ops.attention(torch.randn(1, 5, 96)), "NH"),
        (lambda: rung.ops.gelu(3.0), "takes a tensor as x"),
        (lambda: rung.ops.embedding(torch.zeros(3), torch.randn(5, 8), torch.randn(4, 8)), "takes tokens as int32"),
    ],
)
def test_mistakes_are_reported_in_one_sentence(call, message: str) -> None:
    with pytest.raises(RungError, match=message):
        call()


def test_operations_can_be_found() -> None:
    assert {"layernorm", "matmul", "attention", "softmax"} <= set(dir(rung.ops)) and "ops" in dir(rung)
    assert "NH" in (rung.ops.attention.__doc__ or "") and "layernorm" in repr(rung.ops.layernorm)
    with pytest.raises(AttributeError, match="no operation 'layernrm'"):
        _ = rung.ops.layernrm


@pytest.mark.parametrize("name", ["layernorm", "matmul", "softmax"])
def test_torchs_own_test_of_operators(name: str) -> None:
    tensors = {
        "layernorm": [torch.randn(2, 3, 8), torch.randn(8), torch.randn(8), None],
        "matmul": [torch.randn(2, 3, 8), torch.randn(5, 8), torch.randn(5), None],
        "softmax": [torch.randn(1, 2, 4, 4)],
    }[name]
    _ = getattr(rung.ops, name)
    torch.library.opcheck(getattr(torch.ops.rung, name), (*tensors, [], [], "best", ["out"], False))


def test_it_may_stand_in_a_compiled_function() -> None:
    weight, bias = torch.randn(16), torch.randn(16)

    def block(x: torch.Tensor) -> torch.Tensor:
        return rung.ops.gelu(rung.ops.layernorm(x, weight, bias)) * 2

    x = torch.randn(4, 16)
    compiled = torch.compile(block, backend="aot_eager")
    torch.testing.assert_close(compiled(x), block(x))
    torch.testing.assert_close(block(x), 2 * F.gelu(F.layer_norm(x, (16,), weight, bias), approximate="tanh"))


@pytest.mark.gpu
def test_on_a_gpu_in_a_graph_and_on_a_stream() -> None:
    x, weight, bias = (torch.randn(*s, device="cuda", dtype=torch.bfloat16) for s in ((64, 768), (768,), (768,)))
    expected = F.layer_norm(x, (768,), weight, bias)
    torch.testing.assert_close(rung.ops.layernorm(x, weight, bias), expected, rtol=2e-2, atol=2e-2)
    stream = torch.cuda.Stream()
    stream.wait_stream(torch.cuda.current_stream())
    with torch.cuda.stream(stream):
        other = rung.ops.layernorm(x, weight, bias)
    torch.cuda.current_stream().wait_stream(stream)
    torch.testing.assert_close(other, expected, rtol=2e-2, atol=2e-2)
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        out = rung.ops.layernorm(x, weight, bias)
    x.copy_(torch.randn_like(x))
    graph.replay()
    torch.testing.assert_close(out, F.layer_norm(x, (768,), weight, bias), rtol=2e-2, atol=2e-2)


def test_a_plain_softmax_is_torchs() -> None:
    x = torch.randn(4, 5)
    torch.testing.assert_close(rung.ops.softmax(x), torch.softmax(x, -1))
    masked = torch.softmax((0.5 * x).masked_fill(torch.ones(4, 5).triu(2) > 0, -torch.inf), -1)
    torch.testing.assert_close(rung.ops.softmax(x, causal=1, scale=0.5), masked)
