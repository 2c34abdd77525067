"""Where sums are kept exactly."""

import torch

from tm_bandit._device import as_float64, exact_device


def test_devices_without_float64():
    assert exact_device("mps") == torch.device("cpu")
    assert exact_device("mps:0") == torch.device("cpu")
    assert exact_device("cuda:1") == torch.device("cuda:1")
    assert exact_device("cpu") == torch.device("cpu")


def test_numbers_become_doubles_and_keep_their_values():
    rows = torch.tensor([0.5, -3.0], dtype=torch.bfloat16)
    exact = as_float64(rows)
    assert exact.dtype == torch.float64
    assert exact.tolist() == [0.5, -3.0]
