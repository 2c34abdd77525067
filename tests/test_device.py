"""Where sums are kept exactly."""

import pytest
import torch

from tm_bandit._device import as_float64, check_device, exact_device, one_thread
from tm_bandit.errors import InputError


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


@pytest.mark.parametrize("device", ["cuda:99", "nonsense", 0, True, None, torch.device("cuda:99")])
def test_devices_that_this_machine_lacks(device):
    with pytest.raises(InputError, match="device of this machine"):
        check_device(device)


def test_one_thread_and_then_as_many_as_before():
    before = torch.get_num_threads()
    torch.set_num_threads(2)
    try:
        with one_thread():
            assert torch.get_num_threads() == 1
        assert torch.get_num_threads() == 2
    finally:
        torch.set_num_threads(before)
