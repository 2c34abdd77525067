"""What is required of the processes of a Trainer before training."""

from types import SimpleNamespace

import pytest
import torch
from lightning.pytorch.strategies import DDPStrategy, FSDPStrategy, ModelParallelStrategy, SingleDeviceStrategy

from tm_bandit.callbacks._distributed import check_shared, ranks_of, refuse_sharded
from tm_bandit.errors import InputError
from tm_bandit.execution.ranks import Ranks


def test_the_ranks_are_those_of_the_trainer():
    strategy = SingleDeviceStrategy(torch.device("cpu"))
    ranks = ranks_of(SimpleNamespace(global_rank=3, world_size=4, strategy=strategy))
    assert (ranks.rank, ranks.world_size, ranks._device) == (3, 4, torch.device("cpu"))
    assert not ranks.is_zero


def test_a_folder_that_is_needed_everywhere_has_to_be_seen(tmp_path):
    check_shared(tmp_path, Ranks(), everywhere=True)
    check_shared(tmp_path / "no", Ranks(), everywhere=False)
    with pytest.raises(InputError, match=r"all nodes share, but rank 0 does not see it.*store='memory'"):
        check_shared(tmp_path / "no", Ranks(), everywhere=True)


@pytest.mark.parametrize("strategy", [FSDPStrategy, ModelParallelStrategy])
def test_sharded_modules_are_refused(strategy):
    """For the strategies at work see test_ddp.py."""
    with pytest.raises(InputError, match=f"got {strategy.__name__}; .* set evaluate='after'"):
        refuse_sharded(SimpleNamespace(strategy=strategy()))


def test_whole_modules_are_not():
    for strategy in (DDPStrategy(), SingleDeviceStrategy(torch.device("cpu"))):
        refuse_sharded(SimpleNamespace(strategy=strategy))
