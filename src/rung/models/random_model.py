"""GPT-2s of the known sizes with random weights: for measuring without a download."""

from __future__ import annotations

import torch

from rung.errors import RungError
from rung.models.gpt2.config import Config
from rung.models.gpt2.weights import Layer, Linear, Norm, Weights

SIZES = {
    "gpt2": (12, 768, 12),
    "gpt2-medium": (24, 1024, 16),
    "gpt2-large": (36, 1280, 20),
    "gpt2-xl": (48, 1600, 25),
    "distilgpt2": (6, 768, 12),
}


PREFIX = "random:"  # prefix of such a model's name


def requested(model: str) -> Config | None:
    """The config of `random:gpt2` and the like; None if the name is that of a model with real weights."""
    return config_of(model.removeprefix(PREFIX)) if model.startswith(PREFIX) else None


def config_of(name: str) -> Config:
    """The config of one of `SIZES`."""
    if name not in SIZES:
        raise RungError(f"there is no size {name!r}; there are {', '.join(SIZES)}.")
    layers, C, NH = SIZES[name]
    return Config(50257, 1024, C, NH, layers, 4 * C, "gelu_tanh", 1e-5, True, False, True, (50256,))


def weights_of(config: Config, device: str, seed: int = 0) -> Weights:
    """float32 weights, initialised like GPT-2's, except for a larger spread of the embeddings, which makes logits
    distinct."""
    generator = torch.Generator(device=device).manual_seed(seed)

    def draw(*shape: int, std: float = 0.02) -> torch.Tensor:
        return torch.randn(shape, generator=generator, dtype=torch.float32, device=device) * std

    def norm() -> Norm:
        return Norm(1 + draw(config.C, std=0.1), draw(config.C))

    C, F = config.C, config.F
    before_sum = 0.02 / (2 * config.layers) ** 0.5
    wte = Linear(draw(config.vocabulary, C, std=0.05))
    layers = [
        Layer(
            ln_1=norm(),
            qkv=Linear(draw(3 * C, C), draw(3 * C)),
            attn_proj=Linear(draw(C, C, std=before_sum), draw(C)),
            ln_2=norm(),
            fc=Linear(draw(F, C), draw(F)),
            mlp_proj=Linear(draw(C, F, std=before_sum), draw(C)),
        )
        for _ in range(config.layers)
    ]
    return Weights(wte, draw(config.context, C), layers, norm(), wte)
