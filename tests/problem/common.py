"""Code shared by problems, like utils.py in GPU MODE's repositories."""

import torch


def close(own: torch.Tensor, theirs: torch.Tensor) -> tuple[bool, str]:
    if own.shape != theirs.shape or not torch.allclose(own, theirs, rtol=1e-4, atol=1e-4):
        return False, "mismatch found! custom implementation doesn't match reference"
    return True, ""
