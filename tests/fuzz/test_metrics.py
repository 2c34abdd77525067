"""Any batches in any order: a metric refuses and stays as it was, or takes them and answers with numbers."""

import math

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from tests.fuzz.junk import JUNK, rounds, soon, tensors
from tm_bandit import OptimisticFID, OptimisticIS, OptimisticKID, OptimisticMean, ReferenceStatistics
from tm_bandit.errors import BanditError
from tm_bandit.metrics.base import LOSS_FIELDS

DIM = 3
#: A module that is assigned to an attribute becomes a part of the metric, whatever the attribute: torch sees to that.
PLAIN = JUNK.filter(lambda value: not isinstance(value, torch.nn.Module))
REFERENCE = ReferenceStatistics(torch.zeros(DIM), torch.diag(torch.tensor([2.0, 1.0, 0.0])))

WITH_ROWS = ReferenceStatistics.from_features(
    torch.randn(40, DIM, generator=torch.Generator().manual_seed(0)), keep_rows=True
)


@st.composite
def rows(draw, kind):
    """Rows that a metric should take, also extreme ones."""
    count = draw(st.integers(0, 30))
    generator = torch.Generator().manual_seed(draw(st.integers(0, 99)))
    dtype = draw(st.sampled_from([torch.float16, torch.bfloat16, torch.float32, torch.float64]))
    values = torch.randn(count, DIM, generator=generator, dtype=torch.float64)
    values = values * draw(st.sampled_from([0.0, 1e-8, 1.0, 100.0]))
    if kind == "is":
        return values.softmax(1).float()
    return values[:, 0].to(dtype) if kind == "mean" else values.to(dtype)


def contents(metric):
    """Everything that a metric remembers, as plain values."""
    states = {
        name: [part.tolist() for part in value] if isinstance(value, list) else value.tolist()
        for name, value in metric.metric_state.items()
    }
    names = ("delta", "horizon", "width", "fitting", "bound", "bounded", "dtype")
    settings = {name: getattr(metric, name) for name in names if hasattr(metric, name)}
    return repr((states, settings, metric.num_samples, metric.update_count))


def check_answers(metric):
    """Numbers, an interval that is none the wrong way round, and the same answers from a copy."""
    found = metric.losses(LOSS_FIELDS)
    assert not any(math.isnan(value) for value in found.values()), found
    assert found["stderr"] >= 0
    assert found["debiased_stderr"] >= 0
    lower, upper = map(float, metric.bounds())
    assert lower <= upper
    assert not math.isnan(float(metric.compute()))
    copy = metric.clone()
    copy._computed = None
    assert float(copy.compute()) == pytest.approx(float(metric.compute()), rel=1e-6, abs=1e-9)


ACTIONS = ("rows", "tensor", "junk", "reset", "setting", "dtype", "bound")


SETTINGS = {
    "fid": ["delta", "horizon", "width", "fitting", "max_rows"],
    "is": ["delta", "horizon", "width", "fitting", "log_scale"],
    "kid": ["delta", "horizon", "width"],
    "mean": ["delta", "horizon", "width", "bounded"],
}
MAKE = {
    "fid": lambda bound, most: OptimisticFID("none", REFERENCE, bound=bound, max_rows=most),
    "is": lambda bound, most: OptimisticIS("none", bound=bound),
    "kid": lambda bound, most: OptimisticKID("none", WITH_ROWS, bound=bound),
    "mean": lambda bound, most: OptimisticMean(bounded=None if bound == "none" else (-1e6, 1e6)),
}
BOUNDS = [
    *(("fid", bound) for bound in ("witness", "paper", "authors", "none")),
    *(("is", bound) for bound in ("witness", "paper", "none")),
    *(("kid", bound) for bound in ("hajek", "none")),
    *(("mean", bound) for bound in ("betting", "none")),
]


@pytest.mark.filterwarnings("ignore")
@pytest.mark.parametrize(("kind", "bound"), BOUNDS)
def test_a_metric_refuses_or_answers(kind, bound):
    @rounds(0.4)
    @given(st.data())
    def check(data):
        metric = MAKE[kind](bound, data.draw(st.sampled_from([None, 20])))
        for action in data.draw(st.lists(st.sampled_from(ACTIONS), min_size=1, max_size=8)):
            before = contents(metric)
            try:
                with soon():
                    act(metric, kind, action, data)
            except BanditError:
                assert contents(metric) == before
            if metric.num_samples >= 2:
                with soon():
                    check_answers(metric)

    check()


def act(metric, kind, action, data):
    if action == "rows":
        metric.update_rows(data.draw(rows(kind)))
    elif action == "tensor":
        metric.update_rows(data.draw(tensors()))
    elif action == "junk":
        metric.update(data.draw(JUNK))
    elif action == "reset":
        metric.reset()
    elif action == "setting":
        setattr(metric, data.draw(st.sampled_from(SETTINGS[kind])), data.draw(PLAIN))
    elif action == "bound" and kind != "mean":
        metric.bound = data.draw(st.one_of(PLAIN, st.sampled_from(["witness", "none"])))
    elif action == "dtype":
        metric.set_dtype(data.draw(st.sampled_from([torch.float32, torch.float64, "float16", torch.int8, "x"])))
