"""Trains until its sampler kills the process in mid-validation. Usage: killed_script.py FOLDER STEP CALL."""

import os
import signal
import sys
import warnings
from pathlib import Path

from lightning.pytorch.callbacks import ModelCheckpoint
from models import Calm, bandit, calm_loaders, fit


class Doomed(Calm):
    def sample(self, num_samples):
        if self.trainer.global_step == int(sys.argv[2]) and len(self.calls) >= int(sys.argv[3]):
            os.kill(os.getpid(), signal.SIGKILL)
        if self.trainer.global_step < int(sys.argv[2]):
            self.calls.clear()
        return super().sample(num_samples)


if __name__ == "__main__":
    warnings.simplefilter("ignore")
    folder = Path(sys.argv[1])
    fit(
        folder,
        bandit(folder / "arms", max_arms=3),
        ModelCheckpoint(folder / "last", save_last=True),
        module=Doomed,
        data=calm_loaders(),
        max_epochs=5,
    )
