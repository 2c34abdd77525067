"""The digits and their classifier."""

import pytest
import torch

from tm_bandit.demo import digits


@pytest.fixture(scope="module")
def data():
    return digits.load_digits()


def test_digits_are_split_without_overlap(data):
    assert data.train_images.shape == (1400, 1, 8, 8)
    assert len(data.images) == 1797
    assert 0 <= data.images.min() < data.images.max() <= 1
    again = digits.load_digits()
    assert torch.equal(again.test_images, data.test_images)
    assert not torch.equal(digits.load_digits(seed=1).test_images, data.test_images)


def test_classifier_is_a_real_one(data):
    state = torch.get_rng_state()
    net = digits.train_classifier(data)
    assert torch.equal(state, torch.get_rng_state()), "the global random state is the caller's"
    assert net.accuracy(data.test_images, data.test_labels) > 0.975
    assert net(data.images[:5]).shape == (5, digits.NUM_FEATURES)
    assert digits.Logits(net)(data.images[:5]).shape == (5, digits.NUM_CLASSES)
