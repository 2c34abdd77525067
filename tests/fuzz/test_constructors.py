"""Every argument of every public constructor, given junk."""

import inspect

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from PIL import Image
from torch import nn

from tests.fuzz.junk import JUNK, refusing, rounds, soon
from tests.selection.toy import MeanMetric, gaussian
from tm_bandit import (
    ModelSelector,
    OptimisticFID,
    OptimisticIS,
    OptimisticKID,
    OptimisticMean,
    ReferenceStatistics,
    data,
    extractors,
    policies,
    samplers,
)
from tm_bandit.callbacks import BanditCheckpoint
from tm_bandit.execution import Factory
from tm_bandit.execution.conditions import Conditions
from tm_bandit.execution.workers import ExecutorWorkers
from tm_bandit.reference_rows import ReferenceRows
from tm_bandit.selection.watcher import Watcher

ARMS = {"a": gaussian(1.0), "b": gaussian(2.0)}


class Generator(nn.Module):
    """Makes class probabilities."""

    def __init__(self):
        super().__init__()
        self.weight = nn.Parameter(torch.zeros(3))

    def sample(self, num_samples, generator):
        return torch.rand(num_samples, 3, generator=generator).softmax(1)


def pipe(prompt, generator):
    return torch.stack([torch.rand(3, 4, 4, generator=one) for one in generator])


def watcher(**arguments):
    Watcher(**arguments).close()


def grid(values):
    return samplers.grid(option=values)


#: What works, per constructor; each round gives junk for one or two of its arguments.
WORKING = {
    OptimisticFID: {"feature": "none", "reference": None},
    OptimisticIS: {"feature": "none"},
    OptimisticKID: {"feature": "none"},
    OptimisticMean: {},
    ReferenceStatistics: {"mean": torch.zeros(2), "covariance": torch.eye(2)},
    ReferenceStatistics.from_features: {"features": torch.rand(4, 2)},
    ReferenceStatistics.from_images: {"loader": [torch.rand(4, 2)], "feature": nn.Identity()},
    ReferenceStatistics.from_moments: {"moments": None},
    ReferenceStatistics.load: {"path": "nowhere.npz"},
    ReferenceRows: {"rows": torch.rand(4, 2)},
    ModelSelector: {"metric": MeanMetric(), "arms": ARMS, "samples": "features"},
    ModelSelector.from_checkpoints: {"paths": "arms", "module_class": Generator, "metric": OptimisticIS("none")},
    Watcher: {"folder": "arms", "module_class": Generator, "metric": OptimisticIS("none"), "say": str},
    BanditCheckpoint: {"metric": OptimisticIS("none"), "budget": 100, "batch_size": 10},
    Conditions: {"given": ["cat", "dog"]},
    Factory: {"build": gaussian},
    ExecutorWorkers: {"executor": None},
    data.open_source: {"path": "pictures"},
    data.ImageFolder: {"path": "pictures"},
    data.ArraySource: {"array": np.zeros((3, 2)), "path": "rows.npy"},
    data.ArraySource.open: {"path": "rows.npy"},
    data.SourceSampler: {"source": data.ArraySource(np.zeros((3, 2)), "rows.npy"), "name": "a"},
    extractors.resolve: {"feature": "none"},
    extractors.Clip: {"model": nn.Identity(), "processor": None},
    extractors.Score: {"function": len},
    samplers.PipelineSampler: {"pipe": pipe},
    grid: {"values": [1, 2]},
    policies.make_policy: {"policy": "ucb"},
    policies.UCB: {},
    policies.SuccessiveHalving: {},
    policies.EpsilonGreedy: {},
    policies.Thompson: {},
}


def arguments(make):
    """The names of the arguments that are ours."""
    kinds = (inspect.Parameter.VAR_KEYWORD, inspect.Parameter.VAR_POSITIONAL)
    return [name for name, item in inspect.signature(make).parameters.items() if item.kind not in kinds]


@pytest.mark.filterwarnings("ignore")
@pytest.mark.parametrize("make", WORKING, ids=lambda make: make.__qualname__)
def test_a_constructor_takes_it_or_says_why_not(make, tmp_path_factory):
    working, names = WORKING[make], arguments(make)

    @rounds()
    @given(st.dictionaries(st.sampled_from(names), JUNK, min_size=1, max_size=2))
    def check(wrong):
        with soon(), refusing():
            (watcher if make is Watcher else make)(**{**working, **wrong})

    with pytest.MonkeyPatch.context() as patch:
        patch.chdir(lay_out(tmp_path_factory.mktemp("fuzz")))
        check()


def lay_out(folder):
    """Put there what the arguments name."""
    (folder / "arms").mkdir()
    (folder / "pictures").mkdir()
    for name in "ab":
        Image.new("RGB", (4, 4)).save(folder / "pictures" / f"{name}.png")
        torch.save({"state_dict": Generator().state_dict()}, folder / "arms" / f"{name}.ckpt")
    np.save(folder / "rows.npy", np.zeros((3, 2)))
    return folder


#: What has arguments and no checks: values that others fill in, and parts of networks.
PLAIN = {"ArmStats", "Board", "Extractor", "Network", "NetworkHandle", "Policy", "SampleSource"}


def test_no_public_constructor_is_left_out():
    for room in (data, extractors, policies, samplers):
        for name in room.__all__:
            found = getattr(room, name)
            made = inspect.isclass(found) and not issubclass(found, Exception) and arguments(found)
            assert not made or found in WORKING or name in PLAIN, name
