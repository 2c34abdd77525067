"""Our Inception path equals torchmetrics' bit for bit, and runs the network once for all who ask."""

import pickle

import pytest
import torch
from torchmetrics.image.fid import NoTrainInceptionV3

from tests._inception import random_images
from tm_bandit.errors import InputError
from tm_bandit.extractors import INCEPTION_LAYERS, resolve


@pytest.fixture(scope="module")
def images():
    return random_images(3, side=40)


@pytest.fixture
def calls(monkeypatch):
    """Batches that went through the network itself."""
    seen = []
    forward = NoTrainInceptionV3._torch_fidelity_forward

    def counted(self, x):
        seen.append(len(x))
        return forward(self, x)

    monkeypatch.setattr(NoTrainInceptionV3, "_torch_fidelity_forward", counted)
    return seen


@pytest.mark.parametrize("antialias", [True, False])
def test_features_equal_torchmetrics_bit_for_bit(weights_file, images, antialias):
    theirs = NoTrainInceptionV3("inception-v3-compat", ["2048"], str(weights_file), antialias=antialias)
    for layer, size in INCEPTION_LAYERS.items():
        feature = int(layer) if layer.isdigit() else layer
        ours = resolve(feature, weights_path=weights_file, antialias=antialias)
        theirs.features_list = [layer]
        rows = ours(images)
        assert rows.shape == (3, size) == (3, ours.num_features)
        assert torch.equal(rows, theirs(images)), layer
        assert rows.std() > 0


def test_float_images_are_converted_as_torchmetrics_does(weights_file, images):
    extractor = resolve(64, weights_path=weights_file, normalize=True)
    floats = images.float() / 255
    theirs = NoTrainInceptionV3("inception-v3-compat", ["64"], str(weights_file))
    assert torch.equal(extractor(floats), theirs((floats * 255).byte()))


def test_names_tell_layers_and_resizes_apart(weights_file):
    names = {
        resolve(layer, weights_path=weights_file, antialias=antialias).name
        for layer in (64, "logits")
        for antialias in (True, False)
    }
    assert names == {
        "inception-v3-compat/64",
        "inception-v3-compat/64+antialias",
        "inception-v3-compat/logits",
        "inception-v3-compat/logits+antialias",
    }


def test_one_network_per_file_and_one_pass_per_batch(weights_file, images, calls):
    pooled, logits = (resolve(layer, weights_path=weights_file) for layer in (2048, "logits_unbiased"))
    assert pooled.network is logits.network
    assert resolve(2048, weights_path=weights_file, antialias=False).network is not pooled.network
    batch = images.clone()
    pooled(batch)
    logits(batch)
    pooled(batch)
    assert calls == [3]
    pooled(images.clone())  # equal content, but a network cannot know that without looking
    assert calls == [3, 3]


def test_a_batch_that_was_changed_in_place_is_a_new_batch(weights_file, images, calls):
    extractor = resolve(2048, weights_path=weights_file)
    batch = images[:1].clone()
    first = extractor(batch)
    batch.copy_(images[1:2])
    second = extractor(batch)
    assert calls == [1, 1]
    assert not torch.equal(first, second)


def test_the_remembered_batch_is_not_kept_alive(weights_file, images):
    import weakref

    extractor = resolve(2048, weights_path=weights_file)
    batch = images[:1].clone()
    reference = weakref.ref(batch)
    extractor(batch)
    del batch
    assert reference() is None


def test_inference_mode_shares_and_notices_changes(weights_file, images, calls):
    pooled, logits = (resolve(layer, weights_path=weights_file) for layer in (2048, "logits_unbiased"))
    with torch.inference_mode():
        batch = images[:1].clone()
        first = pooled(batch)
        logits(batch)
        assert calls == [1]
        batch.copy_(images[1:2])
        assert not torch.equal(pooled(batch), first)
        assert calls == [1, 1]


def test_mixed_precision_around_it_changes_nothing(weights_file, images):
    extractor = resolve("logits_unbiased", weights_path=weights_file)
    with torch.autocast("cpu", dtype=torch.bfloat16):
        inside = extractor(images[:1].clone())
    assert torch.equal(inside, extractor(images[:1]))


def test_a_dtype_of_its_own(tmp_path, images):
    from tests._inception import random_weights_file

    # Another file, hence another network: the one that other tests share must stay in float32.
    path = random_weights_file(tmp_path, seed=1)
    extractor = resolve("logits_unbiased", weights_path=path)
    single = extractor(images[:1]).double()
    for dtype, error in ((torch.float64, 1e-5), (torch.bfloat16, 0.2)):
        rows = extractor.to(dtype=dtype)(images[:1])
        assert rows.dtype == dtype
        assert float((rows.double() - single).norm() / single.norm()) < error


def test_empty_batches(weights_file):
    empty = torch.zeros(0, 3, 8, 8, dtype=torch.uint8)
    for layer in (64, 2048, "logits_unbiased"):
        extractor = resolve(layer, weights_path=weights_file)
        assert extractor(empty).shape == (0, extractor.num_features)


def test_images_are_checked_before_the_network_runs(weights_file, calls):
    with pytest.raises(InputError, match="uint8"):
        resolve(2048, weights_path=weights_file)(torch.zeros(1, 3, 8, 8))
    assert calls == []


def test_pickled_networks_give_the_same_features(weights_file, images):
    extractor = resolve(64, weights_path=weights_file)
    extractor(images)
    assert torch.equal(pickle.loads(pickle.dumps(extractor))(images), extractor(images))
