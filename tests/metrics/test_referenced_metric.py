"""A metric over generated features and a reference: which reference it takes, and which rows."""

import math
from functools import partial

import pytest
import torch
from torch import nn

from tests._make import scaled_rows
from tm_bandit import OptimisticFID, OptimisticKID, ReferenceStatistics
from tm_bandit.errors import InputError, NotReadyError

DIM = 5


draw = partial(scaled_rows, dim=DIM)


@pytest.mark.parametrize("kind", [OptimisticFID, OptimisticKID])
def test_a_reference_is_given_or_made_of_real_samples(kind):
    rows, made, given = draw(1, 30), kind("none"), kind("none")
    with pytest.raises(NotReadyError):
        _ = made.reference
    for metric in (made, given):
        metric.update_features(draw(2, 12))
    for part in rows.split(8):
        made.update_features(part, real=True)
    given.use_reference(ReferenceStatistics.from_features(rows, keep_rows=True))
    assert torch.allclose(made.reference.mean, given.reference.mean)
    assert float(made.estimate()) == pytest.approx(float(given.estimate()), rel=1e-6)
    given.use_reference(None)
    with pytest.raises(NotReadyError):
        given.estimate()


@pytest.mark.parametrize("kept", [True, False])
def test_a_reset_keeps_the_real_samples_if_it_shall(kept):
    metric = OptimisticFID("none", bound="none", reset_real_features=not kept)
    metric.update_features(draw(1, 30), real=True)
    metric.update_features(draw(2, 12))
    known = metric.reference
    metric.reset()
    assert metric.num_samples == 0
    if kept:
        assert metric.reference is known, "and what was derived from it"
    else:
        assert metric.num_features is None


def test_arms_share_one_reference_instead_of_the_real_samples():
    template = OptimisticFID("none", bound="none")
    template.update_features(draw(1, 30), real=True)
    arms = [template.fork() for _ in range(2)]
    assert arms[0].reference is arms[1].reference is template.reference
    assert not any(getattr(arms[0], name) for name in arms[0].real_states)


def test_first_batch_with_bad_rows_is_refused_too():
    metric = OptimisticFID("none", bound="none")
    with pytest.raises(InputError, match="1 of 2 rows"):
        metric.update_features(torch.tensor([[0.0, math.nan], [0.0, 1.0]]))
    assert metric.num_features is None
    metric.update_features(torch.rand(3, 4))
    assert metric.num_features == 4


def test_real_and_generated_must_agree_in_dimension():
    metric = OptimisticFID("none", bound="none")
    metric.update_features(draw(1, 5), real=True)
    with pytest.raises(InputError, match=rf"\(n, {DIM}\)"):
        metric.update_features(draw(1, 5, dim=3))
    assert metric.num_samples == 0


def test_real_samples_next_to_a_reference_are_refused(reference):
    metric = OptimisticFID("none", reference, bound="none")
    with pytest.raises(InputError, match="only generated samples"):
        metric.update_features(draw(1, 5), real=True)


def test_a_reference_of_another_extractor_is_refused(tmp_path):
    flat = ReferenceStatistics.from_images([torch.rand(9, 1, 2, 2)], nn.Flatten())
    other = ReferenceStatistics(flat.mean, flat.covariance, 9, extractor="dinov2-vit-l-14")
    OptimisticFID(nn.Flatten(), flat.save(tmp_path / "flat.npz"), bound="none").update(torch.rand(4, 1, 2, 2))
    OptimisticFID("none", other, bound="none")  # nobody knows where ready-made features come from
    with pytest.raises(InputError, match="of the extractor 'module:Flatten', but got one of 'dinov2-vit-l-14'"):
        OptimisticFID(nn.Flatten(), other, bound="none")


def test_a_reference_of_another_dimension_is_refused(reference):
    class Net(nn.Module):
        num_features = 7

    with pytest.raises(InputError, match=f"dimension 7 for the extractor 'module:Net', but got one of dimension {DIM}"):
        OptimisticFID(Net(), reference, bound="none")
