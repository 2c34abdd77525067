"""What is agreed on at the start: the folder, the warnings, and whether a validation comes next."""

import warnings
from types import SimpleNamespace

import pytest

from tests.callbacks.models import Gen, bandit, idle
from tm_bandit.callbacks._folder import owner
from tm_bandit.callbacks._opening import (
    is_dev_run,
    is_validation_next,
    open_folder,
    warn_of_burn_in,
    warn_of_idle_ranks,
)
from tm_bandit.callbacks._resume import ResumePoint
from tm_bandit.execution.ranks import Ranks


def opened(tmp_path, callback, *others, point=None, **kwargs):
    folder, found = open_folder(callback, idle(tmp_path, Gen(), callback, *others, **kwargs), Ranks(), point)
    folder.unlock()
    return folder, found


def test_a_run_gets_a_folder_of_its_own(tmp_path):
    first, found = opened(tmp_path, bandit(tmp_path / "arms"))
    assert (first.root, found) == (tmp_path / "arms", False)
    assert owner(first.root) == first.run
    second, _ = opened(tmp_path, bandit(tmp_path / "arms"))
    assert second.root != first.root
    assert second.run != first.run


def test_callbacks_that_share_a_folder_have_one_each_in_it(tmp_path):
    one, other = bandit(tmp_path / "arms", key="one"), bandit(tmp_path / "arms", key="other")
    assert opened(tmp_path, one, other)[0].root == tmp_path / "arms" / "one"
    assert opened(tmp_path, other, one)[0].root == tmp_path / "arms" / "other"


def test_a_resumed_run_goes_on_in_its_folder_or_says_that_it_cannot(tmp_path):
    first, _ = opened(tmp_path, bandit(tmp_path / "arms"))
    state = {"run": first.run, "folder": str(first.root), "arms": [{"step": 8}]}
    point = ResumePoint(state, step=8, path=str(tmp_path / "last.ckpt"), in_place=True)
    again, found = opened(tmp_path, bandit(tmp_path / "arms"), point=point)
    assert (again.root, again.run, found) == (first.root, first.run, True)
    lost = ResumePoint({**state, "run": "f" * 16}, step=8, path=str(tmp_path / "last.ckpt"), in_place=True)
    with pytest.warns(UserWarning, match="the selection starts over"):
        _, found = opened(tmp_path, bandit(tmp_path / "other"), point=lost)
    assert not found


def test_a_dev_run_claims_nothing(tmp_path):
    assert is_dev_run(idle(tmp_path, Gen(), fast_dev_run=True))
    assert not is_dev_run(idle(tmp_path, Gen()))
    opened(tmp_path, bandit(tmp_path / "arms"), fast_dev_run=True)
    assert not (tmp_path / "arms").exists()


def test_a_budget_that_newcomers_take_is_warned_of(tmp_path):
    with pytest.warns(UserWarning, match="3 new arms of a validation with 20 samples each take the whole budget of 60"):
        warn_of_burn_in(bandit(tmp_path, budget=60, batch_size=10), newcomers=3)
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        warn_of_burn_in(bandit(tmp_path, budget=80, batch_size=10), newcomers=3)


def test_ranks_without_work_are_warned_of(tmp_path):
    callback = bandit(tmp_path, batch_size=10, chunk_size=5)
    with pytest.warns(UserWarning, match="2 of 4 ranks draw samples that are thrown away"):
        warn_of_idle_ranks(callback, Ranks(0, 4))
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        warn_of_idle_ranks(callback, Ranks(0, 2))


def test_whether_a_validation_comes_next():
    batches = SimpleNamespace(processed=8, ready=8)
    loop = SimpleNamespace(
        batch_progress=SimpleNamespace(current=batches), _should_check_val_fx=lambda fetcher: fetcher == "data"
    )
    trainer = SimpleNamespace(
        training=True,
        enable_validation=True,
        global_step=8,
        fit_loop=SimpleNamespace(epoch_loop=loop, _data_fetcher="data"),
    )
    assert is_validation_next(trainer, done=0)
    assert not is_validation_next(trainer, done=8), "these weights were validated"
    batches.processed = 7
    assert not is_validation_next(trainer, done=0), "an exception in the middle of a batch"
    trainer.fit_loop.epoch_loop = None
    assert not is_validation_next(trainer, done=0), "another version of Lightning"
