"""Every argument of every public method, given junk."""

import inspect

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from tests.fuzz.junk import JUNK, refusing, rounds, soon
from tests.fuzz.test_constructors import lay_out, pipe
from tests.report.results import make_result
from tests.selection.toy import MeanMetric, gaussian
from tm_bandit import (
    ModelSelector,
    OptimisticFID,
    OptimisticIS,
    OptimisticKID,
    OptimisticMean,
    ReferenceStatistics,
    SelectionResult,
)
from tm_bandit.callbacks import BanditCheckpoint
from tm_bandit.data import ArraySource, SourceSampler
from tm_bandit.execution.conditions import Conditions
from tm_bandit.samplers import PipelineSampler

ROWS = torch.randn(40, 3, generator=torch.Generator().manual_seed(0))
REFERENCE = ReferenceStatistics.from_features(ROWS, keep_rows=True)


def selector():
    made = ModelSelector(
        MeanMetric(), {"a": gaussian(1.0), "b": gaussian(2.0)}, budget=60, batch_size=10, samples="features"
    )
    made.step()
    return made


def filled(metric):
    metric.update_rows({OptimisticIS: ROWS.softmax(1), OptimisticMean: ROWS[:, 0]}.get(type(metric), ROWS))
    return metric


#: An object of each class, and what works as arguments of those methods that do not take junk alone.
OBJECTS = {
    ModelSelector: selector,
    SelectionResult: lambda: make_result(pulls=8),
    ReferenceStatistics: lambda: REFERENCE,
    OptimisticFID: lambda: filled(OptimisticFID("none", REFERENCE)),
    OptimisticIS: lambda: filled(OptimisticIS("none")),
    OptimisticKID: lambda: filled(OptimisticKID("none", REFERENCE)),
    OptimisticMean: lambda: filled(OptimisticMean()),
    PipelineSampler: lambda: PipelineSampler(pipe),
    SourceSampler: lambda: SourceSampler(ArraySource.open("rows.npy"), "a"),
    Conditions: lambda: Conditions(["cat", "dog"]),
    BanditCheckpoint: lambda: BanditCheckpoint(metric=OptimisticIS("none"), budget=100, batch_size=10),
}
WORKING = {
    "run": {"progress": False, "workers": 0},
    "take": {"draw": 0, "size": 2, "seed": (0,)},
    "__call__": {"num_samples": 2, "generator": torch.Generator(), "conditions": ["a", "b"]},
    "add_pictures": {"arm": "a", "files": []},
}

#: Torch, torchmetrics and Lightning answer for their own methods, whose arguments come from them; a class answers in
#: test_constructors for what makes an object. The selector alone asks a metric about another one.
ELSEWHERE = {"to", "from_features", "from_images", "from_moments", "load", "from_checkpoints", "watch", "cmmd",
             "score_from_loss", "fork", "add_rows", "settings", "paired", "certificate"}  # fmt: skip


def methods():
    for kind in OBJECTS:
        for name, found in inspect.getmembers(kind, callable):
            ours = (getattr(found, "__module__", None) or "").startswith("tm_bandit")
            public = not name.startswith("_") or (name == "__call__" and kind in (PipelineSampler, SourceSampler))
            lightning = kind is BanditCheckpoint and name not in ("load_state_dict", "state_dict")
            drawing = name == "plot" and kind is not SelectionResult
            if ours and public and not (lightning or drawing or name in ELSEWHERE):
                yield pytest.param(kind, name, id=f"{kind.__name__}.{name}")


def arguments(method):
    kinds = (inspect.Parameter.VAR_KEYWORD, inspect.Parameter.VAR_POSITIONAL)
    return {name: item for name, item in inspect.signature(method).parameters.items() if item.kind not in kinds}


@pytest.mark.filterwarnings("ignore")
@pytest.mark.parametrize(("kind", "name"), list(methods()))
def test_a_method_takes_it_or_says_why_not(kind, name, tmp_path, monkeypatch):
    monkeypatch.chdir(lay_out(tmp_path))
    known = arguments(getattr(OBJECTS[kind](), name))
    if not known:
        getattr(OBJECTS[kind](), name)
        return
    needed = [key for key, item in known.items() if item.default is item.empty]
    working = {key: value for key, value in WORKING.get(name, {}).items() if key in known}

    @rounds(0.5)
    @given(st.dictionaries(st.sampled_from(sorted(known)), JUNK, min_size=1, max_size=2), st.data())
    def check(wrong, data):
        missing = {key: data.draw(JUNK) for key in needed if key not in wrong and key not in working}
        target = OBJECTS[kind]()
        with soon(), refusing():
            getattr(target, name)(**{**working, **missing, **wrong})

    check()
