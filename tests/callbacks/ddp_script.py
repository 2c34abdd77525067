"""Trains on some ranks and writes what each of them knows. Usage: ddp_script.py FOLDER DEVICES CASE..."""

import json
import sys
import warnings
from collections import Counter
from pathlib import Path

import lightning.pytorch as pl
import torch
import torch.distributed as dist
from lightning.pytorch.callbacks import EMAWeightAveraging, ModelCheckpoint
from lightning.pytorch.strategies import FSDPStrategy, ModelParallelStrategy
from models import Calm, Gen, bandit, calm_loaders, fid, trainer
from torch.distributed.fsdp import FullyShardedDataParallel, fully_shard

from tm_bandit import OptimisticKID, OptimisticMean


class Sick(Calm):
    """Fails on one rank only, and in the first validation only."""

    def sample(self, num_samples):
        if self.trainer.global_step == 4 and self.global_rank == 1:
            raise RuntimeError("rank one is sick")
        return super().sample(num_samples)


class Labelled(Calm):
    """Moves by its label."""

    def sample(self, num_samples, conditions):
        return super().sample(num_samples) + 0.1 * torch.tensor(conditions)[:, None]


class Unable(Calm):
    """Fails on one rank before the training starts."""

    def sample(self, num_samples):
        if self.global_rank == 1:
            raise TypeError("rank one cannot sample")
        return super().sample(num_samples)


class Sharded(Calm):
    """Is in pieces wherever there is a mesh of devices; made anew without a Trainer, it is whole."""

    def configure_model(self):
        if self.device_mesh is not None:
            fully_shard(self, mesh=self.device_mesh["data_parallel"])


class CpuFSDP(FSDPStrategy):
    """Lightning's own asks torch for a GPU, which torch itself does not need."""

    def _setup_model(self, model):
        return FullyShardedDataParallel(model, device_id=torch.device("cpu"), **self.kwargs)

    def barrier(self, name=None):
        dist.barrier()


#: Module, settings of the callback (``None``: no callback), further callbacks.
CASES = {
    "uneven": (Calm, {"batch_size": 24, "chunk_size": 8, "budget": 72}, False),  # three chunks for two ranks
    "averaged": (Calm, {"batch_size": 16, "budget": 64, "max_arms": 3}, True),
    "reference": (Calm, {"batch_size": 16, "budget": 32, "metric": None}, False),
    "memory": (Labelled, {"batch_size": 16, "budget": 32, "store": "memory", "conditions": list(range(7))}, False),
    "also": (
        Calm,
        {"batch_size": 24, "chunk_size": 8, "budget": 72, "also": OptimisticMean(lambda x: x.mean(1))},
        False,
    ),
    "rows": (Calm, {"batch_size": 16, "budget": 32, "metric": OptimisticKID("none")}, False),
    "plain": (Gen, {"batch_size": 16, "budget": 32}, False),
    "without": (Gen, None, False),
    "sick": (Sick, {"batch_size": 16, "budget": 32}, False),
    "unable": (Unable, {"batch_size": 16, "budget": 32}, False),
    "forked": (Calm, {"batch_size": 16, "budget": 32}, False),
    "resumed": (Calm, {"batch_size": 24, "chunk_size": 8, "budget": 72}, False),
    "changed": (Calm, {"batch_size": 16, "budget": 32}, False),
    "after": (Calm, {"batch_size": 16, "budget": 32, "evaluate": "after"}, False),
    "fsdp": (Calm, {"batch_size": 16, "budget": 32, "evaluate": "after"}, False),
    "fsdp2": (Sharded, {"batch_size": 16, "budget": 32, "evaluate": "after"}, False),
}

#: Strategies of two processes, if it is not DDP.
STRATEGIES = {
    "forked": lambda: "ddp_fork",
    "fsdp": lambda: CpuFSDP(state_dict_type="full"),
    "fsdp2": lambda: ModelParallelStrategy(2, 1, save_distributed_checkpoint=False),
}


def train(folder: Path, devices: int, case: str, epochs: int = 3, ckpt: Path | None = None, **changes) -> dict:
    kind, settings, averaged = CASES[case]
    callbacks = []
    if settings is not None:
        settings = {**settings, **changes, "metric": settings.get("metric", fid()) or fid(with_reference=False)}
        callbacks = [bandit(folder / "arms", **settings), ModelCheckpoint(folder / "last", save_last=True)]
    callbacks += [EMAWeightAveraging(decay=0.7)] if averaged else []
    run = trainer(
        folder,
        *callbacks,
        max_epochs=epochs,
        devices=2 if case == "forked" else devices,
        strategy=STRATEGIES[case]() if case in STRATEGIES else "ddp" if devices > 1 else "auto",
        # The same steps on one and on two ranks: what differs then is the callback's doing.
        limit_train_batches=4,
        use_distributed_sampler=False,
    )
    pl.seed_everything(7, verbose=False)
    module, gathered = kind(), Counter()
    gather = dist.all_gather

    def spy(parts, tensor, *args, **kwargs):
        gathered[str(len(tensor))] += tensor.dtype == torch.uint8  # the others are lengths of texts
        return gather(parts, tensor, *args, **kwargs)

    dist.all_gather = spy
    try:
        run.fit(module, *calm_loaders(), ckpt_path=ckpt)
    finally:
        dist.all_gather = gather
    known = {
        "weights": [p.double().sum().item() for p in module.parameters()],
        "rng": torch.rand(1).item(),
        "rank": run.global_rank,
    }
    if settings is not None:
        callback = callbacks[0]
        known |= {
            "best": callback.best_arm,
            "file": Path(callback.best_model_path).name,
            "score": callback.best_model_score.item(),
            "result": json.loads(callback.result.to_json()),
            "logged": {name: value.item() for name, value in run.callback_metrics.items()},
            "calls": len(module.calls),
            "gathered": {size: count for size, count in gathered.items() if count},
        }
    return known


def attempt(folder: Path, devices: int, case: str) -> dict | str:
    try:
        if case in ("resumed", "changed"):
            train(folder, devices, case, epochs=1)
            changes = {"seed": 3} if case == "changed" else {}
            return train(folder, devices, case, ckpt=folder / "last" / "last.ckpt", **changes)
        return train(folder, devices, case)
    except Exception as error:
        return f"{type(error).__name__}: {error}"


def main(folder: Path, devices: int, cases: list[str]) -> None:
    known = {case: attempt(folder / case, devices, case) for case in cases}
    (folder / f"rank{known[cases[0]]['rank']}.json").write_text(json.dumps(known))


if __name__ == "__main__":
    warnings.simplefilter("ignore")
    warnings.filterwarnings("always", message=".*sync_dist.*")
    main(Path(sys.argv[1]), int(sys.argv[2]), sys.argv[3:])
