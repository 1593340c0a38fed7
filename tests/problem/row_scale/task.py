import torch

input_t = tuple[torch.Tensor, torch.Tensor, float]
output_t = torch.Tensor
