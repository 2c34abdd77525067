"""Values that nobody should give, and what may come of them: our own errors, soon, and no change."""

import math
import os
import signal
import warnings
from contextlib import contextmanager
from pathlib import Path

import numpy as np
import torch
from hypothesis import HealthCheck, Phase, settings
from hypothesis import strategies as st

from tm_bandit.errors import BanditError

#: Rounds per test: a few seconds in `make test`; TM_BANDIT_FUZZ=1000 looks for an hour.
ROUNDS = int(os.environ.get("TM_BANDIT_FUZZ", "40"))


def rounds(share=1.0):
    """Settings of a fuzz test; without TM_BANDIT_FUZZ the same examples every time."""
    return settings(
        max_examples=max(1, int(ROUNDS * share)),
        deadline=None,
        derandomize="TM_BANDIT_FUZZ" not in os.environ,
        database=None,
        phases=[Phase.explicit, Phase.generate],  # making an example smaller takes minutes
        suppress_health_check=list(HealthCheck),
    )


@contextmanager
def soon(seconds=20):
    """Fail if the block does not end: nothing that is refused may hang."""

    def late(*_):
        raise AssertionError(f"this hangs: it has not ended after {seconds} s")

    before = signal.signal(signal.SIGALRM, late)
    signal.alarm(seconds)
    try:
        yield
    finally:
        signal.alarm(0)
        signal.signal(signal.SIGALRM, before)


@contextmanager
def refusing():
    """Let the block refuse in one line that can be read."""
    refused = ""
    try:
        yield
    except BanditError as error:
        refused = str(error)
    assert len(refused) <= 1100
    assert "\n" not in refused


NUMBERS = st.one_of(
    st.sampled_from(
        [0, 1, -1, 2, 10**21, -(10**21), 2**63, 10**400, True, False, np.int64(3), np.float32(0.5), np.nan]
    ),
    st.sampled_from([0.0, -0.0, 0.5, 1.0, 1e-320, 1e308, math.nan, math.inf, -math.inf]),
    st.integers(-10, 10),
    st.floats(),
)
TEXTS = st.one_of(
    st.sampled_from(["", " ", "none", "auto", "witness", "ucb", "..", "a\0b", "\ud800", "x" * 10_000, "1", "nan", "~"]),
    st.text(max_size=8),
)


@st.composite
def tensors(draw, max_side=6):
    """Tensors of all shapes, dtypes and values."""
    shape = draw(st.lists(st.integers(0, max_side), max_size=4))
    kinds = [torch.float16, torch.bfloat16, torch.float32, torch.float64, torch.uint8, torch.int64, torch.bool]
    dtype = draw(st.sampled_from([*kinds, torch.complex64, torch.float8_e5m2]))
    generator = torch.Generator().manual_seed(draw(st.integers(0, 9)))
    values = torch.randn(shape, generator=generator) * draw(st.sampled_from([0.0, 1e-30, 1.0, 300.0, 1e30]))
    if values.numel() and draw(st.booleans()):
        values.view(-1)[draw(st.integers(0, values.numel() - 1))] = draw(st.sampled_from([math.nan, math.inf, -1.0]))
    return values.to(dtype)


#: Tensors that are no plain block of numbers; torch warns of each.
with warnings.catch_warnings():
    warnings.simplefilter("ignore")
    ODD = [
        torch.zeros(3).to("meta"),
        torch.zeros(3, 2).to_sparse(),
        torch.nested.nested_tensor([torch.zeros(2), torch.zeros(3)]),
    ]

JUNK = st.one_of(
    st.none(),
    NUMBERS,
    TEXTS,
    tensors(),
    st.sampled_from(
        [b"bytes", (), [], {}, [1, 2], {"a": 1}, object(), object, len, Path("nowhere"), 1j, {1}, slice(3)]
    ),
    st.sampled_from(
        [np.zeros(3), np.zeros((2, 2), dtype=">f8"), np.array(["x"]), np.array(None), *ODD, torch.nn.Identity()]
    ),
)
