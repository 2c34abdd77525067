"""Arms that are written during training and compared at the end."""

import json
from pathlib import Path
from types import SimpleNamespace

import pytest
from lightning.pytorch.strategies import DeepSpeedStrategy, FSDPStrategy, ModelParallelStrategy, SingleDeviceStrategy
from torch import Tensor

from tests.callbacks.models import Calm, Gen, bandit, calm_loaders, fid, fit
from tm_bandit import OptimisticMean
from tm_bandit.callbacks._distributed import check_whole
from tm_bandit.errors import InputError


class Unique(Calm):
    """Can be made once."""

    made = 0

    def __init__(self):
        super().__init__()
        Unique.made += 1
        if Unique.made > 1:
            raise RuntimeError("there is one already")


class Attached(Calm):
    """Asks its Trainer while it samples, and there is none when the arms are compared."""

    def sample(self, num_samples):
        assert self.trainer.global_step >= 0
        return super().sample(num_samples)


@pytest.fixture
def settings():
    return {"metric": fid("witness"), "budget": 64, "batch_size": 16, "evaluate": "after"}


def test_the_arms_are_compared_at_the_end(tmp_path, settings):
    callback = bandit(tmp_path / "arms", **settings)
    fit(tmp_path, callback, module=Calm, data=calm_loaders(), max_epochs=3)
    assert sorted(path.name for path in (tmp_path / "arms").glob("*.ckpt")) == [
        "step16.ckpt",
        "step24.ckpt",
        "step8.ckpt",
    ]
    assert set(callback.result.num_samples) == {"step8", "step16", "step24"}
    assert callback.result.total_samples == 3 * 64
    assert Path(callback.best_model_path).stem == callback.best_arm
    assert Calm.load_from_checkpoint(callback.best_model_path).hparams.lr == 0.05
    saved = json.loads((tmp_path / "arms" / "selection.json").read_text())
    assert saved["best"] == callback.best_arm
    assert callback.best_model_score.item() > 0


def test_the_training_is_what_it_is_without(tmp_path, settings):
    weights = []
    for name, callbacks in (("with", [bandit(tmp_path / "arms", **settings)]), ("without", [])):
        trainer = fit(tmp_path / name, *callbacks, module=Gen, max_epochs=2)
        weights.append([parameter.double().sum().item() for parameter in trainer.lightning_module.parameters()])
    assert weights[0] == weights[1]


@pytest.mark.parametrize(("module", "reason"), [(Unique, "there is one already"), (Attached, "not attached")])
def test_a_module_that_needs_its_trainer_leaves_it_to_a_watcher(tmp_path, settings, module, reason):
    """The training is over: nothing may be raised any more."""
    callback = bandit(tmp_path / "arms", **settings)
    with pytest.warns(UserWarning, match=rf"could not be compared .*{reason}.* Run `tm-bandit watch"):
        fit(tmp_path, callback, module=module(), data=calm_loaders(), max_epochs=1)
    assert callback.best_model_path == ""
    assert (tmp_path / "arms" / "step8.ckpt").exists()


def test_a_second_training_has_a_folder_of_its_own(tmp_path, settings):
    for _ in range(2):
        callback = bandit(tmp_path / "arms", **settings)
        fit(tmp_path, callback, module=Calm, data=calm_loaders(), max_epochs=1)
    assert Path(callback.best_model_path).parent == tmp_path / "arms" / "v1"


@pytest.mark.parametrize(
    ("strategy", "advice"),
    [
        (FSDPStrategy(state_dict_type="full"), None),
        (FSDPStrategy(state_dict_type="sharded"), "state_dict_type='full'"),
        (ModelParallelStrategy(save_distributed_checkpoint=False), None),
        (ModelParallelStrategy(), "save_distributed_checkpoint=False"),
        (SingleDeviceStrategy("cpu"), None),
    ],
    ids=lambda value: type(value).__name__ if value is None or not isinstance(value, str) else value,
)
def test_whole_checkpoints_are_needed(strategy, advice):
    """For the strategies at work see test_ddp.py."""
    trainer = SimpleNamespace(strategy=strategy)
    if advice is None:
        check_whole(trainer)
    else:
        with pytest.raises(InputError, match=advice):
            check_whole(trainer)


def test_deepspeed_writes_folders():
    strategy = object.__new__(DeepSpeedStrategy)  # its constructor wants the package
    with pytest.raises(InputError, match=r"zero_to_fp32"):
        check_whole(SimpleNamespace(strategy=strategy))


def test_bad_input(settings):
    with pytest.raises(InputError, match="Expected `evaluate` to be one of validation, after"):
        bandit(**{**settings, "evaluate": "later"})
    with pytest.raises(InputError, match="no also= with evaluate='after'"):
        bandit(**settings, also=OptimisticMean(Tensor.mean))
