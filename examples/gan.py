"""My GAN's quality jumps about: which weights do I keep?
======================================================

A GAN with manual optimisation: how good its last weights are is a matter of luck.

The module has two optimizers and steps them itself; the callback needs only its `sample` method. The generator's
truncation (scaling the latent code) is a second choice: each validation's weights compete at two truncations::

    python examples/gan.py [--fast]
"""

import argparse
import tempfile

import lightning.pytorch as pl
import torch
from lightning.pytorch.callbacks import ModelCheckpoint
from torch import Tensor, nn
from torch.nn import functional as F

from tm_bandit import OptimisticFID, ReferenceStatistics, SelectionResult
from tm_bandit.callbacks import BanditCheckpoint
from tm_bandit.demo.digits import train_classifier
from tm_bandit.demo.flow import DigitsData


def network(inputs: int, width: int, outputs: int) -> nn.Sequential:
    layers = [nn.Linear(inputs, width), nn.LeakyReLU(0.2), nn.Linear(width, width), nn.LeakyReLU(0.2)]
    return nn.Sequential(*layers, nn.Linear(width, outputs))


class DigitGAN(pl.LightningModule):
    def __init__(self, latent: int = 16, width: int = 128):
        super().__init__()
        self.automatic_optimization = False
        self.latent = latent
        self.generator = network(latent, width, 64)
        self.critic = network(64, width, 1)

    def training_step(self, batch: tuple[Tensor, Tensor], batch_idx: int) -> None:
        for_generator, for_critic = self.optimizers()
        real = batch[0].flatten(1)
        fake = self.generator(torch.randn(len(real), self.latent, device=self.device)).sigmoid()

        critic_loss = F.softplus(-self.critic(real)).mean() + F.softplus(self.critic(fake.detach())).mean()
        for_critic.zero_grad()
        self.manual_backward(critic_loss)
        for_critic.step()

        generator_loss = F.softplus(-self.critic(fake)).mean()
        for_generator.zero_grad()
        self.manual_backward(generator_loss)
        for_generator.step()

    def validation_step(self, batch: tuple[Tensor, Tensor], batch_idx: int) -> None:
        """Lightning validates only modules that have this method."""

    def configure_optimizers(self):
        parts = (self.generator, self.critic)
        return [torch.optim.Adam(part.parameters(), lr=1e-3, betas=(0.5, 0.99)) for part in parts]

    @torch.no_grad()
    def sample(self, num_samples: int, truncation: float = 1.0, generator: torch.Generator | None = None) -> Tensor:
        code = truncation * torch.randn(num_samples, self.latent, generator=generator, device=self.device)
        return self.generator(code).sigmoid().unflatten(1, (1, 8, 8))


def main(fast: bool) -> SelectionResult:
    pl.seed_everything(0, verbose=False)
    data = DigitsData(batch_size=64)
    classifier = train_classifier(data.digits, steps=100 if fast else 600)
    fid = OptimisticFID(
        feature=classifier, reference=ReferenceStatistics.from_features(classifier(data.digits.images)), normalize=True
    )
    with tempfile.TemporaryDirectory() as folder:
        bandit = BanditCheckpoint(
            metric=fid,
            budget=80 if fast else 500,
            batch_size=10,
            variants={"": {}, "truncated": {"truncation": 0.7}},
            dirpath=folder,
        )
        trainer = pl.Trainer(
            max_epochs=4 if fast else 120,
            check_val_every_n_epoch=2 if fast else 15,
            callbacks=[bandit, ModelCheckpoint(folder)],
            accelerator="cpu",
            logger=False,
            enable_progress_bar=False,
            enable_model_summary=False,
        )
        trainer.fit(DigitGAN(), data)
        print(bandit.result)
        print(f"\nbest: {bandit.best_arm} ({bandit.result.status})")
    return bandit.result


if __name__ == "__main__":
    torch.set_num_threads(1)  # a small network: on a busy machine, threads would wait for each other
    parser = argparse.ArgumentParser()
    parser.add_argument("--fast", action="store_true", help="a short run, as in the tests")
    result = main(**vars(parser.parse_known_args()[0]))  # a notebook has its own arguments
