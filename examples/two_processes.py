"""What do I change for training on several processes?
===================================================

Nothing: this is distributed data parallel with two processes.

Every rank draws its share of each batch, only the new features travel, and all ranks agree on the winner. Sample seeds
belong to (arm, draw) and not to ranks, so the number of processes changes neither the scores nor the choice::

    python examples/two_processes.py [--fast]
"""

import argparse
from pathlib import Path
from tempfile import gettempdir

import lightning.pytorch as pl
import torch
from lightning.pytorch.callbacks import ModelCheckpoint

from tm_bandit import OptimisticFID, ReferenceStatistics
from tm_bandit.callbacks import BanditCheckpoint
from tm_bandit.demo.digits import train_classifier
from tm_bandit.demo.flow import DigitFlow, DigitsData


def main(fast: bool, out: Path) -> None:
    # With strategy="ddp" Lightning starts this script again for the second rank.
    torch.set_num_threads(1)  # a small network: on a busy machine, threads would wait for each other
    pl.seed_everything(0, verbose=False)
    data = DigitsData(batch_size=64)
    classifier = train_classifier(data.digits, steps=100 if fast else 600)
    fid = OptimisticFID(
        feature=classifier, reference=ReferenceStatistics.from_features(classifier(data.digits.images)), normalize=True
    )
    bandit = BanditCheckpoint(
        metric=fid,
        budget=80 if fast else 400,
        batch_size=20,
        chunk_size=10,  # samples per call of `sample`: each rank makes one of the two calls of a pull
        variants={"8 steps": {"steps": 8}, "2 steps": {"steps": 2}},
        dirpath=out / "arms",
    )
    trainer = pl.Trainer(
        accelerator="cpu",
        devices=2,
        strategy="ddp",
        max_epochs=2 if fast else 60,
        check_val_every_n_epoch=1 if fast else 10,
        callbacks=[bandit, ModelCheckpoint(out)],
        logger=False,
        enable_progress_bar=False,
        enable_model_summary=False,
    )
    trainer.fit(DigitFlow(cycle=200, width=64 if fast else 192), data)
    print(f"rank {trainer.global_rank}: best {bandit.best_arm}, score {bandit.best_model_score:.6f}")
    if trainer.is_global_zero:
        print(bandit.result)


# sphinx_gallery_thumbnail_path = "images/report.png"
if __name__ == "__main__":
    parser = argparse.ArgumentParser()
    parser.add_argument("--fast", action="store_true", help="a short run, as in the tests")
    parser.add_argument("--out", type=Path, default=Path(gettempdir()) / "tm_bandit_two_processes")
    main(**vars(parser.parse_known_args()[0]))  # a notebook has arguments of its own
