"""Diffusers pipelines as arms."""

from __future__ import annotations

import inspect
import math
import re
import threading
import weakref
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager, nullcontext
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

#: How far values of pictures may be outside of [0, 1] without a word: what rounding in half precision adds.
_ROUNDING = 1e-3

#: Further texts, of which pipelines that get a list of prompts take one per prompt.
_TEXTS = re.compile(r"(negative_)?prompt(_\d)?")


#: Arguments that make several samples of one prompt.
_PER_PROMPT = re.compile(r"num_\w+_per_prompt")

#: A pipeline's scheduler holds the state of one call, so threads take turns; by the pipeline's id, while it is used.
_turns: weakref.WeakValueDictionary[int, Any] = weakref.WeakValueDictionary()


class PipelineSampler:
    """A diffusers pipeline, or a callable of its kind, as a sampler: ``sampler(n, generator=, conditions=)``.

    Every image has a generator of its own, seeded from the draw's generator. So an image depends only on its position
    in the draw, up to rounding, not on the batch in which it is made, and two samplers that are given the same
    generator and conditions draw *paired* images: same noise, same prompt.

    The pipeline runs on its own device and in its own precision, inside whatever ``autocast`` surrounds the call; its
    scheduler and progress bar are restored afterwards. Threads that share a pipeline use it one after the other.

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
        self._cut = False
        self._turn = _turns.setdefault(id(pipe), threading.RLock())
        try:
            parameters = inspect.signature(pipe).parameters
        except (TypeError, ValueError) as error:  # written in C
            raise InputError(f"Expected a callable with named arguments, but got {pipe!r}; wrap it.") from error
        self._takes = set(parameters)
        self._takes_all = any(p.kind is p.VAR_KEYWORD for p in parameters.values())
        if condition is not None:
            condition = check_name("the argument for conditions", condition)
        self.condition = condition or next((name for name in _CONDITIONS if name in self._takes), None)
        self._check(call_kwargs)
        if condition is not None:
            self._check({condition: None})

    def __getstate__(self) -> dict[str, Any]:
        """Leave the lock to this process."""
        return {name: value for name, value in vars(self).items() if name != "_turn"}

    def __setstate__(self, state: dict[str, Any]) -> None:
        vars(self).update(state)
        self._turn = _turns.setdefault(id(self.pipe), threading.RLock())

    def _check(self, arguments: Mapping[str, Any]) -> None:
        lent = {"scheduler"} if getattr(self.pipe, "scheduler", None) is not None else set()
        unknown = set() if self._takes_all else set(arguments) - self._takes - lent
        if unknown:
            raise InputError(
                f"Expected arguments of {type(self.pipe).__name__}, but got {', '.join(sorted(unknown))}; it takes "
                f"{', '.join(sorted(self._takes))}."
            )
        several = [name for name, value in arguments.items() if _PER_PROMPT.fullmatch(name) and value != 1]
        if several:
            raise InputError(
                f"Expected {several[0]}=1, because every image has its own noise and prompt, but got "
                f"{arguments[several[0]]!r}; leave it out, and repeat prompts in conditions."
            )
        wanted = arguments.get("scheduler")
        if lent and wanted is not None and not hasattr(wanted, "from_config"):
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
        # A callable without a scheduler, one that asks a server say, is left to all threads at once.
        turn = self._turn if getattr(self.pipe, "scheduler", None) is not None else nullcontext()
        with turn, self._prepared({**self.call_kwargs, **call_kwargs}) as arguments, torch.no_grad():
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
        kind, samples = _first(found)
        images = self._finished(_as_tensor(samples, kind), kind)
        if len(images) != count:
            raise InputError(
                f"Expected {count} images of {type(self.pipe).__name__}, but got {len(images)}; leave "
                "`num_images_per_prompt` at 1, and make the pipeline drop none."
            )
        self._count_blanks(found)
        return images

    def _finished(self, values: Tensor, kind: str) -> Tensor:
        """Return finite samples; those of pictures in the wanted form."""
        if not values.is_floating_point():
            return values if self.output == "uint8" or kind == "audios" else values.float() / 255
        values = values.float()
        low, high = (float(end) for end in values.aminmax()) if values.numel() else (0.0, 1.0)
        if not (math.isfinite(low) and math.isfinite(high)):
            raise InputError(
                f"Expected finite values of {type(self.pipe).__name__}, but got NaN or infinite ones; half precision "
                "overflows at 65504, so try another dtype."
            )
        if kind == "audios":
            return values
        if (low < -_ROUNDING or high > 1.0 + _ROUNDING) and not self._cut:
            self._cut = True
            warn(
                f"{type(self.pipe).__name__} has returned pictures with values from {low:.3g} to {high:.3g}, and what "
                "is outside of [0, 1] is cut off; rescale [-1, 1] with `(images + 1) / 2`."
            )
        values = values.clamp(0.0, 1.0)
        return values if self.output == "float" else (values * 255).round().to(torch.uint8)

    def _conditions(self, count: int, conditions: Sequence[Any] | None, fixed: Mapping[str, Any]) -> dict[str, Any]:
        """Return the arguments that say what to draw, and how many."""
        # Some pipelines want to be told how many labels they get.
        sized = {"batch_size": count} if "batch_size" in self._takes else {}
        if conditions is not None and count and all(isinstance(condition, Mapping) for condition in conditions):
            names = dict.fromkeys(conditions[0])
            self._check({name: None for condition in conditions for name in condition})
            if any(set(condition) != set(names) for condition in conditions):
                raise InputError(
                    f"Expected conditions that all name the same arguments, but got {', '.join(names)} and others."
                )
            return {**sized, **{name: [condition[name] for condition in conditions] for name in names}}
        if conditions is not None:
            if self.condition is None:
                raise InputError(
                    f"Expected a pipeline that takes prompts or class labels, because there are conditions, but got "
                    f"{type(self.pipe).__name__}; say which argument takes them with condition=."
                )
            return {**sized, self.condition: list(conditions)}
        if self.condition is not None and self.condition in fixed:
            always = fixed[self.condition]
            if is_sequence(always) and len(always) != count:
                raise InputError(
                    f"Expected one {self.condition!r} for all images, but got {len(always)} for {count} images; give "
                    "them as conditions= to the selector."
                )
            return {**sized, self.condition: [always] * count if isinstance(always, (str, int)) else always}
        if sized:
            return sized
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


def _first(found: Any) -> tuple[str, Any]:
    """Return the samples in what a pipeline returned, an object, a dictionary or a tuple, and what they are."""
    for name in _OUTPUTS:
        value = _named(found, name)
        if value is not None:
            return name, value
    return _OUTPUTS[0], found[0] if isinstance(found, tuple) else found


def _as_tensor(samples: Any, kind: str) -> Tensor:
    """Return a tensor, an array ``(n, h, w, c)`` or a list of either or of PIL images, as ``(n, c, h, w)``.

    Frames have one dimension more, and sounds are left as they are.
    """
    if isinstance(samples, (list, tuple)) and len(samples):
        parts = [_as_tensor(_batched(sample, kind), kind) for sample in samples]
        if len({part.shape[1:] for part in parts}) > 1:
            raise InputError(f"Expected samples of one shape, but got {tuple(parts[0].shape[1:])} and others.")
        return torch.cat(parts)
    if isinstance(samples, np.ndarray):
        moved = samples if kind == "audios" or samples.ndim < 4 else np.moveaxis(samples, -1, -3)
        samples = torch.from_numpy(np.ascontiguousarray(moved))
    if not isinstance(samples, Tensor):
        raise InputError(
            f"Expected the pipeline to return images (tensors, arrays or PIL images), but got a "
            f"{type(samples).__name__}."
        )
    return samples


def _batched(sample: Any, kind: str) -> Any:
    if isinstance(sample, (list, tuple)):  # the frames of one video
        return _as_tensor(sample, kind)[None]
    if isinstance(sample, (Tensor, np.ndarray)):
        return sample[None]
    return np.asarray(sample.convert("RGB"))[None] if hasattr(sample, "convert") else sample
