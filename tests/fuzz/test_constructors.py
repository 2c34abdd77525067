"""Every argument of every public constructor, given junk."""

import inspect

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from torch import nn

from tests.fuzz.junk import JUNK, refusing, rounds, soon
from tests.selection.toy import MeanMetric, gaussian
from tm_bandit import ModelSelector, OptimisticFID, OptimisticIS, OptimisticKID, OptimisticMean, ReferenceStatistics
from tm_bandit.callbacks import BanditCheckpoint
from tm_bandit.data import open_source
from tm_bandit.extractors import resolve
from tm_bandit.policies import make_policy

ARMS = {"a": gaussian(1.0), "b": gaussian(2.0)}

#: What works, per constructor; each round gives junk for one or two of its arguments.
WORKING = {
    OptimisticFID: {"feature": "none", "reference": None},
    OptimisticIS: {"feature": "none"},
    OptimisticKID: {"feature": "none"},
    OptimisticMean: {},
    ReferenceStatistics: {"mean": torch.zeros(2), "covariance": torch.eye(2)},
    ReferenceStatistics.from_features: {"features": torch.rand(4, 2)},
    ReferenceStatistics.from_images: {"loader": [torch.rand(4, 2)], "feature": nn.Identity()},
    ReferenceStatistics.load: {"path": "nowhere.npz"},
    ModelSelector: {"metric": MeanMetric(), "arms": ARMS, "samples": "features"},
    BanditCheckpoint: {"metric": OptimisticIS("none"), "budget": 100, "batch_size": 10},
    open_source: {"path": "nowhere"},
    resolve: {"feature": "none"},
    make_policy: {"policy": "ucb"},
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
            make(**{**working, **wrong})

    with pytest.MonkeyPatch.context() as patch:
        patch.chdir(tmp_path_factory.mktemp("fuzz"))
        check()
