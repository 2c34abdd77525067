"""Policies by name."""

from __future__ import annotations

from collections.abc import Callable

from tm_bandit.errors import InputError
from tm_bandit.policies.baselines import EpsilonGreedy, Greedy, Random, Thompson, Uniform
from tm_bandit.policies.best_arm import LUCB, SuccessiveHalving
from tm_bandit.policies.policy import Policy
from tm_bandit.policies.race import Race
from tm_bandit.policies.ucb import UCB

#: Every policy that can be asked for by name; a new one needs one line here.
POLICIES: dict[str, Callable[[], Policy]] = {
    "ucb": UCB,
    "race": Race,
    "lucb": LUCB,
    "halving": SuccessiveHalving,
    "thompson": Thompson,
    "greedy": Greedy,
    "epsilon-greedy": EpsilonGreedy,
    "uniform": Uniform,
    "random": Random,
}


def make_policy(policy: str | Policy) -> Policy:
    """Return the policy of that name with its defaults; a policy object is returned as it is.

    Args:
        policy: a name from :data:`POLICIES`, or a :class:`~tm_bandit.policies.Policy`.

    Raises:
        InputError: if there is no policy of that name.

    Example:
        >>> make_policy("greedy").needs
        frozenset({'estimate'})
    """
    if isinstance(policy, Policy):
        return policy
    if not isinstance(policy, str) or policy not in POLICIES:
        known = ", ".join(repr(name) for name in POLICIES)
        raise InputError(f"Expected policy to be one of {known} or a Policy, but got {policy!r}; choose one of these.")
    return POLICIES[policy]()
