"""Diffusers pipelines as arms."""

from __future__ import annotations

import inspect
import re
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from typing import Any, Literal

import numpy as np
import torch
from torch import Tensor

from tm_bandit._arguments import check_choice, check_count, check_name
from tm_bandit.errors import InputError, warn
from tm_bandit.execution.conditions import is_sequence

#: Names under which pipelines take conditions, and those under which they return samples.
_CONDITIONS = ("prompt", "class_labels")
_OUTPUTS = ("images", "frames", "audios")

#: Further texts, of which pipelines that get a list of prompts take one per prompt.
_TEXTS = re.compile(r"(negative_)?prompt(_\d)?")


class PipelineSampler:
    """A diffusers pipeline, or a callable of its kind, as a sampler: ``sampler(n, generator=, conditions=)``.

    Every image has a generator of its own, seeded from the draw's generator. So an image depends only on its position
    in the draw, up to rounding, not on the batch in which it is made, and two samplers that are given the same
    generator and conditions draw *paired* images: same noise, same prompt.

    The pipeline runs on its own device and in its own precision, inside whatever ``autocast`` surrounds the call; its
    scheduler and progress bar are restored afterwards.

    Args:
        pipe: the pipeline.
        batch_size: images per call of the pipeline; ``None`` makes the whole draw in one call.
        condition: name of the pipeline's argument that conditions are given to; ``None`` takes ``prompt`` or
            ``class_labels``, whichever it has. Dictionaries are passed as separate arguments.
        output: ``"uint8"`` for images of 0 to 255, as metrics take them by default, or ``"float"`` for those in
            [0, 1], for ``normalize=True``.
        call_kwargs: arguments of every call (``guidance_scale=``, ``num_inference_steps=``, ``prompt=``, ...). A
            ``scheduler`` takes the place of the pipeline's own: a class, configured like the pipeline's
            scheduler, or an object.

    Attributes:
        blanked: how many images the pipeline's safety checker has replaced by black ones so far.

    Raises:
        InputError: if ``pipe`` cannot be called, or does not take an argument.

    Example:
        >>> def pipe(prompt, generator, gain=1.0):  # any callable of this kind
        ...     return {"images": torch.stack([torch.rand(3, 8, 8, generator=g) for g in generator]) * gain}
        >>> sampler = PipelineSampler(pipe, gain=0.5)
        >>> images = sampler(2, generator=torch.Generator().manual_seed(0), conditions=["a cat", "a dog"])
        >>> images.shape, images.dtype
        (torch.Size([2, 3, 8, 8]), torch.uint8)
    """

    def __init__(
        self,
        pipe: Callable[..., Any],
        *,
        batch_size: int | None = None,
        condition: str | None = None,
        output: Literal["uint8", "float"] = "uint8",
        **call_kwargs: Any,
    ) -> None:
        if not callable(pipe):
            raise InputError(f"Expected a diffusers pipeline or a callable of its kind, but got {pipe!r}.")
        self.pipe = pipe
        self.batch_size = None if batch_size is None else check_count("batch_size", batch_size, 1)
        self.output = check_choice("output", output, ("uint8", "float"))
        self.call_kwargs = call_kwargs
        self.blanked = 0
        parameters = inspect.signature(pipe).parameters
        self._takes = set(parameters)
        self._takes_all = any(p.kind is p.VAR_KEYWORD for p in parameters.values())
        if condition is not None:
            condition = check_name("the argument for conditions", condition)
        self.condition = condition or next((name for name in _CONDITIONS if name in self._takes), None)
        self._check(call_kwargs)
        if condition is not None:
            self._check({condition: None})

    def _check(self, arguments: Mapping[str, Any]) -> None:
        unknown = set() if self._takes_all else set(arguments) - self._takes - {"scheduler"}
        if unknown:
            raise InputError(
                f"Expected arguments of {type(self.pipe).__name__}, but got {', '.join(sorted(unknown))}; it takes "
                f"{', '.join(sorted(self._takes))}."
            )
        wanted = arguments.get("scheduler")
        if (
            getattr(self.pipe, "scheduler", None) is not None
            and wanted is not None
            and not hasattr(wanted, "from_config")
        ):
            raise InputError(
                f"Expected `scheduler` to be a scheduler of diffusers or the class of one, but got {wanted!r}."
            )

    def arms(self, variants: Mapping[str, Mapping[str, Any]]) -> dict[str, PipelineSampler]:
        """Return samplers of this pipeline, one for each combination of further arguments.

        Args:
            variants: arguments by name, as :func:`grid` returns them.

        Raises:
            InputError: if these are not variants, or not arguments of the pipeline.
        """
        known = isinstance(variants, Mapping) and all(isinstance(options, Mapping) for options in variants.values())
        if not known:
            raise InputError(
                "Expected variants as {name: {argument: value}}, but got something else; `grid` makes them."
            )
        shared: dict[str, Any] = {"batch_size": self.batch_size, "condition": self.condition, "output": self.output}
        return {
            name: PipelineSampler(self.pipe, **shared, **{**self.call_kwargs, **options})
            for name, options in variants.items()
        }

    def __call__(
        self,
        num_samples: int,
        generator: torch.Generator | None = None,
        conditions: Sequence[Any] | Tensor | None = None,
        **call_kwargs: Any,
    ) -> Tensor:
        """Draw images.

        Args:
            num_samples: how many.
            generator: the draw's generator; ``None`` seeds from the global one.
            conditions: one per image: prompts, class labels, or dictionaries of arguments.
            call_kwargs: arguments of this call, besides those of the constructor.

        Returns:
            Images, shape ``(n, c, h, w)``.

        Raises:
            InputError: if the conditions do not fit, or the pipeline returns another number of images.
        """
        self._check(call_kwargs)
        num_samples = check_count("num_samples", num_samples, 0)
        if generator is not None and not isinstance(generator, torch.Generator):
            raise InputError(f"Expected a torch.Generator, but got a {type(generator).__name__}.")
        if conditions is not None and not is_sequence(conditions):
            raise InputError(f"Expected one condition per image, but got a {type(conditions).__name__}.")
        if conditions is not None and len(conditions) != num_samples:
            raise InputError(f"Expected one condition per image, but got {len(conditions)} for {num_samples} images.")
        if isinstance(conditions, Tensor):
            conditions = conditions.tolist()
        # One by one: how many numbers are drawn at once must not matter.
        seeds = [int(_draw(generator)) for _ in range(num_samples)]
        step = self.batch_size or max(num_samples, 1)
        parts = []
        with self._prepared({**self.call_kwargs, **call_kwargs}) as arguments, torch.no_grad():
            for start in range(0, num_samples, step):
                given = None if conditions is None else conditions[start : start + step]
                parts.append(self._call(seeds[start : start + step], given, arguments))
        return torch.cat(parts) if parts else torch.zeros(0, 3, 1, 1, dtype=torch.uint8)

    def _call(self, seeds: list[int], conditions: Sequence[Any] | None, fixed: Mapping[str, Any]) -> Tensor:
        count = len(seeds)
        texts = {k: [v] * count for k, v in fixed.items() if isinstance(v, str) and _TEXTS.fullmatch(k)}
        arguments = {**fixed, **texts, **self._conditions(count, conditions, fixed)}
        if "generator" in self._takes or self._takes_all:
            # On the CPU: diffusers moves the noise to the pipeline's device, so every device draws the same.
            arguments["generator"] = [torch.Generator().manual_seed(seed) for seed in seeds]
        if "output_type" in self._takes:
            arguments.setdefault("output_type", "pt")
        arguments.pop("return_dict", None)  # a tuple does not say which part is what
        found = self.pipe(**arguments)
        images = _as_images(_first(found), self.output)
        if len(images) != count:
            raise InputError(
                f"Expected {count} images of {type(self.pipe).__name__}, but got {len(images)}; leave "
                "`num_images_per_prompt` at 1, and make the pipeline drop none."
            )
        self._count_blanks(found)
        return images

    def _conditions(self, count: int, conditions: Sequence[Any] | None, fixed: Mapping[str, Any]) -> dict[str, Any]:
        """Return the arguments that say what to draw, and how many."""
        if conditions is not None and count and all(isinstance(condition, Mapping) for condition in conditions):
            names = {name: None for condition in conditions for name in condition}
            self._check(names)
            return {name: [condition[name] for condition in conditions] for name in names}
        if conditions is not None:
            if self.condition is None:
                raise InputError(
                    f"Expected a pipeline that takes prompts or class labels, because there are conditions, but got "
                    f"{type(self.pipe).__name__}; say which argument takes them with condition=."
                )
            return {self.condition: list(conditions)}
        if self.condition is not None and self.condition in fixed:
            always = fixed[self.condition]
            return {self.condition: [always] * count if isinstance(always, (str, int)) else always}
        if "batch_size" in self._takes:
            return {"batch_size": count}
        if self.condition is not None:
            raise InputError(
                f"Expected conditions for the argument {self.condition!r} of {type(self.pipe).__name__}, but got none; "
                f"give the selector conditions=, or the sampler {self.condition}=."
            )
        return {}

    @contextmanager
    def _prepared(self, arguments: dict[str, Any]) -> Iterator[dict[str, Any]]:
        """Lend the pipeline another scheduler, and keep its progress bar quiet."""
        pipe: Any = self.pipe
        quiet = hasattr(pipe, "set_progress_bar_config")
        before: Any = getattr(pipe, "scheduler", None)
        bar = getattr(pipe, "_progress_bar_config", {})
        wanted: Any = arguments.pop("scheduler", None) if before is not None else None
        if wanted is not None:
            make: Any = wanted.from_config
            pipe.scheduler = make(before.config) if isinstance(wanted, type) else wanted
        if quiet:
            pipe.set_progress_bar_config(**{**bar, "disable": True})
        try:
            yield arguments
        finally:
            if wanted is not None:
                pipe.scheduler = before
            if quiet:
                pipe.set_progress_bar_config(**bar)

    def _count_blanks(self, found: Any) -> None:
        flags = _named(found, "nsfw_content_detected") or []
        blanks = sum(map(bool, flags))
        if blanks and not self.blanked:
            warn(
                f"The safety checker of {type(self.pipe).__name__} has made {blanks} of {len(flags)} images black, and "
                "they are scored as they are; `blanked` counts them. Use other prompts, or a pipeline without it."
            )
        self.blanked += blanks


def _draw(generator: torch.Generator | None) -> Tensor:
    device = torch.device("cpu") if generator is None else generator.device
    return torch.randint(2**62, (), generator=generator, device=device)


def _named(found: Any, name: str) -> Any:
    return found.get(name) if isinstance(found, Mapping) else getattr(found, name, None)


def _first(found: Any) -> Any:
    """Return the samples in what a pipeline returned: an object, a dictionary or a tuple."""
    for name in _OUTPUTS:
        value = _named(found, name)
        if value is not None:
            return value
    return found[0] if isinstance(found, tuple) else found


def _as_images(samples: Any, output: str) -> Tensor:
    """Return a tensor, an array ``(n, h, w, c)`` or a list of either or of PIL images, as ``(n, c, h, w)``."""
    if isinstance(samples, (list, tuple)):
        return torch.cat([_as_images(_batched(sample), output) for sample in samples])
    if isinstance(samples, np.ndarray):
        samples = torch.from_numpy(np.ascontiguousarray(np.moveaxis(samples, -1, -3)))
    if not isinstance(samples, Tensor):
        raise InputError(
            f"Expected the pipeline to return images (tensors, arrays or PIL images), but got a "
            f"{type(samples).__name__}."
        )
    if samples.is_floating_point():
        values = samples.float().clamp(0.0, 1.0)
        return values if output == "float" else (values * 255).round().to(torch.uint8)
    return samples if output == "uint8" else samples.float() / 255


def _batched(sample: Any) -> Any:
    if isinstance(sample, (Tensor, np.ndarray)):
        return sample[None]
    return np.asarray(sample.convert("RGB"))[None] if hasattr(sample, "convert") else sample
