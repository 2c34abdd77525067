"""The eigenbasis of a reference."""

import pytest
import torch

from tm_bandit.functional import (
    FrechetBasis,
)


@pytest.mark.parametrize("dim", [256, 300, 512, 768])
@pytest.mark.parametrize("count", [0, 1, 2, 5, 64, 65])
def test_few_rows_are_rotated_as_many_are(dim, count):
    generator = torch.Generator().manual_seed(dim + count)
    turn = torch.linalg.qr(torch.randn(dim, dim, generator=generator, dtype=torch.float64))[0]
    mean, values = torch.ones(dim, dtype=torch.float64), torch.arange(dim, 0, -1, dtype=torch.float64)
    basis = FrechetBasis.from_eigen(mean, values, turn)
    rows = torch.randn(count, dim, generator=generator, dtype=torch.float64)
    expected = (rows - mean) @ turn / values.mean().sqrt()
    torch.testing.assert_close(basis.rotate(rows).double(), expected, rtol=1e-4, atol=1e-4)
