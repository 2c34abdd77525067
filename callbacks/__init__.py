"""Callbacks for Lightning."""

from tm_bandit.callbacks.bandit_checkpoint import BanditCheckpoint

__all__ = ["BanditCheckpoint"]
