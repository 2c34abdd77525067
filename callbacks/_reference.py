"""The real images of the first validation as the metric's reference."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Any, TypeGuard

import torch
from lightning.pytorch import Trainer
from lightning.pytorch.utilities import CombinedLoader
from torch import Tensor
from torch.utils._pytree import tree_unflatten
from torch.utils.data import DataLoader

from tm_bandit._weights_file import content_tag
from tm_bandit.errors import InputError, NotReadyError, WeightsError, brief
from tm_bandit.execution.ranks import Ranks
from tm_bandit.functional.moments import Moments, add_rows_, merge_moments, moments_from_rows
from tm_bandit.metrics.base import OptimisticMetric
from tm_bandit.metrics.referenced_metric import ReferencedMetric
from tm_bandit.reference import ReferenceStatistics
from tm_bandit.reference_rows import MOST_ROWS, RowCollector

#: Where the real images of a batch are: an index, a key, a callable, or ``None`` to look for them.
RealLike = Callable[[Any], Tensor] | str | int | None

REFERENCE = "reference.npz"

#: Keys under which data sets usually keep their images.
_KEYS = ("image", "images", "img", "imgs", "pixel_values", "x", "input", "inputs", "data", "real")


def pick_images(batch: Any, real: RealLike = None) -> Tensor:
    """Return the real images (or rows of features) of a batch.

    Args:
        batch: what the validation loader yields.
        real: an index or a key into the batch, or a callable that takes the batch. ``None`` takes the batch itself if
            it is a tensor, the first entry of a sequence, or the entry of a mapping that has a common name.

    Raises:
        InputError: if there is no tensor at that place.

    Example:
        >>> images, labels = torch.zeros(4, 3, 8, 8), torch.arange(4)
        >>> pick_images([images, labels]).shape, pick_images({"image": images, "label": labels}).shape
        (torch.Size([4, 3, 8, 8]), torch.Size([4, 3, 8, 8]))
        >>> pick_images((labels, images), real=1).shape
        torch.Size([4, 3, 8, 8])
    """
    try:
        images = _pick(batch, real)
    except (KeyError, IndexError, TypeError, AttributeError) as error:
        raise InputError(
            f"Expected real images in the validation batch at real={real!r}, but got {_describe(batch)} ({error!r}); "
            "give real= the index, the key or a function `batch -> images`."
        ) from error
    if not isinstance(images, Tensor) or images.ndim < 2:
        raise InputError(
            f"Expected real images in the validation batches, but found none in {_describe(batch)}; give real= the "
            "index, the key or a function `batch -> images`, or give the metric a reference=."
        )
    return images


def _pick(batch: Any, real: RealLike) -> Any:
    if callable(real):
        return real(batch)
    if real is not None:
        return getattr(batch, real) if isinstance(real, str) and hasattr(batch, real) else batch[real]
    if isinstance(batch, Mapping):
        return next((batch[key] for key in _KEYS if key in batch), None)
    if isinstance(batch, Sequence) and not isinstance(batch, str):
        return batch[0] if len(batch) else None
    return batch


def lacks_reference(metric: OptimisticMetric) -> TypeGuard[ReferencedMetric]:
    """Whether the metric compares with real samples and has none.

    Args:
        metric: any of our metrics.
    """
    if not isinstance(metric, ReferencedMetric):
        return False
    try:
        return metric.reference is None
    except NotReadyError:
        return True


def reference_tag(reference: ReferenceStatistics) -> str:
    """Return a text that is the same for the same statistics.

    Args:
        reference: the statistics.
    """
    parts = {"mean": reference.mean, "covariance": reference.covariance}
    return content_tag(parts if reference.rows is None else {**parts, "rows": reference.rows.values})


class ReferenceCollector:
    """Collects the moments of the real images of one validation, over all ranks.

    Only the first validation loader counts: further ones usually hold other data.

    Args:
        metric: the metric that has no reference yet.
        real: see :func:`pick_images`.
    """

    def __init__(self, metric: ReferencedMetric, real: RealLike) -> None:
        self.metric = metric
        self.real = real
        self._moments: Moments | None = None
        self._kept = RowCollector(MOST_ROWS) if metric.traits.reference == "rows" else None

    def check(self, batches: Iterable[Any] | None, device: torch.device) -> None:
        """Look at a first batch before any training time is spent.

        Args:
            batches: the validation loaders; ``None`` if there are none.
            device: device of the feature network.

        Raises:
            InputError: if there are no batches, or no images that the metric accepts.
        """
        if batches is None:
            raise InputError(
                f"Expected {type(self.metric).__name__} to have a reference, but it has none and there is no "
                "validation loader to take real images from; give the metric reference=, or add a loader."
            )
        batch = first_batch(batches)
        if batch is not None:
            self._rows(batch, device)

    def add(self, batch: Any, device: torch.device) -> None:
        """Add the real images of a validation batch.

        Args:
            batch: what the first validation loader yielded.
            device: device of the feature network.
        """
        rows = self._rows(batch, device)
        self._moments = moments_from_rows(rows) if self._moments is None else add_rows_(self._moments, rows)
        if self._kept is not None:
            self._kept.add(rows)

    def finish(self, ranks: Ranks) -> ReferenceStatistics:
        """Return the statistics of all ranks' images; on all ranks.

        Args:
            ranks: the processes.

        Raises:
            InputError: if there were fewer than two images.
        """
        # A rank without images takes part with zeros, for which it must first learn the dimension.
        mine = 0 if self._moments is None else self._moments.mean.numel()
        dimension = max(ranks.all_of(mine))
        empty = Moments(0, torch.zeros(dimension).double(), torch.zeros(dimension, dimension).double())
        part = self._moments or empty
        counts = ranks.all_of(part.count)
        means, scatters = ranks.gather(part.mean).cpu(), ranks.gather(part.scatter).cpu()
        total = merge_moments(*(Moments(*values) for values in zip(counts, means, scatters, strict=True)))
        count = total.count
        if count < 2:
            raise InputError(
                f"Expected at least two real images in the first validation, but got {count}; give the metric a "
                "reference=, or raise limit_val_batches."
            )
        rows = None if self._kept is None else _gather_rows(self._kept.rows(), dimension, ranks)
        return ReferenceStatistics.from_moments(total, self.metric.extractor_name, rows)

    def _rows(self, batch: Any, device: torch.device) -> Tensor:
        images = pick_images(batch, self.real).to(device)
        if images.is_floating_point() and images.element_size() < 4:
            images = images.float()
        try:
            return self.metric.check_rows(self.metric.extract(images))
        except (NotReadyError, WeightsError):
            raise  # the metric itself cannot be used, whatever the batch holds
        except Exception as error:  # also what a feature network raises on a wrong shape
            raise InputError(
                f"Expected real images that {type(self.metric).__name__} accepts in the validation batches, but got "
                f"{_describe(images)} ({brief(error)}); give real= the index, the key or a function "
                "`batch -> images`."
            ) from error


def _gather_rows(mine: Tensor, width: int, ranks: Ranks) -> Tensor:
    """Return the rows that all ranks have kept, in order of rank, or a random subset of them; the same on all ranks."""
    counts = ranks.all_of(len(mine))
    padded = mine.new_zeros(max(counts), width)
    padded[: len(mine)] = mine.reshape(-1, width)
    collector = RowCollector(MOST_ROWS)
    for part, count in zip(ranks.gather(padded).cpu(), counts, strict=True):
        collector.add(part[:count])
    return collector.rows()


def first_batch(loaders: Any) -> Any:
    """Return the first batch that a validation will see, without starting workers; ``None`` if there is none.

    Args:
        loaders: what ``val_dataloader`` returned. Loaders that run one after the other begin with a batch of the first,
            loaders that run in parallel with a collection of one batch of each.
    """
    combined = loaders if isinstance(loaders, CombinedLoader) else CombinedLoader(loaders, "sequential")
    if combined._mode == "sequential":
        return _first_of(combined.flattened[0]) if combined.flattened else None
    batches = [_first_of(loader) for loader in combined.flattened]
    return None if all(batch is None for batch in batches) else tree_unflatten(batches, combined._spec)


def _first_of(loader: Any) -> Any:
    if isinstance(loader, DataLoader) and loader.num_workers > 0 and loader.batch_sampler is not None:
        indices = next(iter(loader.batch_sampler), None)
        return None if indices is None else loader.collate_fn([loader.dataset[index] for index in indices])
    return next(iter(loader), None)


def validation_loaders(trainer: Trainer) -> Any:
    """Return the validation loaders as their source gives them, or ``None``; the Trainer's own are not touched.

    Args:
        trainer: the running Trainer.
    """
    source = trainer.fit_loop.epoch_loop.val_loop._data_source
    return source.dataloader() if source.instance is not None and source.is_defined() else None


def _describe(batch: Any) -> str:
    if isinstance(batch, Tensor):
        return f"a tensor of shape {tuple(batch.shape)}"
    if isinstance(batch, Mapping):
        return f"a mapping with the keys {sorted(map(str, batch))}"
    if isinstance(batch, Sequence) and not isinstance(batch, str):
        return f"a {type(batch).__name__} of {', '.join(_describe(item) for item in batch[:4])}"
    return f"a {type(batch).__name__}"
