"""Which guidance scale, number of steps and EMA decay should I use?
=================================================================

Pick the guidance scale, the number of sampling steps and the EMA decay of one trained model.

Every combination is an arm: any function that draws samples will do. Twelve settings share one budget; the ones that
are clearly worse get a few dozen samples, the contenders get the rest::

    python examples/tune_sampler.py [--fast]
"""

import argparse
import functools
import itertools

import torch
from torch.optim.swa_utils import AveragedModel, get_ema_multi_avg_fn

from tm_bandit import ModelSelector, OptimisticFID, ReferenceStatistics, SelectionResult
from tm_bandit.demo.digits import Digits, load_digits, train_classifier
from tm_bandit.demo.flow import DigitFlow

DECAYS = (0.9, 0.99)


def train(digits: Digits, steps: int) -> dict[float, DigitFlow]:
    """One training run; an averaged copy of the model for each EMA decay."""
    torch.manual_seed(0)
    model = DigitFlow()
    averaged = {decay: AveragedModel(model, multi_avg_fn=get_ema_multi_avg_fn(decay)) for decay in DECAYS}
    optimizer = torch.optim.Adam(model.parameters(), lr=2e-3)
    for step in range(steps):
        batch = torch.randint(len(digits.train_images), (128,))
        loss = model.training_step((digits.train_images[batch], digits.train_labels[batch]), step)
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        for copy in averaged.values():
            copy.update_parameters(model)
    return {decay: copy.module.eval() for decay, copy in averaged.items()}


def main(fast: bool) -> SelectionResult:
    digits = load_digits()
    classifier = train_classifier(digits, steps=100 if fast else 600)
    models = train(digits, steps=50 if fast else 1500)
    arms = {
        f"ema {decay} / cfg {scale} / {steps} steps": functools.partial(
            models[decay].sample, guidance_scale=scale, steps=steps
        )
        for decay, scale, steps in itertools.product(DECAYS, (1.0, 2.0, 3.0), (2, 8))
    }
    fid = OptimisticFID(
        feature=classifier, reference=ReferenceStatistics.from_features(classifier(digits.images)), normalize=True
    )
    selector = ModelSelector(
        metric=fid, arms=arms, batch_size=10, budget=300 if fast else 3000, goal="identify", stop="likely"
    )
    result = selector.run(progress=not fast)
    print(result)
    print(f"\nbest: {result.best} ({result.status}) after {result.total_samples} samples for {len(arms)} arms")
    return result


if __name__ == "__main__":
    torch.set_num_threads(1)  # a small network: on a busy machine, threads would wait for each other
    parser = argparse.ArgumentParser()
    parser.add_argument("--fast", action="store_true", help="a short run, as in the tests")
    result = main(**vars(parser.parse_known_args()[0]))  # a notebook has its own arguments
