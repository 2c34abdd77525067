"""The callback and a selector of the same settings make the same pulls, with the same numbers."""

from pathlib import Path

import torch

from tests.callbacks.models import Calm, bandit, calm_loaders, fid, fit
from tm_bandit import ModelSelector
from tm_bandit.callbacks.bandit_checkpoint import _REFRESH
from tm_bandit.execution.ranks import default_chunk_size
from tm_bandit.selection.checkpoints import checkpoint_samplers

VARIANTS = {"": {}, "half": {"scale": 0.5}, "wide": {"scale": 1.5}}
SETTINGS = {"batch_size": 32, "burn_in": 64, "seed": 3, "goal": "regret", "stop": "budget"}


def test_callback_and_selector_have_one_history(tmp_path):
    callback = bandit(tmp_path / "arms", fid("witness"), budget=512, variants=VARIANTS, **SETTINGS)
    fit(tmp_path, callback, module=Calm, data=calm_loaders(), max_epochs=1)
    file = Path(callback.best_model_path)
    selector = ModelSelector(fid("witness"), budget=512, refresh=_REFRESH, **SETTINGS)
    for name, sampler in checkpoint_samplers({file.stem: file}, Calm, variants=VARIANTS).items():
        selector.add_arm(name, sampler)
    torch.manual_seed(99)
    result = selector.run(progress=False, chunk_size=default_chunk_size(32))
    assert set(result.history["arm"]) == {"step8", "step8/half", "step8/wide"}
    assert len(result.history["arm"]) == 16
    assert callback.result.history == result.history
    assert callback.best_arm == result.best
