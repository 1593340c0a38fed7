"""The lecture's worked example of backpropagation: a loss of (w . phi - y)^2 at w = [3, 1], phi = [1, 2], y = 2."""

from __future__ import annotations

import torch


def test_the_worked_examples_gradient() -> None:
    phi, y = torch.tensor([1.0, 2.0]), 2.0
    w = torch.tensor([3.0, 1.0], requires_grad=True)
    product = w @ phi
    residual = product - y
    loss = residual**2
    assert (product.item(), residual.item(), loss.item()) == (5, 3, 9)  # forward, from the leaves to the root

    of_residual = 2 * residual.item()  # backward, from the root to the leaves: d loss / d node
    of_product = of_residual * 1
    of_w = [of_product * x for x in phi.tolist()]
    loss.backward()
    assert of_w == [6, 12] and w.grad is not None and w.grad.tolist() == of_w
