"""The demo's generative model."""

import torch

from tm_bandit.demo.flow import DigitFlow


def test_flow_samples_images_and_repeats_itself():
    torch.manual_seed(0)
    model = DigitFlow(width=16, depth=1)
    draws = [model.sample(4, steps=2, generator=torch.Generator().manual_seed(seed)) for seed in (1, 1, 2)]
    assert draws[0].shape == (4, 1, 8, 8)
    assert 0 <= draws[0].min() <= draws[0].max() <= 1
    assert torch.equal(draws[0], draws[1])
    assert not torch.equal(draws[0], draws[2])
    guided = model.sample(4, steps=2, guidance_scale=3.0, generator=torch.Generator().manual_seed(1))
    assert not torch.equal(guided, draws[0])
