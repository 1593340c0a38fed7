"""The ladders that teach one effect each: what their stories claim about themselves."""

import pytest
import torch

from rung.dtypes import dtype
from rung.rungs import catalogue
from rung.rungs.cuda import CudaRung

RELU = [rung.name for rung in catalogue.rungs("relu")]


def transfers(name: str) -> int:
    """Arrays that a rung's launches read and write in all: every kernel touches each of its own once."""
    rung = catalogue.find(name)
    assert isinstance(rung, CudaRung)
    return sum(p.pointer for launch in rung.header.launches for p in rung.parameters[launch.kernel])


@pytest.mark.parametrize(
    ("name", "count"),
    [
        ("pointwise/01_five_kernels", 11),
        ("pointwise/02_fused", 2),
        ("recompute/01_op_by_op", 15),
        ("recompute/02_stored", 8),
        ("recompute/03_recomputed", 5),
    ],
)
def test_moves_as_many_arrays_as_the_lecture_counts(name: str, count: int) -> None:
    assert transfers(name) == count


def test_recomputation_is_what_the_cost_model_charges() -> None:
    cost = catalogue.operation("recompute").cost({"N": 1000}, 4)
    assert cost.bytes == transfers("recompute/03_recomputed") * 1000 * 4


def test_three_sigmoids_have_autograds_gradient() -> None:
    x = torch.linspace(-6, 6, 101, dtype=torch.float64, requires_grad=True)
    dy = torch.linspace(2, -1, 101, dtype=torch.float64)
    y = x.sigmoid().sigmoid().sigmoid()
    y.backward(dy)
    ours = catalogue.operation("recompute").reference({"x": x.detach(), "dy": dy}, {"N": 101})
    torch.testing.assert_close(ours["y"], y.detach())
    torch.testing.assert_close(ours["dx"], x.grad)


@pytest.mark.slow
def test_even_springs_swing_on_and_odd_ones_come_to_rest() -> None:
    swing = catalogue.operation("divergence").reference
    x = torch.ones(2, dtype=torch.float64)
    path = torch.stack([swing({"x": x}, {"N": 2, "STEPS": s})["out"] for s in range(1, 1500, 7)])
    early, late = path[:100].abs().amax(0), path[-100:].abs().amax(0)
    assert late[0] > 0.9 * early[0]
    assert late[1] < 0.1 * early[1]


@pytest.mark.parametrize("name", RELU)
def test_relu_lets_nan_through(name: str) -> None:
    x = torch.tensor([1.0, -1.0, float("nan"), -0.0, float("-inf"), float("inf"), float("nan")])
    out = torch.empty_like(x)
    rung = catalogue.find(f"relu/{name}")
    rung.prepare({"x": x, "out": out}, {"N": 7}, dtype("f32"), device="emulator").run()
    torch.testing.assert_close(out, torch.relu(x), equal_nan=True, rtol=0, atol=0)


def test_a_single_running_sum_is_refused_where_it_would_leave_the_bound() -> None:
    linear = catalogue.find("reduce/01_linear")
    assert linear.refusal({"B": 1, "N": 16384}, dtype("f32")) is None
    assert linear.refusal({"B": 1, "N": 16385}, dtype("f32")) == "reduce/01_linear needs N <= 16384"
