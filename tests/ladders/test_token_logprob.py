"""A token's score does not depend on its neighbours, bit for bit."""

import pytest
import torch

import rung


@pytest.mark.parametrize("which", ["01_naive", "02_block", "03_tiles", "04_tensor_cores", "05_triton"])
def test_a_row_has_the_same_bits_alone_and_in_any_company(which: str) -> None:
    dtype = torch.float32 if which < "04" else torch.bfloat16
    generator = torch.Generator().manual_seed(3)
    x = torch.randn(1, 70, 32, generator=generator).to(dtype)
    weight = torch.randn(300, 32, generator=generator).to(dtype)
    targets = torch.randint(300, (1, 70), generator=generator, dtype=torch.int32)

    def scores(rows: list[int]) -> torch.Tensor:
        out = rung.ops.token_logprob(x[:, rows].contiguous(), weight, targets[:, rows].contiguous(), rung=which)
        return torch.stack([t.flatten().float() for t in out], 1)

    together = scores(list(range(70)))
    assert torch.equal(scores([5]), together[5:6])
    assert torch.equal(scores([69, 5, 33]), together[[69, 5, 33]])
    truth = (x[0].double() @ weight.double().T).log_softmax(-1).gather(1, targets[0, :, None].long())
    torch.testing.assert_close(together[:, :1].double(), truth, rtol=1e-4, atol=1e-4)
