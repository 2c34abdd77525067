"""Every part of a saved result, replaced by something else: either it is refused, or it can be shown."""

import copy
import json

import pytest

from tests.report.results import make_result
from tm_bandit import SelectionResult
from tm_bandit.errors import InputError

JUNK = ("x", None, [], {}, 1e400, -1, ["a", 1], True, [[]], {"arm": [1]}, 10**400, 1.5, 1e-320, 1e99, 1e300, "{0}")


def places(part, path=()):
    """Yield where every part of a JSON document is; of a list, the first entry stands for all."""
    if path:
        yield path
    if isinstance(part, dict):
        for key in part:
            yield from places(part[key], (*path, key))
    elif isinstance(part, list) and part:
        yield from places(part[0], (*path, 0))


def replaced(document, path, junk):
    changed = copy.deepcopy(document)
    part = changed
    for key in path[:-1]:
        part = part[key]
    part[path[-1]] = junk
    return changed


def saved():
    result = make_result()
    result.settings.update(epsilon=0.1, delta=0.05)
    result.arms[0].update(cost=1.0, twin=result.arms[1]["arm"], pictures=[])
    return json.loads(result.to_json())


def test_what_is_loaded_can_be_shown():
    document = saved()
    SelectionResult.from_json(json.dumps(document))  # as it is, it loads
    refused = 0
    for path in places(document):
        for junk in JUNK:
            try:
                result = SelectionResult.from_json(json.dumps(replaced(document, path, junk)))
            except InputError:
                refused += 1
                continue
            assert all((str(result), result.to_html(), result.to_markdown(), result.summary(), repr(result)))
    assert refused > 100


@pytest.mark.parametrize(
    ("path", "junk", "says"),
    [
        (("arms", 0, "verdict"), 5, "verdict of an arm is a int"),
        (("arms", 0, "n"), 10**400, "absurdly large"),
        (("history", "samples", 0), 10**19, "absurdly large"),
        (("arms", 0, "upper"), 1e300, "absurdly large"),
        (("history",), {}, "the history has no samples"),
        (("history", "n"), [], "gaps"),
        (("settings", "delta"), "x", "delta of the settings"),
        (("retired",), {"a": 5}, "a of the arms that were retired"),
    ],
)
def test_it_is_said_what_is_wrong(path, junk, says):
    with pytest.raises(InputError, match=says):
        SelectionResult.from_json(json.dumps(replaced(saved(), path, junk)))
