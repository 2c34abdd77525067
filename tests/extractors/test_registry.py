"""What `feature=` may be."""

import pytest
import torch

from tests.extractors.networks import Encoder
from tm_bandit.errors import InputError
from tm_bandit.extractors import FIDELITY_NETWORKS, resolve


def test_modules():
    module = Encoder()
    extractor = resolve(module)
    assert (extractor.name, extractor.num_features) == ("module:Encoder", 2)
    rows = extractor(torch.ones(3, 2))
    assert rows.shape == (3, 2)
    assert not rows.requires_grad


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


def test_the_list_of_networks_is_that_of_torch_fidelity():
    from torch_fidelity.registry import FEATURE_EXTRACTORS_REGISTRY

    assert set(FIDELITY_NETWORKS) | {"inception-v3-compat"} == set(FEATURE_EXTRACTORS_REGISTRY)
