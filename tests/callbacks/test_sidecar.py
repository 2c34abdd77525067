"""Sidecars: which validation a resumed training run continues from."""

from dataclasses import asdict

import pytest

from tm_bandit.callbacks._sidecar import Sidecar, choose, restrict, validation_id
from tm_bandit.selection.verdict import Verdict


def state(validation, step, **tags):
    files = {name: {"file": f"{name}.ckpt", "tag": tag} for name, tag in tags.items()}
    return {"validation": validation, "step": step, "files": files, "admitted": tags}


def sidecar(lineage, step, **tags):
    return Sidecar("", tuple(lineage), state(lineage[-1:], step, **tags), {})


FIRST, SECOND = sidecar("a", 8, step8="A"), sidecar("ab", 16, step8="A", step16="B")
THIRD, OTHER = sidecar("abc", 24, step8="A", step24="C"), sidecar("abx", 24, step8="A", step24="X")
OLD = Sidecar("stats.pt", (), {"step": 16}, {})


@pytest.mark.parametrize(
    ("found", "saved", "live", "expected"),
    [
        ([FIRST, SECOND, THIRD], state("b", 16, step8="A"), (16, "B"), (SECOND, "same")),
        # The checkpoint was written just before the validation of its own step.
        ([FIRST, SECOND], state("a", 8, step8="A"), (16, "B"), (SECOND, "next")),
        ([FIRST, SECOND], state("a", 8, step8="A"), (16, "another branch"), (FIRST, "same")),
        ([FIRST, SECOND], state("a", 8, step8="A"), (12, "B"), (FIRST, "same")),
        ([FIRST], state("", -1), (8, "A"), (FIRST, "next")),
        # An old checkpoint, whose own sidecar is gone.
        ([SECOND, THIRD], state("a", 8, step8="A"), (8, "A"), (THIRD, "same")),
        # Two branches.
        ([THIRD, OTHER], state("x", 24, step24="X"), (24, "X"), (OTHER, "same")),
        ([THIRD, OTHER], state("b", 16, step8="A"), (24, "X"), (OTHER, "next")),
        ([THIRD], state("x", 24, step8="A", step24="X"), (24, "X"), (THIRD, "alike")),
        ([THIRD], state("x", 24, step24="X"), (24, "X"), None),
        # Version 0.1.
        ([OLD], state("", 16, step8=""), (16, "B"), (OLD, "same")),
        ([OLD], state("", 24, step8=""), (24, "B"), (OLD, "same")),
        ([OLD], state("b", 16, step8="A"), (16, "B"), None),
        ([], state("a", 8, step8="A"), (8, "A"), None),
    ],
)
def test_choice(found, saved, live, expected):
    assert choose(found, saved, live) == expected
    assert choose(found[::-1], saved, live) == expected


def test_a_validation_is_known_by_its_past_and_its_weights():
    one = validation_id("a", 8, {"step8": "A", "step8-avg": "B"})
    assert one == validation_id("a", 8, {"step8-avg": "B", "step8": "A"})
    others = [validation_id("b", 8, {"step8": "A", "step8-avg": "B"}), validation_id("a", 8, {"step8": "A"})]
    others += [validation_id("a", 9, {"step8": "A", "step8-avg": "B"}), validation_id("a", 8, {"step8": "C"})]
    assert len({one, *others}) == 5


def test_restrict_leaves_out_what_the_checkpoint_does_not_know():
    whole = {"arms": [{"name": "a"}, {"name": "b"}], "history": {"arm": ["a", "b", "a"], "n": [1, 2, 3]}, "budget": 5}
    left = {"arms": [{"name": "a"}], "history": {"arm": ["a", "a"], "n": [1, 3]}, "budget": 5}
    assert restrict(whole, {"a"}) == left | {"verdict": None}, "version 0.1 kept no verdict"
    said = asdict(Verdict("b", "likely", {"a": "b"}))
    assert restrict(whole | {"verdict": said}, {"a"}) == left | {"verdict": asdict(Verdict(None, "open"))}
