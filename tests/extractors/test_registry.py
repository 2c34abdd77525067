"""What `feature=` may be, and what a network may be given and may return."""

import copy
import pickle

import pytest
import torch
from torch import nn

from tm_bandit._device import as_float64, exact_device
from tm_bandit.errors import InputError
from tm_bandit.extractors import FIDELITY_NETWORKS, Extractor, resolve
from tm_bandit.extractors.base import check_images


class Encoder(nn.Module):
    """Two mean values per sample, with parameters so that it has a device and a dtype."""

    num_features = 2

    def __init__(self):
        super().__init__()
        self.norm = nn.BatchNorm1d(2)
        self.dropout = nn.Dropout(0.5)

    def forward(self, x):
        return self.dropout(self.norm(x.flatten(1)[:, :2]))


def test_modules():
    module = Encoder()
    extractor = resolve(module)
    assert (extractor.name, extractor.num_features) == ("module:Encoder", 2)
    rows = extractor(torch.ones(3, 2))
    assert rows.shape == (3, 2)
    assert not rows.requires_grad


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


def test_callables_of_any_modality():
    def embed(sentences):
        return torch.tensor([[float(len(s)), float(s.count(" "))] for s in sentences])

    extractor = resolve(embed)
    assert "embed" in extractor.name
    assert extractor(["to be or not", "to be"]).tolist() == [[12.0, 3.0], [5.0, 1.0]]


@pytest.mark.parametrize("nothing", ["none", None])
def test_none_takes_rows_as_they_are(nothing):
    extractor = resolve(nothing)
    rows = torch.randn(4, 5)
    assert extractor.name == "none"
    assert extractor(rows) is not None
    assert torch.equal(extractor(rows), rows)
    with pytest.raises(InputError, match=r"shape \(2, 3, 4, 4\)"):
        extractor(torch.zeros(2, 3, 4, 4))


def test_an_extractor_is_taken_as_it_is():
    extractor = resolve(Encoder())
    assert resolve(extractor) is extractor


@pytest.mark.parametrize("feature", [13, "inception", "2047", True, 2.5, [2048]])
def test_unknown_features_are_refused_with_the_list(feature):
    with pytest.raises(InputError, match=r"2048.*dinov2-vit-l-14.*but got"):
        resolve(feature)


@pytest.mark.parametrize("flag", ["normalize", "antialias"])
def test_flags_are_bools(flag):
    with pytest.raises(InputError, match="bools"):
        resolve("none", **{flag: 1})


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


def test_devices_without_float64():
    assert exact_device("mps") == torch.device("cpu")
    assert exact_device("mps:0") == torch.device("cpu")
    assert exact_device("cuda:1") == torch.device("cuda:1")
    assert exact_device("cpu") == torch.device("cpu")


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


def test_the_list_of_networks_is_that_of_torch_fidelity():
    from torch_fidelity.registry import FEATURE_EXTRACTORS_REGISTRY

    assert set(FIDELITY_NETWORKS) | {"inception-v3-compat"} == set(FEATURE_EXTRACTORS_REGISTRY)


def test_names_are_shown():
    extractor = resolve(nn.Flatten())
    assert repr(extractor) == "Extractor(module:Flatten)"
    assert repr(extractor.network) == "Network(module:Flatten)"
    assert isinstance(extractor, Extractor)
