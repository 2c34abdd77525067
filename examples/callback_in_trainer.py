"""Which checkpoint of this training is the best?
==============================================

The callback in a Trainer: every validation's weights, raw and averaged, compete for one sampling budget.

A flow-matching model of the digits is trained. At each validation the callback spends at most 400 samples, on the
newest weights and on those older ones that may still be the best, and keeps the winner's file::

    python examples/callback_in_trainer.py [--fast]
"""

import argparse
import tempfile

import lightning.pytorch as pl
import torch
from lightning.pytorch.callbacks import EMAWeightAveraging, ModelCheckpoint

from tm_bandit import OptimisticFID, ReferenceStatistics, SelectionResult
from tm_bandit.callbacks import BanditCheckpoint
from tm_bandit.demo.digits import train_classifier
from tm_bandit.demo.flow import DigitFlow, DigitsData


def main(fast: bool) -> SelectionResult:
    pl.seed_everything(0, verbose=False)
    data = DigitsData()
    classifier = train_classifier(data.digits, steps=100 if fast else 600)
    fid = OptimisticFID(
        feature=classifier, reference=ReferenceStatistics.from_features(classifier(data.digits.images)), normalize=True
    )
    with tempfile.TemporaryDirectory() as folder:
        # The model has a method `sample(num_samples)`, so nothing else is needed.
        bandit = BanditCheckpoint(metric=fid, budget=60 if fast else 400, batch_size=10, max_arms=10, dirpath=folder)
        trainer = pl.Trainer(
            max_epochs=4 if fast else 80,
            check_val_every_n_epoch=2 if fast else 10,
            callbacks=[bandit, EMAWeightAveraging(decay=0.99), ModelCheckpoint(folder, save_last=True)],
            default_root_dir=folder,
            accelerator="cpu",
            logger=False,
            enable_progress_bar=False,
            enable_model_summary=False,
        )
        trainer.fit(DigitFlow(cycle=300), data)
        print(bandit.result)
        print(f"\nbest: {bandit.best_arm} ({bandit.result.status}), FID about {bandit.best_model_score:.2f}")
        best = DigitFlow.load_from_checkpoint(bandit.best_model_path)
        print(f"loaded {sum(p.numel() for p in best.parameters()):,} weights from its own file")
    return bandit.result


if __name__ == "__main__":
    torch.set_num_threads(1)  # a small network: on a busy machine, threads would wait for each other
    parser = argparse.ArgumentParser()
    parser.add_argument("--fast", action="store_true", help="a short run, as in the tests")
    result = main(**vars(parser.parse_known_args()[0]))  # a notebook has its own arguments
