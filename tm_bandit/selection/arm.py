"""An arm of a run: a named sampler with its metric, its numbers and its pulls under way."""

from __future__ import annotations

import math
from array import array
from bisect import bisect_left, insort
from collections.abc import Callable, Iterable, Iterator, Mapping
from contextlib import suppress
from dataclasses import dataclass, field, replace
from dataclasses import fields as fields_of
from functools import partial
from hashlib import blake2b
from typing import Any, Literal

import torch
from torch import Tensor

from tm_bandit.comparison import has_few_values
from tm_bandit.errors import ArmError, InputError, printable
from tm_bandit.execution.draw import Sampler, carry_out, same_noise, takes_generator
from tm_bandit.metrics.base import OptimisticMetric
from tm_bandit.policies.policy import ArmStats, Trace
from tm_bandit.pull import Pull
from tm_bandit.report.thumbnails import data_uri, is_early, png_file, thumbnails
from tm_bandit.selection.repeats import FEWEST_DRAWS, are_from_few, may_come_again, repeats

#: More pulls than anybody makes: a number that is due then stays as it is.
_NEVER = 1e18

#: Samples needed for an estimate.
FEWEST_SAMPLES = 2

_NUMBERS = tuple(item.name for item in fields_of(ArmStats) if item.name != "name")


class Fingerprints(Mapping[int, int]):
    """What the rows of each draw of an arm look like: 16 bytes per draw.

    Args:
        items: draws with their fingerprints, which are not negative.

    Example:
        >>> marks = Fingerprints({0: 17, 2: 5})
        >>> marks.add(1, 8)
        >>> dict(marks), marks.earlier(5), marks.earlier(6)
        ({0: 17, 1: 8, 2: 5}, 2, None)
    """

    def __init__(self, items: Mapping[int, int] | None = None) -> None:
        #: By draw; -1 where there is none yet. And sorted, for fast lookup.
        self._marks, self._ordered = array("q"), array("q")
        for draw, mark in (items or {}).items():
            self.add(draw, mark)

    def __getitem__(self, draw: int) -> int:
        if not 0 <= draw < len(self._marks) or self._marks[draw] < 0:
            raise KeyError(draw)
        return self._marks[draw]

    def __iter__(self) -> Iterator[int]:
        return (draw for draw, mark in enumerate(self._marks) if mark >= 0)

    def __len__(self) -> int:
        return len(self._marks) - self._marks.count(-1)

    def earlier(self, mark: int) -> int | None:
        """Return a draw that looks the same, or ``None``."""
        place = bisect_left(self._ordered, mark)
        known = place < len(self._ordered) and self._ordered[place] == mark
        return self._marks.index(mark) if known else None

    def add(self, draw: int, mark: int) -> None:
        """Note what a draw looks like.

        Args:
            draw: its index.
            mark: its fingerprint.
        """
        marks = self._marks
        if draw >= len(marks):
            marks.extend([-1] * (draw + 1 - len(marks)))
        if marks[draw] >= 0:
            self._ordered.remove(marks[draw])
        insort(self._ordered, mark)
        marks[draw] = mark


@dataclass
class Arm:
    """A named sampler with its own copy of the metric.

    Expensive numbers are recomputed only when the sample count has grown by the factor ``growth``,
    and during the burn-in when it has doubled. The counts at which that happens are the same for all arms, so any two
    arms can be compared at equal counts.

    Rows are added in the order of their draws, whatever the order in which they are told: rows that are told while an
    earlier draw is under way wait for it. So an arm's numbers do not depend on which worker was faster.
    """

    name: str
    metric: OptimisticMetric
    sampler: Sampler | None
    growth: float
    joined: dict[str, int]
    stats: ArmStats = field(init=False)
    trace: Trace = field(init=False, default_factory=dict)
    retired: str | None = field(init=False, default=None)
    held: bool = field(init=False, default=False)
    next_refresh: int = field(init=False, default=1)
    #: Samples that were asked for and are not counted yet.
    pending: int = field(init=False, default=0)
    #: Of the rows of each draw; equal rows have equal fingerprints.
    fingerprints: Fingerprints = field(init=False, default_factory=Fingerprints)
    #: Small pictures of the samples of its first draws, if they are images that were drawn here; PNG files.
    pictures: dict[int, list[bytes]] = field(init=False, default_factory=dict)
    _under_way: dict[int, Pull] = field(init=False, default_factory=dict)
    _waiting: dict[int, tuple[Tensor, float]] = field(init=False, default_factory=dict)
    _given_back: set[int] = field(init=False, default_factory=set)
    _fresh: ArmStats | None = field(init=False, default=None)

    def __post_init__(self) -> None:
        self.stats = ArmStats(self.name, 0, 0)
        self.with_generator = self.sampler is not None and takes_generator(self.sampler)
        self.fields = tuple(name for name in self.metric.loss_fields if name in _NUMBERS)

    # ---- pulls ------------------------------------------------------------------------------------------------

    @property
    def next_draw(self) -> int:
        """Index of the next draw: the first that was given back, or a new one."""
        if self._given_back:
            return min(self._given_back)
        return self.stats.pulls + len(self._under_way) + len(self._waiting)

    def reserve(self, pull: Pull) -> Pull:
        """Put a pull under way; its draw must be :attr:`next_draw`."""
        self._given_back.discard(pull.draw)
        self._under_way[pull.draw] = pull
        self.pending += pull.size
        return pull

    def asked(self, pull: Pull) -> Pull | None:
        """Return this very pull as it was put under way, or ``None`` if it is not."""
        own = self._under_way.get(pull.draw)
        return own if own == pull else None

    def carry_out(self, pull: Pull, metric: OptimisticMetric, samples: Literal["images", "features"]) -> Tensor:
        """Return the rows of a pull, drawn here and now.

        Args:
            pull: what to draw.
            metric: turns samples into rows.
            samples: what the sampler returns.

        Raises:
            InputError: if the arm has no sampler.
            ArmError: see :func:`~tm_bandit.execution.carry_out`.
        """
        if self.sampler is None:
            raise InputError(f"Expected a sampler for arm {self.name!r}, but got None; use tell(), or add one.")
        wanted = samples == "images" and is_early(pull.draw * pull.size)
        seen = partial(self.illustrate, pull) if wanted else None
        return carry_out(pull, self.sampler, metric, samples=samples, with_generator=self.with_generator, seen=seen)

    def illustrate(self, pull: Pull, *samples: Tensor) -> None:
        """Keep pictures of the samples of a pull, if they are images and among the first of the arm.

        Args:
            pull: the pull.
            *samples: what was drawn, in one batch or several.
        """
        with suppress(Exception):  # whether the samples can be used is judged elsewhere
            if self.retired is None and is_early(pull.draw * pull.size):
                self.pictures[int(pull.draw)] = thumbnails(torch.cat(samples))

    def checked(self, pull: Pull, rows: Tensor, seed_for: Callable[[str, int], int]) -> Tensor:
        """Return the rows of a pull on the device of the arm's metric, and remember what they look like.

        Args:
            pull: the pull.
            rows: what was told.
            seed_for: returns the seed of a draw of an arm.

        Raises:
            ArmError: if they cannot be used, or repeat those of an earlier draw.
        """
        if not isinstance(rows, Tensor):
            raise ArmError(f"Expected rows as a tensor, or an exception, but got a {type(rows).__name__}; convert it.")
        try:
            rows = self.metric.check_rows(rows.to(self.metric.device))
        except (InputError, NotImplementedError) as error:
            raise ArmError(str(error)) from error
        if rows.shape[0] != pull.size:
            raise ArmError(f"Expected {pull.size} rows, but got {rows.shape[0]}; hand in one batch at a time.")
        # A copy has plain strides, which `contiguous` leaves odd where there is one column, and bytes of any type.
        content = rows.detach().cpu().clone(memory_format=torch.contiguous_format).view(torch.uint8).numpy()
        mark = blake2b(content.data, digest_size=7)
        if pull.draw < FEWEST_DRAWS and has_few_values(rows):
            # Another arm may give the same ones without being the same model; one draw that differs shows that.
            mark.update(self.name.encode(errors="surrogatepass"))
        fingerprint = int.from_bytes(mark.digest(), "big")  # fits an int64
        earlier = self.fingerprints.earlier(fingerprint)
        if not (
            earlier is None
            or same_noise(seed_for(self.name, earlier), pull.seed)
            or may_come_again(rows)
            or are_from_few(self._rows_like(rows), len(self.fingerprints), pull.size)
        ):
            raise repeats(earlier, pull.draw)
        self.fingerprints.add(pull.draw, fingerprint)
        return rows

    def _rows_like(self, rows: Tensor) -> Tensor:
        """Return the rows that the metric keeps, as far as it does: the longest of its lists of such rows."""
        lists = [part for part in self.metric.metric_state.values() if isinstance(part, list)]
        kept = [torch.cat(part) for part in lists if part and all(item.shape[1:] == rows.shape[1:] for item in part)]
        return max(kept, key=len, default=rows[:0])

    def give_back(self, pull: Pull) -> None:
        """Take a pull back; its draw comes next, unless the arm has been retired."""
        del self._under_way[pull.draw]
        if self.retired is None:
            self._given_back.add(pull.draw)
            self.pending -= pull.size

    def tell(self, pull: Pull, rows: Tensor, cost: float) -> None:
        """Keep the checked rows of a pull until :meth:`ready` hands them out."""
        del self._under_way[pull.draw]
        self._waiting[pull.draw] = (rows, cost)

    def ready(self) -> tuple[Tensor, float] | None:
        """Return the next rows to add (and their cost), or ``None`` if they wait for an earlier draw."""
        if not self._waiting:
            return None
        draw = min(self._waiting)
        if self._under_way and min(self._under_way) < draw:
            return None
        rows, cost = self._waiting.pop(draw)
        self.pending -= rows.shape[0]
        return rows, cost

    # ---- numbers ----------------------------------------------------------------------------------------------

    def add(self, rows: Tensor, cost: float, needs: Iterable[str], min_samples: int) -> bool:
        """Add rows and refresh the numbers; return whether the expensive ones were recomputed.

        Args:
            rows: checked rows.
            cost: what it cost to draw them.
            needs: fields that must be fresh.
            min_samples: the burn-in; below it an arm is looked at only to be recommended.
        """
        self.metric.add_rows(rows)
        self.metric.note_update()
        self._fresh = None
        before = self.stats
        pulls, count = before.pulls + 1, before.num_samples + rows.shape[0]
        ready = count >= min_samples
        # An arm that gets no more than its burn-in can be judged all the same.
        ends_burn_in = ready and before.num_samples < min_samples
        due = ends_burn_in or (count >= FEWEST_SAMPLES and pulls >= self.next_refresh)
        fields = self.fields if due else tuple(needs) if ready else ()
        fresh: dict[str, Any] = self.metric.losses(fields) if fields else {}
        self.stats = replace(before, pulls=pulls, num_samples=count, cost=before.cost + cost, **fresh)
        if due:
            self.next_refresh = max(pulls + 1, math.ceil(min(self.growth * pulls, _NEVER))) if ready else 2 * pulls
            self.trace[count] = self.stats
        return due

    def is_candidate(self, min_samples: int) -> bool:
        """Whether verdicts cover this arm: it is neither retired nor held before the end of its burn-in.

        Args:
            min_samples: the burn-in.
        """
        return self.retired is None and not (self.held and self.stats.num_samples < min_samples)

    def fresh_stats(self) -> ArmStats:
        """Return the numbers with all fields up to date, without changing what the policy sees."""
        if self.retired is not None or not self.trace or self.stats.num_samples in self.trace:
            return self.stats
        if self._fresh is None:
            numbers: dict[str, Any] = self.metric.losses(self.fields)
            self._fresh = replace(self.stats, **numbers)
        return self._fresh

    def retire(self, reason: str) -> None:
        """Keep the last numbers for the result; drop the samples, and what serves only to compare rivals.

        Pulls under way stay so: whoever carries them out cannot know, and may still tell them.

        Args:
            reason: shown in the result.

        Raises:
            InputError: if it is not text.
        """
        if not isinstance(reason, str):
            raise InputError(f"Expected the reason to be a string, but got {reason!r}; say in words why the arm goes.")
        if self.retired is None:
            self.stats = self.fresh_stats()
            self.metric.reset()
            self.trace, self.joined = {}, {}
            self._waiting, self._given_back, self.pending = {}, set(), 0
            self.fingerprints, self.pictures = Fingerprints(), {}
        self.retired = printable(reason) or "retired"

    # ---- state ------------------------------------------------------------------------------------------------

    def state_dict(self) -> dict[str, Any]:
        """Return everything but the sampler as tensors, numbers and strings; pulls under way count as given back."""
        active = self.retired is None
        return {
            "name": self.name,
            "retired": self.retired,
            "held": self.held,
            "joined": dict(self.joined),
            "next_refresh": self.next_refresh,
            "given_back": sorted({*self._given_back, *self._under_way, *self._waiting}) if active else [],
            "fingerprints": torch.tensor([*self.fingerprints.items()], dtype=torch.int64),
            "pictures": [[draw, *map(data_uri, files)] for draw, files in sorted(self.pictures.items())],
            "stats": _numbers(self.stats),
            "trace": [_numbers(stats) for stats in self.trace.values()],
            "metric": self._metric_state() if active else {},
        }

    def _metric_state(self) -> dict[str, Tensor | list[Tensor]]:
        return {name: _detached(value) for name, value in self.metric.metric_state.items() if name != "identity"}

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        """Restore what :meth:`state_dict` returned."""
        self._fresh = None
        self.retired = state["retired"]
        self.held = bool(state["held"])
        self.joined = dict(state["joined"])
        self.next_refresh = int(state["next_refresh"])
        # Version 0.1 had no pulls under way, no fingerprints and no pictures.
        self._given_back = set(state.get("given_back", ()))
        self.fingerprints = Fingerprints(dict(state["fingerprints"].tolist()) if "fingerprints" in state else {})
        self.pictures = {int(draw): [png_file(uri) for uri in uris] for draw, *uris in state.get("pictures", ())}
        self.stats = self._loaded(state["stats"])
        snapshots = [self._loaded(numbers) for numbers in state["trace"]]
        self.trace = {stats.num_samples: stats for stats in snapshots}
        if self.retired is None:
            self.metric.load_states(state["metric"], self.stats.pulls)
            if self.metric.num_samples != self.stats.num_samples:
                raise ValueError(f"arm {self.name!r} has numbers of another count of samples than it has samples")

    def _loaded(self, numbers: Mapping[str, Any]) -> ArmStats:
        # Version 0.1 saved two more numbers, which are no longer used.
        kept = {name: value for name, value in numbers.items() if name in _NUMBERS}
        strange = [name for name, value in kept.items() if not isinstance(value, (int, float))]
        if strange:
            raise TypeError(f"{strange[0]} of arm {self.name!r} is not a number")
        return ArmStats(self.name, **kept)


def _numbers(stats: ArmStats) -> dict[str, Any]:
    # Not `asdict`, which copies every number as if it were a tree: a training run has thousands of them to save.
    return {name: getattr(stats, name) for name in _NUMBERS}


def _detached(value: Tensor | list[Tensor]) -> Tensor | list[Tensor]:
    # A clone, because saving a view of a large tensor would write the whole of it.
    if isinstance(value, list):
        return [item.detach().cpu().clone() for item in value]
    return value.detach().cpu().clone()
