"""What every network is given, and what it may return."""

import copy
import pickle

import pytest
import torch
from torch import nn

from tests.extractors.networks import Encoder
from tm_bandit._device import as_float64
from tm_bandit.errors import InputError
from tm_bandit.extractors import Extractor, resolve
from tm_bandit.extractors.extractor import RememberingNetwork, check_images, evaluating


def test_modules_run_in_evaluation_mode_and_get_their_own_mode_back():
    module = Encoder().train()
    module.norm.eval()
    extractor = resolve(module)
    inputs = torch.randn(8, 2, generator=torch.Generator().manual_seed(0))
    assert torch.equal(extractor(inputs), extractor(inputs))  # dropout would differ
    assert module.training
    assert module.dropout.training
    assert not module.norm.training
    assert module.norm.num_batches_tracked == 0


def test_a_thread_that_is_done_leaves_the_others_in_evaluation_mode():
    module = Encoder().train()
    first, second = evaluating(module), evaluating(module)
    first.__enter__()
    second.__enter__()
    first.__exit__(None, None, None)
    assert not module.training
    assert not module.dropout.training
    second.__exit__(None, None, None)
    assert module.training
    assert module.dropout.training


def test_copies_share_the_network():
    extractor = resolve(Encoder())
    assert copy.deepcopy(extractor) is extractor
    assert copy.deepcopy([extractor.network])[0] is extractor.network
    restored = pickle.loads(pickle.dumps(extractor))
    assert torch.equal(restored(torch.ones(2, 2)), extractor(torch.ones(2, 2)))


def test_half_precision_networks_get_inputs_of_their_dtype():
    extractor = resolve(nn.Linear(3, 2)).to(dtype=torch.bfloat16)
    rows = extractor(torch.ones(4, 3))
    assert rows.dtype == torch.bfloat16
    assert as_float64(rows).dtype == torch.float64


def test_inputs_travel_to_the_network():
    """The meta device stands for "another device": whatever reaches it has been moved there."""
    extractor = resolve(nn.Linear(3, 2)).to("meta")
    assert extractor.pinned
    assert extractor(torch.ones(4, 3)).device.type == "meta"
    extractor.follow(torch.device("cpu"))  # a metric that moves does not take a pinned network along
    assert extractor(torch.ones(4, 3)).device.type == "meta"


def test_networks_follow_unless_pinned():
    extractor = resolve(nn.Linear(3, 2))
    extractor.follow(torch.device("meta"))
    assert extractor(torch.ones(4, 3)).device.type == "meta"


@pytest.mark.parametrize(
    ("images", "normalize", "message"),
    [
        (torch.zeros(2, 3, 8, 8), False, "uint8.*but got torch.float32.*normalize=True"),
        (torch.zeros(2, 3, 8, 8, dtype=torch.int64), False, "uint8.*but got torch.int64"),
        (torch.zeros(2, 3, 8, 8, dtype=torch.uint8), True, "float images.*but got torch.uint8"),
        (torch.full((2, 3, 8, 8), 1.5), True, "from 1.5 to 1.5"),
        (torch.full((2, 3, 8, 8), -1.0), True, r"from -1 to -1.*\(images \+ 1\) / 2"),
        (torch.full((2, 3, 8, 8), float("nan")), True, "NaN or infinite"),
        (torch.full((2, 3, 8, 8), 255.0), True, "divide images in .0, 255. by 255"),
        (torch.zeros(3, 8, 8, dtype=torch.uint8), False, r"\(N, 3, H, W\), but got shape \(3, 8, 8\)"),
        (torch.zeros(2, 1, 8, 8, dtype=torch.uint8), False, "expand"),
        (torch.zeros(2, 3, 0, 8, dtype=torch.uint8), False, "at least one pixel"),
        ([1, 2], False, "a list"),
    ],
)
def test_images_are_checked(images, normalize, message):
    with pytest.raises(InputError, match=message):
        check_images(images, normalize=normalize)


def test_images_in_order_pass():
    check_images(torch.zeros(2, 3, 8, 8, dtype=torch.uint8), normalize=False)
    check_images(torch.rand(2, 3, 8, 8).half(), normalize=True)
    check_images(torch.rand(0, 3, 8, 8), normalize=True)


def test_normalize_checks_the_range_for_modules_too():
    extractor = resolve(nn.Flatten(), normalize=True)
    assert extractor(torch.rand(2, 3, 4, 4)).shape == (2, 48)
    with pytest.raises(InputError, match="from -1 to -1"):
        extractor(torch.full((2, 3, 4, 4), -1.0))


@pytest.mark.parametrize(
    ("network", "message"),
    [
        (lambda x: (x,), "a tuple"),
        (lambda x: x[:, None], r"shape \(4, 1, 3\)"),
        (lambda x: x[:2], "2 rows for 4 samples"),
    ],
)
def test_answers_of_networks_are_checked(network, message):
    with pytest.raises(InputError, match=message):
        resolve(network)(torch.ones(4, 3))


def test_a_thread_gets_the_features_of_its_own_batch():
    network = RememberingNetwork(nn.Flatten(), "any")
    batch, features = torch.rand(2, 3), torch.ones(2, 3)
    assert network._remembered(batch, lambda: features) is features
    recognises, _ = network._latest

    def meanwhile(inputs):
        network._latest = (lambda _: True, torch.zeros(2, 3))  # what another thread does after this one has looked
        return recognises(inputs)

    network._latest = meanwhile, features
    assert network._remembered(batch, lambda: pytest.fail("made twice")) is features


def test_names_are_shown():
    extractor = resolve(nn.Flatten())
    assert repr(extractor) == "Extractor(module:Flatten)"
    assert repr(extractor.network) == "Network(module:Flatten)"
    assert isinstance(extractor, Extractor)
