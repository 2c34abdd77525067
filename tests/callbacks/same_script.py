"""Selects among the variants of a checkpoint in all processes that accelerate has started.

Usage: same_script.py CHECKPOINT; each process writes its history beside the checkpoint.
"""

import json
import sys
from pathlib import Path

from accelerate import Accelerator

from tests.callbacks.models import Calm, fid
from tm_bandit import ModelSelector
from tm_bandit.callbacks.bandit_checkpoint import _REFRESH
from tm_bandit.execution.ranks import default_chunk_size
from tm_bandit.selection.checkpoints import checkpoint_samplers

VARIANTS = {"": {}, "half": {"scale": 0.5}, "wide": {"scale": 1.5}}
SETTINGS = {"batch_size": 32, "burn_in": 64, "seed": 3, "goal": "regret", "stop": "budget"}


def select(file: Path):
    """Return what is found with the settings of the callback."""
    selector = ModelSelector(fid("witness"), budget=512, refresh=_REFRESH, **SETTINGS)
    for name, sampler in checkpoint_samplers({file.stem: file}, Calm, variants=VARIANTS).items():
        selector.add_arm(name, sampler)
    return selector.run(progress=False, chunk_size=default_chunk_size(32))


if __name__ == "__main__":
    accelerator, file = Accelerator(cpu=True), Path(sys.argv[1])
    file.with_name(f"rank{accelerator.process_index}.json").write_text(json.dumps(select(file).history))
    # Without it, gloo's threads may outlive the interpreter, which aborts.
    accelerator.end_training()
