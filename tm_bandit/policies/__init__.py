"""Which arm to pull next: small objects over plain numbers."""

from tm_bandit.policies.base import ArmStats, Policy

__all__ = ["ArmStats", "Policy"]
