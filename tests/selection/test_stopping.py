"""When a run is over."""

import pytest

from tests.policies.parts import arm
from tests.selection.toy import MeanMetric
from tm_bandit.selection.stopping import StopRule
from tm_bandit.selection.verdict import Verdict

BEST = arm("a", 50, debiased=1.0, debiased_stderr=0.25, pessimistic=2.0)


@pytest.mark.parametrize(
    ("stop", "level", "met"),
    [
        ("budget", "won", ""),
        ("certified", "won", "stop"),
        ("certified", "likely", ""),
        ("likely", "won", "stop"),
        ("likely", "likely", "stop"),
        ("likely", "tie", "stop"),
        ("certified", "tie", "stop"),
        ("budget", "tie", ""),
        ("likely", "open", ""),
    ],
)
def test_a_rule_wants_its_level(stop, level, met):
    assert StopRule(stop, None, False).met(Verdict("a", level), BEST, MeanMetric()) == met


@pytest.mark.parametrize(("stop", "reached"), [("budget", 2.0), ("certified", 2.0), ("likely", 1.5)])
def test_a_target_wants_the_pessimistic_end_or_two_standard_errors(stop, reached):
    verdict = Verdict("a", "open")
    for target, met in ((reached, "target"), (reached - 0.01, "")):
        assert StopRule(stop, target, False).met(verdict, BEST, MeanMetric()) == met
    assert StopRule(stop, 9.0, False).met(verdict, None, MeanMetric()) == ""


def test_a_target_of_a_score_to_be_high():
    class Upward(MeanMetric):
        def score_from_loss(self, loss):
            return -loss

    assert StopRule("budget", -2.0, True).met(Verdict("a", "open"), BEST, Upward()) == "target"
    assert StopRule("budget", -1.9, True).met(Verdict("a", "open"), BEST, Upward()) == ""


def test_arms_that_are_out_need_no_more_samples():
    verdict = Verdict("a", "open", certified_out={"b": "a"}, likely_out={"b": "a", "c": "b"})
    out = [set(StopRule(stop, None, False).ruled_out(verdict, 4)) for stop in ("budget", "certified", "likely")]
    assert out == [set(), {"b"}, {"b", "c"}]


def test_a_race_turns_to_arms_that_wait_when_it_is_decided_without_them():
    verdict = Verdict("a", "open", certified_out={"b": "a"}, likely_out={"b": "a"}, waiting=("c",))
    for stop, decided in (("budget", {"b"}), ("likely", {"b"}), ("certified", {"b"})):
        rule = StopRule(stop, None, False, races=True)
        assert set(rule.ruled_out(verdict, 4)) == {"b", "c"}
        assert set(rule.ruled_out(verdict, 3)) == decided
    assert set(StopRule("likely", None, False).ruled_out(verdict, 4)) == {"b"}
