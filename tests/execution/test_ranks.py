"""One protocol for all groups of processes: two real processes, and what they agree on before they gather."""

import pytest
import torch

from tests.selection.toy import MeanMetric, gaussian
from tm_bandit import ModelSelector
from tm_bandit.errors import ArmError, InputError, NotReadyError
from tm_bandit.execution.ranks import Ranks, Share, idle_ranks, joined_ranks
from tm_bandit.selection.running import kit_of

ALONE = Ranks()


def outcome(action):
    try:
        return action()
    except Exception as error:
        return f"{type(error).__name__}: {error}"


def agree(ranks, fails):
    with ranks.agreed():
        if fails:
            raise ValueError("bad")


def exchange(rank, world_size):
    """Everything that ranks say to each other."""
    with joined_ranks() as ranks:
        gathered = ranks.gather(torch.full((2, 3), float(rank), dtype=torch.float64))
        return {
            "told": ranks.tell(f"from {rank}"),
            "all": ranks.all_of(rank),
            "fine": ranks.first_error(None),
            "error": ranks.first_error(ValueError("bad") if rank == 1 else None),
            "agreed": outcome(lambda: agree(ranks, rank == 1)),
            "gathered": gathered.tolist(),
            "width": outcome(lambda: ranks.gather(torch.zeros(2, 3 + rank))),
            "rows": outcome(lambda: ranks.gather(torch.zeros(2 + rank, 3))),
            "type": outcome(lambda: ranks.gather(torch.zeros(2, 3, dtype=torch.float32 if rank else torch.float64))),
            "missing": outcome(lambda: ranks.gather(RuntimeError("sick") if rank else torch.zeros(2, 3))),
            "ours": outcome(lambda: ranks.gather(NotReadyError("no reference") if rank else torch.zeros(2, 3))),
            "small": ranks.gather(torch.ones(2, 1).to(torch.float8_e4m3fn)).float().tolist(),
            "strided": ranks.gather(torch.ones(2, 2)[:, :1]).tolist(),
            "nothing": tuple(ranks.gather(torch.ones(2, 0, dtype=torch.float64)).shape),
            "after": ranks.gather(torch.ones(1, 1)).tolist(),
        }


@pytest.mark.slow
def test_what_two_processes_tell_each_other(ranks):
    zero, one = ranks.run(exchange)
    agreed = zero.pop("agreed"), one.pop("agreed")
    assert agreed == ("InputError: Another rank failed (ValueError: bad).", "ValueError: bad")
    assert zero == one
    assert zero["told"] == "from 0"
    assert zero["all"] == [0, 1]
    assert zero["fine"] is None
    assert zero["error"] == "ValueError: bad"
    assert zero["gathered"] == [[[0.0] * 3] * 2, [[1.0] * 3] * 2]
    assert zero["width"].startswith("ArmError: Expected the same shape and type of rows on all ranks, but got rank 0: ")
    assert "rank 0: (2, 3) torch.float32, rank 1: (2, 4) torch.float32" in zero["width"]
    assert "rank 1: (3, 3)" in zero["rows"]
    assert "rank 0: (2, 3) torch.float64, rank 1: (2, 3) torch.float32" in zero["type"]
    assert zero["missing"] == "ArmError: RuntimeError: sick"
    assert zero["ours"] == "NotReadyError: no reference"
    assert zero["small"] == [[[1.0]] * 2] * 2, "a type that gloo does not know"
    assert zero["strided"] == zero["small"]
    assert zero["nothing"] == (2, 2, 0)
    assert zero["after"] == [[[1.0]], [[1.0]]], "the group can still be used"


def odd(rank, bad):
    """A sampler that is wrong on one rank only."""

    def sample(num_samples, generator):
        rows = torch.randn(num_samples, 1, generator=generator)
        if rank == 1 and bad == "raises":
            raise OSError("the disk of rank 1 is gone")
        if rank == 1 and bad == "width":
            return rows.expand(-1, 2)
        return rows.double() if rank == 1 and bad == "dtype" else rows

    return sample


def selector_of(rank=0, bad="", **kwargs):
    arms = {"near": gaussian(0.0), "mid": gaussian(0.4), "far": gaussian(2.0)}
    arms |= {"odd": odd(rank, bad)} if bad else {}
    settings = {"batch_size": 8, "budget": 320, "samples": "features", "stop": "budget", **kwargs}
    return ModelSelector(MeanMetric(), arms, **settings)


def select(rank, world_size, bad, kwargs):
    selector = selector_of(rank, bad, **kwargs)
    calls = []
    for arm in selector._arms.values():
        arm.sampler = counted(arm.sampler, calls)
    result = selector.run(progress=False, chunk_size=4)
    return result.to_json(), selector.spent, selector.best, len(calls), result.retired


def counted(sampler, calls):
    def sample(num_samples, generator):
        calls.append(num_samples)
        return sampler(num_samples, generator=generator)

    return sample


@pytest.mark.slow
@pytest.mark.parametrize("kwargs", [{}, {"stop": "certified", "budget": 4000}, {"policy": "thompson"}], ids=str)
def test_two_processes_select_as_one(ranks, kwargs):
    alone = selector_of(**kwargs).run(progress=False, chunk_size=4)
    zero, one = ranks.run(select, "", kwargs)
    assert zero[:3] == one[:3]
    assert zero[0] == alone.to_json()
    pulls = len(alone.history["arm"])
    assert zero[3] == one[3] == pulls, "of the two calls of each pull, each process makes one"


@pytest.mark.slow
@pytest.mark.parametrize("bad", ["raises", "width", "dtype"])
def test_an_arm_that_fails_on_one_process_is_retired_on_all(ranks, bad):
    zero, one = ranks.run(select, bad, {})
    assert zero == one
    text = "the disk of rank 1 is gone" if bad == "raises" else "same shape and type of rows on all ranks"
    assert list(zero[4]) == ["odd"]
    assert text in zero[4]["odd"]
    assert zero[1] == 320


def fail(rank, world_size):
    selector = ModelSelector(MeanMetric(), {"a": odd(rank, "raises")}, batch_size=8, budget=320, samples="features")
    return outcome(lambda: selector.run(progress=False, chunk_size=4))


@pytest.mark.slow
def test_if_all_arms_fail_all_processes_say_so(ranks):
    zero, one = ranks.run(fail)
    assert zero == one
    assert zero.startswith("ArmError: Expected at least one working arm")
    assert "the disk of rank 1 is gone" in zero


def apart(rank, world_size):
    return selector_of(seed=rank).run(progress=False, workers=0).to_json()


@pytest.mark.slow
def test_a_process_can_select_by_itself(ranks):
    assert ranks.run(apart) == [selector_of(seed=seed).run(progress=False).to_json() for seed in (0, 1)]


def test_one_process_needs_no_group():
    with joined_ranks() as ranks:
        assert (ranks.rank, ranks.world_size, ranks.is_zero) == (0, 1, True)
    assert ALONE.tell(3) == 3
    assert ALONE.all_of(3) == [3]
    assert ALONE.gather(torch.zeros(2, 3)).shape == (1, 2, 3)
    with pytest.raises(ArmError, match="RuntimeError: sick"):
        ALONE.gather(RuntimeError("sick"))
    with pytest.raises(ValueError, match="bad"):
        agree(ALONE, fails=True)


def test_a_pull_in_chunks_is_what_its_chunks_are():
    selector = selector_of()
    whole, chunked = selector_of().run(progress=False), selector_of().run(progress=False, chunk_size=4)
    assert whole.history["estimate"] != chunked.history["estimate"]
    assert selector_of().run(progress=False, chunk_size=8).to_json() == whole.to_json()
    pull = selector.ask()[0]
    rows = kit_of(selector, 4).rows(pull)
    again = [gaussian(0.0)(4, torch.Generator().manual_seed(seed)) for seed in _seeds(pull)]
    assert torch.equal(rows, torch.cat(again))
    with pytest.raises(InputError, match="chunk_size"):
        selector.run(progress=False, chunk_size=0)


def _seeds(pull):
    from tm_bandit.execution.draw import stable_seed

    return pull.seed, stable_seed(pull.seed, 1)


def test_rows_come_in_the_order_of_their_chunks():
    share = Share(batch_size=10, chunk_size=3, world_size=2)
    assert [list(share.chunks(rank)) for rank in (0, 1)] == [[0, 1], [2, 3]]
    gathered = torch.arange(12).reshape(2, 6, 1)
    assert share.merge(gathered).flatten().tolist() == list(range(10))


def test_idle_ranks_are_mentioned():
    assert idle_ranks(8, 4, 2) == ""
    assert "1 of 2 ranks draw samples that are thrown away; set chunk_size=4" in idle_ranks(8, 8, 2)


@pytest.mark.parametrize(
    ("variable", "given"), [("WORLD_SIZE", ""), ("WORLD_SIZE", "x"), ("RANK", "x"), ("MASTER_PORT", "")]
)
def test_variables_that_lead_to_nobody_are_named(monkeypatch, variable, given):
    torchrun = {"WORLD_SIZE": "2", "RANK": "0", "MASTER_ADDR": "127.0.0.1", "MASTER_PORT": "1", variable: given}
    for name, value in torchrun.items():
        monkeypatch.setenv(name, value)
    with pytest.raises(InputError, match=f"Expected {variable} to be a whole number"), joined_ranks():
        pass
    monkeypatch.delenv("RANK")
    with joined_ranks() as ranks:
        assert ranks.world_size == 1
