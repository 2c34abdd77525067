"""``tm-bandit cache``: what is kept, and how it is deleted."""

import torch

from tm_bandit.data.feature_cache import FeatureCache


def test_it_says_what_is_kept_and_clears_it(run, here):
    folder = here / "caches" / "tm-bandit"
    assert run("cache").out == f"folder: {folder}\nrows: 0\nbytes: 0\n"
    FeatureCache(folder, "network").keep([(b"key", torch.ones(3))])
    outcome = run("cache")
    assert outcome.code == 0
    assert "rows: 1\n" in outcome.out
    assert "rows: 0\nbytes: 0\n" in run("cache --clear").out
    assert list(folder.iterdir()) == []
