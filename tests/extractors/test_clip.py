"""CLIP with random weights: the features of transformers, the score of torchmetrics, one pass for both."""

import pickle
import re

import pytest
import torch
from torchmetrics import MetricCollection
from torchmetrics.multimodal import CLIPScore
from transformers import CLIPModel

from tests.samplers import tiny
from tm_bandit import OptimisticKID, OptimisticMean, ReferenceStatistics
from tm_bandit.errors import InputError, WeightsError
from tm_bandit.extractors import Clip, resolve

PROMPTS = ["a cat", "two dogs", "a cat"]


@pytest.fixture(scope="module")
def parts(tmp_path_factory):
    return tiny.clip(tmp_path_factory.mktemp("clip"))


@pytest.fixture
def clip(parts):
    return Clip(*parts)


def pictures(count=3, seed=0):
    return torch.randint(0, 256, (count, 3, 20, 24), dtype=torch.uint8, generator=torch.Generator().manual_seed(seed))


def test_features_are_those_of_transformers(clip, parts):
    model, processor = parts
    pixels = processor(images=list(pictures()), return_tensors="pt")["pixel_values"]
    with torch.no_grad():
        expected = model.visual_projection(model.vision_model(pixels).pooler_output)
    assert torch.allclose(clip(pictures()), expected, atol=1e-6)
    assert torch.allclose(clip(pictures() / 255.0), expected, atol=1e-6)
    assert clip(pictures(0)).shape == (0, 8)
    extractor = resolve(clip)
    assert (extractor.num_features, extractor.network) == (8, clip)


def test_scores_are_cosines_of_each_image_with_its_own_prompt(clip, parts):
    model, processor = parts
    ready = processor(text=PROMPTS, images=list(pictures()), padding=True, return_tensors="pt")
    with torch.no_grad():
        output = model(**ready)
    expected = (
        100
        * (output.image_embeds * output.text_embeds).sum(1)
        / (output.image_embeds.norm(dim=1) * output.text_embeds.norm(dim=1))
    )
    assert torch.allclose(clip.score(pictures(), PROMPTS), expected, atol=1e-4)


class Plain(CLIPModel):
    """Returns features as tensors, as transformers did before version 5; torchmetrics 1.9 still expects that."""

    def get_image_features(self, *args, **kwargs):
        found = super().get_image_features(*args, **kwargs)
        return getattr(found, "pooler_output", found)

    def get_text_features(self, *args, **kwargs):
        found = super().get_text_features(*args, **kwargs)
        return getattr(found, "pooler_output", found)


def test_torchmetrics_clip_score_as_a_score(clip, parts):
    plain = Plain(parts[0].config).eval()
    plain.load_state_dict(parts[0].state_dict())
    theirs = CLIPScore(model_name_or_path=lambda: (plain, parts[1]))
    metric = OptimisticMean(theirs)
    scores = clip.score(pictures(), PROMPTS).double()
    # torchmetrics cuts off below zero, and a network of random weights may get there.
    images, prompts = pictures()[scores > 0], [PROMPTS[i] for i in range(len(scores)) if scores[i] > 0]
    assert prompts
    metric.update(images, prompts)
    assert torch.allclose(-metric.row_scores(), scores[scores > 0], atol=1e-3)
    theirs.update(images, prompts)
    assert float(-metric.row_scores().mean()) == pytest.approx(float(theirs.compute()), abs=1e-3)


def test_one_pass_for_score_and_distance(clip):
    reference = ReferenceStatistics.from_images([pictures(20, seed=1)], clip, keep_rows=True)
    metrics = {"score": OptimisticMean(clip.score), "cmmd": OptimisticKID.cmmd(clip, reference)}
    passes = []
    handle = clip.function.vision_model.register_forward_pre_hook(lambda *_: passes.append(1))
    images = pictures()
    metrics["score"].update(images, PROMPTS)
    metrics["cmmd"].update(images)
    assert len(passes) == 1
    images[0] = 0  # another batch now
    metrics["cmmd"].update(images)
    assert len(passes) == 2
    handle.remove()
    assert metrics["score"].needs_conditions
    assert len(MetricCollection(metrics)) == 2
    assert torch.equal(pickle.loads(pickle.dumps(clip))(images), clip(images))


def test_a_model_in_a_folder(clip, parts, tmp_path):
    for part in parts:
        part.save_pretrained(tmp_path)
    assert torch.allclose(Clip(tmp_path)(pictures()), clip(pictures()), atol=1e-6)


@pytest.mark.parametrize("folder", ["nothing", "no/such/folder"])
def test_a_folder_that_does_not_exist(folder, tmp_path):
    reason = f"Expected a folder that holds a CLIP model, but there is none at '{tmp_path / folder}'; give a folder "
    with pytest.raises(WeightsError, match=f"^{re.escape(reason)}"):
        Clip(tmp_path / folder)


@pytest.mark.parametrize("name", ["", "a" * 300, "clip\0"])
def test_a_name_that_nothing_can_have(name):
    with pytest.raises(WeightsError, match="there is none at"):
        Clip(name)


def test_a_file_is_no_folder(tmp_path):
    (tmp_path / "clip.pt").touch()
    with pytest.raises(WeightsError, match="there is none at"):
        Clip(tmp_path / "clip.pt")


def test_a_folder_without_weights(parts, tmp_path):
    parts[1].save_pretrained(tmp_path)
    with pytest.raises(WeightsError, match=r"could not load them: .+; give a folder written by save_pretrained, or "):
        Clip(tmp_path)


def test_bad_input(clip, parts):
    with pytest.raises(InputError, match="Expected the processor of the CLIP model"):
        Clip(parts[0])
    with pytest.raises(InputError, match="Expected prompts, which are strings"):
        clip.score(pictures(), [1, 2, 3])
    with pytest.raises(InputError, match="RGB images"):
        clip(torch.zeros(2, 1, 8, 8))
