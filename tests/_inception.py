"""An Inception network with random weights, written to a file as a user would keep the published one."""

from pathlib import Path

import torch

from tm_bandit.extractors.inception_network import _blank_state


def random_weights_file(folder: Path, seed: int = 0) -> Path:
    """Write random weights of the right names and shapes, scaled so that activations neither vanish nor explode."""
    path = Path(folder) / f"random-inception-{seed}.pth"
    if path.exists():
        return path
    generator = torch.Generator().manual_seed(seed)
    state = {}
    for name, value in _blank_state().items():
        if name.endswith(("running_var", "bn.weight")):
            state[name] = torch.rand(value.shape, generator=generator) + 0.5
        elif value.ndim >= 2:
            fan_in = value[0].numel()
            state[name] = torch.randn(value.shape, generator=generator) * (2.0 / fan_in) ** 0.5
        elif value.is_floating_point():
            state[name] = torch.randn(value.shape, generator=generator) * 0.1
        else:
            state[name] = value
    torch.save(state, path)
    return path


def random_images(num: int, side: int = 32, seed: int = 0) -> torch.Tensor:
    """Smooth coloured noise: neighbouring pixels agree, as in pictures."""
    generator = torch.Generator().manual_seed(seed)
    coarse = torch.rand(num, 3, 4, 4, generator=generator)
    fine = torch.nn.functional.interpolate(coarse, size=(side, side), mode="bilinear")
    return (fine * 255).byte()
