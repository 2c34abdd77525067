"""CLIP from the transformers package: features of images and their agreement with prompts, in one pass for both."""

from __future__ import annotations

import os
import re
from collections.abc import Sequence
from typing import Any

import torch
from torch import Tensor

from tm_bandit.errors import InputError, WeightsError
from tm_bandit.extractors.extractor import RememberingNetwork, check_images, evaluating

#: Names on the hub, which have at most 96 characters and one slash; everything else is a path.
_HUB_NAME = re.compile(r"(?=.{1,96}$)\w[\w.-]*(/\w[\w.-]*)?")

_ADVICE = "give a folder written by save_pretrained, or a name on the Hugging Face hub (openai/clip-vit-large-patch14)"


class Clip(RememberingNetwork):
    """A CLIP model as a feature network and as a score, run once per batch however many metrics ask.

    ``OptimisticKID.cmmd(clip, reference)`` and ``OptimisticMean(clip.score)`` of the same images cost one pass of the
    image tower: the features of the latest batch are remembered.

    Args:
        model: name or folder of a model, as ``transformers`` knows it, or a ``CLIPModel``.
        processor: its ``CLIPProcessor``, if a model object is given.

    Raises:
        WeightsError: if the model cannot be loaded.
        InputError: if it is not a model, or a model object comes without its processor.

    Example::

        clip = Clip("openai/clip-vit-large-patch14")
        score = OptimisticMean(clip.score, bounded=(-100, 100))
        score.update(images, prompts)
    """

    def __init__(self, model: Any, processor: Any = None) -> None:
        if isinstance(model, (str, os.PathLike)):
            model, processor, label = *_load(os.fspath(model)), str(model)
        else:
            label = f"clip:{getattr(model, 'name_or_path', '') or type(model).__name__}"
        width = getattr(getattr(model, "config", None), "projection_dim", None)
        if not isinstance(width, int):
            raise InputError(f"Expected a CLIP model or the name of one, but got a {type(model).__name__}.")
        if processor is None:
            raise InputError("Expected the processor of the CLIP model, but got none; give Clip(model, processor).")
        super().__init__(model, label)
        self.processor = processor
        self.num_features = width

    def forward(self, inputs: Any, layer: str | None = None) -> Tensor:
        """Return the features of images, not normalised.

        Args:
            inputs: images of shape ``(N, 3, H, W)``: uint8, or floats in [0, 1].
            layer: not used.
        """
        check_images(inputs, normalize=isinstance(inputs, Tensor) and inputs.is_floating_point())
        return self._remembered(inputs, lambda: self._features(inputs))

    def _features(self, images: Tensor) -> Tensor:
        pixels = (images * 255).round().byte() if images.is_floating_point() else images
        if not len(pixels):
            return torch.zeros(0, self.num_features)
        return self._run("get_image_features", images=list(pixels.cpu()))

    def score(self, images: Tensor, prompts: Sequence[str]) -> Tensor:
        """Return the CLIPScore of every image: 100 times the cosine between its features and its prompt's.

        Args:
            images: as in :meth:`forward`.
            prompts: one per image.
        """
        if not all(isinstance(prompt, str) for prompt in prompts):
            raise InputError("Expected prompts, which are strings, as conditions of a CLIPScore, but got others.")
        texts = {text: number for number, text in enumerate(dict.fromkeys(prompts))}
        rows = self._run("get_text_features", text=list(texts), padding=True, truncation=True)
        meant = rows[[texts[prompt] for prompt in prompts]]
        return 100 * torch.nn.functional.cosine_similarity(self.forward(images), meant)

    def _run(self, method: str, **inputs: Any) -> Tensor:
        model: Any = self.function
        ready = self.processor(return_tensors="pt", **inputs).to(model.device)
        with torch.no_grad(), evaluating(model):
            found = getattr(model, method)(**ready)
        # Before version 5 the features themselves, since then an output that holds them.
        return found if isinstance(found, Tensor) else found.pooler_output


def _load(name: str) -> tuple[Any, Any]:
    try:
        from transformers import CLIPModel, CLIPProcessor
    except ImportError as error:
        raise WeightsError("Expected the package transformers for CLIP; pip install tm-bandit[diffusers].") from error
    if not os.path.isdir(name) and not _HUB_NAME.fullmatch(name):
        raise WeightsError(f"Expected a folder that holds a CLIP model, but there is none at {name!r}; {_ADVICE}.")
    try:
        model: Any = CLIPModel.from_pretrained(name)
        return model.eval(), CLIPProcessor.from_pretrained(name)
    except Exception as error:  # transformers raises OSError, ValueError, or what the network stack raises
        # The first sentence says what is wrong; the others are about options of transformers.
        reason = " ".join(str(error).split()).partition(". ")[0].removesuffix(".")[:200]
        raise WeightsError(
            f"Expected the weights and the processor of the CLIP model {name!r}, but could not load them: {reason}; "
            f"{_ADVICE}."
        ) from error
