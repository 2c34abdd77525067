"""A callback that keeps the best checkpoint, spending a sampling budget at each validation as a bandit does."""

from __future__ import annotations

import os
import re
import weakref
from collections.abc import Callable
from pathlib import Path
from typing import Any, Literal, Optional, Union

import torch
from lightning.pytorch import LightningModule, Trainer
from lightning.pytorch.callbacks import Checkpoint
from lightning.pytorch.trainer.states import TrainerFn
from lightning.pytorch.utilities import rank_zero_info, rank_zero_warn
from torch import Tensor
from torchmetrics import Metric, MetricCollection
from typing_extensions import override

from tm_bandit._arguments import check_choice, check_count, check_path
from tm_bandit.callbacks._after import Afterwards
from tm_bandit.callbacks._also import check_also
from tm_bandit.callbacks._arms import check_variants, newcomer_burn_in, variant_of
from tm_bandit.callbacks._distributed import check_whole, refuse_sharded
from tm_bandit.callbacks._opening import is_dev_run, warn_of_burn_in
from tm_bandit.callbacks._report import RESULT, Summary, log_scalars, passed_over
from tm_bandit.callbacks._resume import ResumePoint
from tm_bandit.callbacks._session import Session
from tm_bandit.callbacks._weights import averaging_callback
from tm_bandit.errors import InputError
from tm_bandit.execution.ranks import default_chunk_size
from tm_bandit.metrics.base import OptimisticMetric
from tm_bandit.report.result import SelectionResult
from tm_bandit.selection.modules import bind_sampler
from tm_bandit.selection.selector import ModelSelector

#: Arms get tens of pulls here, not hundreds: with the selector's own ten per cent, nearly every pull would trigger a
#: look at all contenders, which costs more than a small sampler.
_REFRESH = 0.25

_KEY = re.compile(r"[A-Za-z0-9_. -]+(/[A-Za-z0-9_. -]+)*")


class BanditCheckpoint(Checkpoint):
    """Finds the checkpoint that generates best, with few samples.

    At every validation the current weights join as a new arm. With
    :class:`~lightning.pytorch.callbacks.WeightAveraging` the averaged weights join too, and each of them once per entry
    of ``variants``. Then up to ``budget`` samples are spent on the newcomers and on the arms that may still be the
    best. Sampling ends as soon as the best arm is decided. Statistics are kept from one validation to the next, and an
    arm that was beaten stays beaten. At most ``max_arms`` checkpoints stay in the race, each with all of its arms:
    those certified to be worse are dropped first, then those that are likely worse, then those that look worst. Their
    files are deleted once no checkpoint needs them.

    With a fixed seed, training gives bit-identical weights with and without this callback. It is a ``Checkpoint``:
    Lightning then adds no ``ModelCheckpoint`` of its own, so list one after it if training must be resumable.

    Logged at every validation: ``{key}/current``, ``{key}/current_is_best``, ``{key}/best``, ``{key}/best_step`` and
    the debiased scores of the newest weights, one curve for each kind of arm: ``{key}/raw``, ``{key}/avg`` and, with
    variants, ``{key}/raw/<variant>`` and so on. The table sent to loggers has all arms and their intervals. Let a
    ``ModelCheckpoint`` or an ``EarlyStopping`` monitor ``{key}/current``. If the newest samples are not finite, its
    value is infinite, which makes ``EarlyStopping(check_finite=True)`` stop. If there is no score, because sampling
    failed or the validation was skipped, its value is the worst finite number.

    Args:
        metric: an ``OptimisticFID``, ``OptimisticIS``, ``OptimisticKID`` or ``OptimisticMean``; not an attribute of the
            module. If it needs a reference and has none, the real images of the first validation become it.
        sampler: ``None`` calls ``pl_module.sample(n, **variant)``, a string names another method, a callable is called
            as ``sampler(pl_module, n, generator=generator, **variant)``. Global generators are seeded as well.
        budget: the most samples per validation, over all ranks and arms.
        batch_size: samples per pull.
        chunk_size: samples per call of the sampler. One rank makes several such calls, several ranks share them, and
            the samples are the same. ``None`` makes up to four calls per pull.
        policy: as in :class:`~tm_bandit.ModelSelector`.
        variants: keyword arguments of the sampler by name, such as ``{"": {}, "cfg3": {"guidance_scale": 3.0}}``; each
            is a separate arm.
        averaged: whether the averaged weights of ``WeightAveraging`` are arms too.
        max_arms: how many checkpoints stay for the next validation, each with all of its arms: three variants of raw
            and averaged weights are six arms of one checkpoint.
        min_step: validations before this ``global_step`` are skipped.
        every_n_epochs: only validations of every n-th epoch count.
        stop: as in :class:`~tm_bandit.ModelSelector`: by default a validation ends when the best arm is likely found,
            if the metric can tell. ``"budget"`` spends the whole budget every time.
        seed: seed of all samples.
        key: prefix of what is logged, and name of the folder; two such callbacks need two keys.
        dirpath: folder of the arm files; ``None`` means a folder ``key`` where the logger writes.
        store: ``"disk"`` keeps every arm as a file; ``"memory"`` keeps them in memory, writes only the best one, and
            loses the others when training is interrupted.
        real: where the real images of a validation batch are: an index, a key, or a function ``batch -> images``;
            ``None`` looks for them.
        goal: as in :class:`~tm_bandit.ModelSelector`: ``"identify"`` finds the best arm, ``"regret"`` draws mostly from
            arms that are good.
        burn_in: samples that every new arm gets before the policy is asked about it. ``"auto"`` means 50 (so that an
            unlucky first batch does not shut a good arm out), but at least two batches, and few enough to leave half of
            the budget to the contenders.
        pairing: as in :class:`~tm_bandit.ModelSelector`. Newcomers of later validations start with the same noise
            as the first arms.
        conditions: as in :class:`~tm_bandit.ModelSelector`; the sampler gets those of its chunk as ``conditions=``.
        also: other metrics, ours or torchmetrics', of the same samples: their values for the newest arm and for the
            best one are logged as ``{key}/current/<name>`` and ``{key}/best/<name>``, at no further sampling cost. They
            do not take part in the choice, need their references, and start over when training is resumed. Those
            that need conditions get ``conditions``.
        evaluate: ``"after"`` only writes the arms during training and compares them at the end: for strategies that
            shard the module (FSDP, ModelParallel), with which no process could sample, or to leave the work to
            ``tm-bandit watch``. The budgets of all validations are then spent at the end.

    Attributes:
        best_model_path: file of the best arm; its ``state_dict`` is the arm. Empty before the first validation. It
            holds weights only, so it cannot resume training.

    Raises:
        InputError: here or when training starts, if something would not work later.

    Example::

        callback = BanditCheckpoint(metric=OptimisticFID(feature=2048, normalize=True), budget=2000, batch_size=50)
        trainer = Trainer(callbacks=[callback, ModelCheckpoint(save_last=True)])
        trainer.fit(model, data)
        trainer.test(model, data, ckpt_path="best")
    """

    def __init__(
        self,
        metric: Metric,
        sampler: Union[Callable, str, None] = None,  # type: ignore[type-arg]  # noqa: UP007 - jsonargparse: bare Callable
        *,
        budget: int,
        batch_size: int,
        chunk_size: Optional[int] = None,  # noqa: UP045
        policy: str = "ucb",
        variants: Optional[dict[str, dict[str, Any]]] = None,  # noqa: UP045
        averaged: bool = True,
        max_arms: int = 8,
        min_step: int = 1,
        every_n_epochs: int = 1,
        stop: Optional[Literal["budget", "certified", "likely"]] = None,  # noqa: UP045
        seed: int = 0,
        key: str = "bandit",
        dirpath: Optional[Union[str, os.PathLike]] = None,  # type: ignore[type-arg]  # noqa: UP007, UP045
        store: Literal["disk", "memory"] = "disk",
        real: Union[Callable, str, int, None] = None,  # type: ignore[type-arg]  # noqa: UP007
        goal: Literal["regret", "identify"] = "identify",
        burn_in: Union[int, Literal["auto"]] = "auto",  # noqa: UP007
        pairing: Literal["common", "independent"] = "common",
        conditions: Union[Callable, list[Any], None] = None,  # type: ignore[type-arg]  # noqa: UP007
        also: Optional[Union[Metric, MetricCollection]] = None,  # noqa: UP007, UP045
        evaluate: Literal["validation", "after"] = "validation",
    ) -> None:
        super().__init__()
        if not isinstance(metric, OptimisticMetric):
            raise InputError(
                "Expected metric to be an OptimisticFID, OptimisticIS, OptimisticKID or OptimisticMean, but got "
                f"{type(metric).__name__}; other metrics have no bounds."
            )
        given: Any = budget
        if isinstance(given, str):
            raise InputError(
                f"Expected `budget` to be a number of samples per validation, but got {budget!r}; times are for "
                "ModelSelector: here two runs with the same seed would keep different checkpoints."
            )
        budget, batch_size = check_count("budget", budget, 1), check_count("batch_size", batch_size, 1)
        chunk_size = None if chunk_size is None else check_count("chunk_size", chunk_size, 1)
        if budget < batch_size:
            raise InputError(
                f"Expected a budget of at least one pull of {batch_size} samples, but got {budget}; raise it."
            )
        if not isinstance(key, str) or not _KEY.fullmatch(key) or not all(part.strip(". ") for part in key.split("/")):
            raise InputError(f"Expected key to be letters, digits and `_.-/`, but got {key!r}; choose another one.")
        if dirpath is not None and "://" in check_path("dirpath", dirpath):
            raise InputError(f"Expected dirpath on a mounted file system, but got {dirpath!r}; use a local folder.")
        self.metric = metric
        self.sampler = sampler
        self.budget = budget
        self.batch_size = batch_size
        self.chunk_size = chunk_size or default_chunk_size(batch_size)
        self.policy = policy
        self.variants = check_variants(variants)
        self.averaged = averaged
        self.max_arms = check_count("max_arms", max_arms, 1)
        self.min_step = check_count("min_step", min_step)
        self.every_n_epochs = check_count("every_n_epochs", every_n_epochs, 1)
        self.stop = stop
        self.seed = seed
        self.key = key
        self.dirpath = None if dirpath is None else os.path.expanduser(dirpath)
        check_choice("store", store, ("disk", "memory"))
        self.store = store
        self.real = real
        self.goal = goal
        self.burn_in = burn_in
        self.pairing = pairing
        self.conditions = conditions
        self.also = check_also(also, conditions is not None)
        self.evaluate = check_choice("evaluate", evaluate, ("validation", "after"))
        if self.evaluate == "after" and self.also is not None:
            raise InputError("Expected no also= with evaluate='after', which draws nothing during training.")
        self.new_selector()  # refuses a wrong policy, stop or seed here, not hours later
        self._forget()

    def _forget(self) -> None:
        """Drop everything that belongs to a training run."""
        self.best_model_path = ""
        self._result: SelectionResult | None = None
        self._values: dict[str, float] = {}
        self._session: Session | None = None
        self._afterwards: Afterwards | None = None
        self._point: ResumePoint | None = None
        self._loading: dict[str, Any] | None = None
        self._running = False
        #: Weak references to the Trainer and the module.
        self._owner: tuple[Any, ...] = ()

    def __getstate__(self) -> dict[str, Any]:
        # A copy (for a spawned process, or made by a user) is the same callback before any training.
        blank = dict.fromkeys(("_session", "_afterwards", "_point", "_loading"))
        return {**self.__dict__, **blank, "_running": False, "_owner": ()}

    @property
    @override
    def state_key(self) -> str:
        return self._generate_state_key(key=self.key)

    @property
    def result(self) -> SelectionResult | None:
        """The selection so far; read from its file if training ran in processes that have ended."""
        if self._result is None and self.best_model_path:
            path = Path(self.best_model_path).with_name(RESULT)
            self._result = SelectionResult.from_json(path) if path.exists() else None
        return self._result

    @property
    def best_arm(self) -> str:
        """Name of the best arm; empty if there is none yet."""
        return "" if self.result is None else self.result.best or ""

    @property
    def best_variant(self) -> dict[str, Any]:
        """Keyword arguments with which the best arm was sampled; empty if it has none, or there is no best arm yet."""
        return dict(self.variants.get(variant_of(self.best_arm), {}))

    @property
    def best_model_score(self) -> Tensor | None:
        """Debiased score of the best arm; ``None`` if there is none yet."""
        if self.result is None or self.result.best is None:
            return None
        return torch.tensor(self.result.best_score, dtype=torch.float64)

    def newcomers(self, trainer: Trainer) -> int:
        """Return how many arms join in one validation: weights times variants.

        Args:
            trainer: the Trainer, which may average weights.
        """
        return len(self.variants) * (2 if self.averaged and averaging_callback(trainer) is not None else 1)

    def selection(self) -> dict[str, Any]:
        """Return the settings that are handed on to a selector as they are."""
        names = ("policy", "batch_size", "seed", "stop", "goal", "pairing", "conditions")
        return {name: getattr(self, name) for name in names}

    def new_selector(self, newcomers: int = 1) -> ModelSelector:
        """Return a selector without arms, set up like this callback.

        Args:
            newcomers: how many arms join in one validation.
        """
        burn_in = self.burn_in
        if isinstance(burn_in, str) and burn_in == "auto":
            least = max(self.metric.min_samples, 2 * self.batch_size)
            burn_in = newcomer_burn_in(least, self.budget, newcomers)
        return ModelSelector(self.metric, budget=0, burn_in=burn_in, refresh=_REFRESH, **self.selection())

    @override
    def setup(self, trainer: Trainer, pl_module: LightningModule, stage: str) -> None:
        if stage != "fit":
            return
        if self not in getattr(trainer, "checkpoint_callbacks", ()):
            raise InputError(
                f"Expected a Trainer of `lightning.pytorch`, but got one of {type(trainer).__module__.split('.')[0]}, "
                "which does not recognise this callback as a Checkpoint; import Trainer and LightningModule from "
                "`lightning.pytorch`."
            )
        check_whole(trainer) if self.evaluate == "after" else refuse_sharded(trainer)
        if [owner() for owner in self._owner] != [trainer, pl_module]:
            # The arms of another model, or of an earlier training, do not compete here.
            if self._session is not None:
                self._session.close()
            self._forget()
            self._owner = (weakref.ref(trainer), weakref.ref(pl_module))
        self._check_module(trainer, pl_module)

    def _check_module(self, trainer: Trainer, pl_module: LightningModule) -> None:
        name = type(self.metric).__name__
        if any(part is self.metric for part in pl_module.modules()):
            raise InputError(
                f"Expected {name} in this callback alone, but it is an attribute of {type(pl_module).__name__} as "
                "well, where Lightning would reset it and save its network with the weights; give each its own."
            )
        if self.evaluate == "validation" and not is_dev_run(trainer):
            warn_of_burn_in(self, self.newcomers(trainer))
        bind_sampler(pl_module, self.sampler, {}, conditioned=self.conditions is not None)  # refuses what cannot be
        if not trainer.enable_validation:
            rank_zero_warn(
                f"BanditCheckpoint({self.key!r}) works in validations, but this training has none (it needs a "
                "validation loader, a `validation_step`, and limit_val_batches > 0). A loader of one item and an empty "
                "`validation_step` are enough."
            )

    @override
    def on_fit_start(self, trainer: Trainer, pl_module: LightningModule) -> None:
        if self.evaluate == "after":
            self._afterwards = None if is_dev_run(trainer) else Afterwards(self, trainer)
            return
        point, self._point = self._point, None
        if self._session is None or point is not None:
            if self._session is not None:
                self._session.release()
            session = Session(self, trainer, pl_module)
            self._adopt(session.open(point))
            self._session = session
        else:
            self._session.hold()
        self._running = True

    @override
    def on_train_start(self, trainer: Trainer, pl_module: LightningModule) -> None:
        # Lightning does not repeat the validation of the very step that a checkpoint was written at.
        if self._session is not None and self._session.cut_off:
            self._adopt(self._session.evaluate())
        elif self._session is not None:
            self._session.remember()

    @override
    def on_validation_epoch_start(self, trainer: Trainer, pl_module: LightningModule) -> None:
        if self._session is not None and self._is_training(trainer) and not self._is_due(trainer):
            # A monitor needs its key from the first validation on, and one that is not logged again keeps its value.
            values = passed_over(self._values, self.metric.traits.higher_is_better)
            log_scalars(pl_module, self.key, values, unseen=True)

    @override
    def on_validation_batch_start(
        self, trainer: Trainer, pl_module: LightningModule, batch: Any, batch_idx: int, dataloader_idx: int = 0
    ) -> None:
        if self._session is not None and dataloader_idx == 0 and self._is_training(trainer):
            self._session.collect(batch)

    @override
    def on_validation_end(self, trainer: Trainer, pl_module: LightningModule) -> None:
        later = self._afterwards
        if later is None or not self._is_training(trainer) or not self.counts(trainer):
            return
        if trainer.global_step != later.step:
            later.save(trainer)

    @override
    def on_validation_epoch_end(self, trainer: Trainer, pl_module: LightningModule) -> None:
        if self._session is None or not self._is_training(trainer):
            return
        self._session.finish_reference()
        self._adopt(self._session.make_up())
        if self._is_due(trainer):
            self._adopt(self._session.evaluate())
            log_scalars(pl_module, self.key, self._values)

    @override
    def on_train_end(self, trainer: Trainer, pl_module: LightningModule) -> None:
        if self._session is not None:
            self._adopt(self._session.last_chance())
            self._session.publish()
        if self._afterwards is not None and self._afterwards.files:
            found = self._afterwards.select(pl_module)
            if found is not None:
                self._result, self.best_model_path = found[0], str(found[1])
                self._afterwards.publish(trainer, found[0])
        if self.best_model_path:
            options = f" with {self.best_variant}" if self.best_variant else ""
            rank_zero_info(f"{self.key}: the best arm is {self.best_arm}{options}, in {self.best_model_path}")

    @override
    def teardown(self, trainer: Trainer, pl_module: LightningModule, stage: str) -> None:
        if stage == "fit" and self._session is not None and self._running:
            self._session.finish()
        self._running = False

    @override
    def on_exception(self, trainer: Trainer, pl_module: LightningModule, exception: BaseException) -> None:
        self._running = False
        if self._session is not None:
            self._session.release()

    @override
    def on_save_checkpoint(self, trainer: Trainer, pl_module: LightningModule, checkpoint: dict[str, Any]) -> None:
        if self._session is not None and self._is_training(trainer):
            self._session.note_checkpoint(checkpoint)

    @override
    def on_load_checkpoint(self, trainer: Trainer, pl_module: LightningModule, checkpoint: dict[str, Any]) -> None:
        # `trainer.test(ckpt_path=...)` loads callback states too; that must not replace what training found. A
        # learning-rate finder does so in the middle of training, which then continues unchanged.
        self._loading = None
        if trainer.state.fn != TrainerFn.FITTING or self._running:
            return
        path = os.path.abspath(trainer.ckpt_path or "")
        states, others = checkpoint.get("callbacks", {}).values(), trainer.checkpoint_callbacks
        written = [state.get("dirpath") for state in states if isinstance(state, dict)]
        written += [getattr(other, "dirpath", None) for other in others if other is not self]
        folders = {os.path.realpath(folder) for folder in written if isinstance(folder, (str, os.PathLike))}
        in_place = os.path.realpath(os.path.dirname(path)) in folders
        self._loading = {"step": int(checkpoint.get("global_step", 0)), "path": path, "in_place": in_place}

    @override
    def state_dict(self) -> dict[str, Any]:
        return {} if self._session is None else self._session.state_dict()

    @override
    def load_state_dict(self, state_dict: dict[str, Any]) -> None:
        if self._loading is not None and state_dict:
            self._point = ResumePoint(state_dict, **self._loading)

    def _is_training(self, trainer: Trainer) -> bool:
        return trainer.state.fn == TrainerFn.FITTING and not trainer.sanity_checking

    def _is_due(self, trainer: Trainer) -> bool:
        assert self._session is not None
        # With gradient accumulation, a second validation may see the very same weights.
        return self.counts(trainer) and trainer.global_step != self._session.books.step

    def counts(self, trainer: Trainer) -> bool:
        """Return whether a validation at this moment counts.

        Args:
            trainer: the running Trainer.
        """
        return trainer.global_step >= self.min_step and (trainer.current_epoch + 1) % self.every_n_epochs == 0

    def _adopt(self, summary: Summary | None) -> None:
        if summary is not None:
            self._values, self._result = summary.values, summary.result
            self.best_model_path = summary.best_path
