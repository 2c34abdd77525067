"""Samplers that can be sent to other processes, and that misbehave there."""

import os
import signal
import time
from pathlib import Path

import torch

from tests.selection.toy import MeanMetric
from tm_bandit import ModelSelector


class Normal:
    """Rows of one column; the larger the draw's last bits, the longer it takes."""

    def __init__(self, mean, seconds=0.0):
        self.mean, self.seconds = mean, seconds

    def __call__(self, num_samples, generator):
        rows = self.mean + torch.randn(num_samples, 1, generator=generator)
        time.sleep(self.seconds * float(rows.sum().abs() % 1))
        return rows


class Sly(Normal):
    """Does something bad the first few times, counted in a folder that all processes see."""

    def __init__(self, mean, folder, deed, times):
        super().__init__(mean)
        self.folder, self.deed, self.times = Path(folder), deed, times

    def __call__(self, num_samples, generator):
        done = len(list(self.folder.glob("bad-*")))
        if done < self.times:
            (self.folder / f"bad-{done}-{os.getpid()}").touch()
            if self.deed == "die":
                os.kill(os.getpid(), signal.SIGKILL)
            if self.deed == "hang":
                time.sleep(600)
            raise OSError("the disk is gone")
        return super().__call__(num_samples, generator)


class Global:
    """Uses the global random state."""

    def __call__(self, num_samples):
        return torch.randn(num_samples, 1)


class Unlucky:
    """Cannot be made in another process."""

    def __call__(self, num_samples, generator):
        return torch.randn(num_samples, 1, generator=generator)

    def __setstate__(self, state):
        raise OSError("no such device here")

    def __getstate__(self):
        return {"a": 1}


class Slow(Unlucky):
    """Takes for ever to be made in another process."""

    def __setstate__(self, state):
        time.sleep(600)


def build_global():
    return lambda num_samples: torch.randn(num_samples, 1)


def build_normal(mean):
    return lambda num_samples, generator: mean + torch.randn(num_samples, 1, generator=generator)


def selector_of(arms=None, seconds=0.0, **kwargs):
    arms = arms or {"near": Normal(0.0, seconds), "mid": Normal(0.4, seconds), "far": Normal(2.0, seconds)}
    # All of the budget is spent: what is tested is who draws, not when it ends.
    settings = {"batch_size": 8, "budget": 320, "samples": "features", "stop": "budget", **kwargs}
    return ModelSelector(MeanMetric(), arms, **settings)


def numbers(result):
    """All of a result but what it cost."""
    return result.history, {name: result.num_samples[name] for name in result.num_samples}, result.best, result.retired
