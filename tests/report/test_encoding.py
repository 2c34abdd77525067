"""JSON of any number, and the numbers back."""

import json
import math

import numpy as np
import pytest

from tm_bandit.report.encoding import decode_history, encode


@pytest.mark.parametrize(
    ("value", "plain"),
    [
        (np.int64(7), 7),
        (np.float32(0.5), 0.5),
        (np.float64("nan"), None),
        (np.float32("-inf"), "-inf"),
        (np.bool_(True), True),
        (np.array([1.0, math.inf]), [1.0, "inf"]),
        ({"a": (1, [np.int8(2)])}, {"a": [1, [2]]}),
    ],
)
def test_numpy_and_infinite_numbers_become_plain_ones(value, plain):
    text = encode(value)
    assert json.loads(text, parse_constant=lambda name: pytest.fail(f"{name} is not JSON")) == plain
    assert type(json.loads(text)) is type(plain)


def test_what_is_no_number_is_refused_and_not_guessed():
    with pytest.raises(TypeError):
        encode({"a": object()})


def test_only_scores_get_their_missing_numbers_back():
    history = {"best": [None, "a"], "lower": [-math.inf, 1.5], "upper": [math.inf, 2.0], "n": [5, 10]}
    again = decode_history(json.loads(encode(history)))
    assert again == history
    row = decode_history(json.loads(encode({"arm": "inf", "estimate": math.nan, "share": 0.5})))
    assert (row["arm"], row["share"]) == ("inf", 0.5)
    assert math.isnan(row["estimate"])
