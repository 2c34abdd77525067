"""What a worker holds."""

import pickle
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace

import pytest
import torch

from tests.execution.parts import Global, Normal, build_global, build_normal, numbers, selector_of
from tests.selection.toy import MeanMetric
from tm_bandit import Pull
from tm_bandit.errors import ArmError, InputError
from tm_bandit.execution import Factory, carry_out
from tm_bandit.execution.kit import Kit, draw, forget, keep, part_of, unpack

PULL = Pull("a", draw=2, size=6, seed=5)


def kit(sampler, **kwargs):
    return Kit({"a": sampler}, MeanMetric(), "features", **kwargs)


def test_a_pull_in_one_call_is_carried_out_as_ever():
    assert torch.equal(kit(Normal(0.0)).rows(PULL), carry_out(PULL, Normal(0.0), MeanMetric(), samples="features"))


def test_chunks_have_seeds_of_their_own_and_make_up_the_pull():
    whole = kit(Normal(0.0), chunk_size=4)
    first, second, third = (whole.rows(PULL, [chunk]) for chunk in range(3))
    assert torch.equal(whole.rows(PULL), torch.cat([first, second])[:6])
    assert not torch.equal(first, second)
    assert torch.equal(first, third), "past the end there are only rows that are cut off"


def test_conditions_go_with_their_samples():
    pull = Pull("a", 0, 3, 1, conditions=("x", "y", "z"))
    part = part_of(pull, 1, 2)
    assert part.conditions == ("z", "x")


def test_a_deck_is_told_where_a_chunk_starts():
    class Deck:
        def seek(self, position):
            self.position = position

        def __call__(self, num_samples):
            return torch.arange(self.position, self.position + num_samples).unsqueeze(1).float()

    assert kit(Deck(), chunk_size=3).rows(PULL).flatten().tolist() == [12, 13, 14, 15, 16, 17]


def test_a_packed_kit_draws_the_same():
    one = kit(Factory(build_normal, 3.0))
    one.owner = -1  # another process
    packed = one.pack()
    assert draw(one.token, PULL) is None
    assert unpack(packed) == one.token
    rows, seconds = draw(one.token, PULL)
    assert torch.equal(pickle.loads(rows), one.rows(PULL))
    assert 0 < seconds < 10
    forget(one)
    assert draw(one.token, PULL) is None


def test_a_thread_hands_over_a_copy():
    buffer = torch.zeros(PULL.size, 1)

    def refill(num_samples, generator):
        return buffer.normal_(generator=generator)

    one = kit(refill)
    keep(one)
    (first, _), (second, _) = draw(one.token, PULL), draw(one.token, replace(PULL, draw=5, seed=8))
    forget(one)
    assert not torch.equal(first, second)
    assert torch.equal(second, buffer)


def test_a_factory_builds_once_and_gives_what_its_sampler_takes():
    built = []

    def build(mean):
        built.append(mean)
        return build_normal(mean)

    factory = Factory(build, mean=2.0)
    one, two = (factory(3, generator=torch.Generator().manual_seed(1)) for _ in range(2))
    assert torch.equal(one, two)
    assert built == [2.0]
    assert Factory(build_global)(3, generator=torch.Generator()).shape == (3, 1)
    with pytest.raises(InputError, match="returns a sampler, but got int"):
        Factory(3)


def test_it_says_which_sampler_cannot_be_sent():
    selector = selector_of({"good": Normal(0.0), "bad one": lambda n, generator: None})
    with pytest.raises(InputError, match=r"sampler of arm 'bad one' .* cannot be pickled .*Factory\(build"):
        selector.run(progress=False, workers=2)
    assert selector.spent == 0
    assert all(arm.pending == 0 for arm in selector._arms.values())


def test_it_says_if_it_is_the_network():
    metric = MeanMetric()
    metric.extra = lambda: None
    with pytest.raises(InputError, match="the metric with its feature network"):
        Kit({"a": Normal(0.0)}, metric).pack()


def test_threads_need_generators():
    one = kit(Global())
    keep(one)
    refusal = draw(one.token, PULL)
    forget(one)
    assert isinstance(refusal, InputError)
    assert "generator=" in str(refusal)
    with ThreadPoolExecutor(2) as pool, pytest.raises(InputError, match="arm 'a' does not: threads share"):
        selector_of({"a": Global(), "b": Normal(0.0)}).run(progress=False, workers=pool)


def test_threads_draw_what_processes_draw():
    one = kit(Normal(0.0), chunk_size=2)
    state = torch.get_rng_state()
    assert torch.equal(one.rows(PULL), one.rows(PULL, threaded=True))
    assert torch.equal(state, torch.get_rng_state())


def test_no_sampler():
    with pytest.raises(InputError, match="Expected a sampler for arm 'b'"):
        kit(Normal(0.0)).rows(Pull("b", 0, 2, 1))
    keep(one := kit(lambda n, generator: torch.zeros(n)))
    assert isinstance(draw(one.token, PULL), ArmError)
    forget(one)


def test_workers_of_one_run_do_not_disturb_another():
    assert numbers(selector_of().run(progress=False)) == numbers(selector_of().run(progress=False))
