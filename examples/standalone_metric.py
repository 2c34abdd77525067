"""How large is the FID of a model, and how sure is that after a few samples?
==========================================================================

Watch a FID while samples come in: the metric alone, in a plain PyTorch loop.

Two models of the digits are fitted in an instant: one Gaussian for all images, and one Gaussian per class. Both metrics
stream: add batches and ask at any time. The plain FID starts far too high and falls with the number of samples; the
interval and the debiased value can be used from the start::

    python examples/standalone_metric.py [--fast]
"""

import argparse

import torch
from torch import Tensor

from tm_bandit import OptimisticFID, OptimisticIS, ReferenceStatistics
from tm_bandit.demo.digits import Logits, load_digits, train_classifier


class GaussianPerGroup:
    """A generative model: a Gaussian fitted to each group of images."""

    def __init__(self, groups: list[Tensor]):
        rows = [group.flatten(1).double() for group in groups]
        self.means = torch.stack([r.mean(0) for r in rows])
        self.factors = torch.stack([torch.linalg.cholesky(torch.cov(r.T) + 1e-3 * torch.eye(64)) for r in rows])

    def sample(self, num_samples: int, generator: torch.Generator) -> Tensor:
        group = torch.randint(len(self.means), (num_samples,), generator=generator)
        noise = torch.randn(num_samples, 64, 1, generator=generator, dtype=torch.double)
        rows = self.means[group] + (self.factors[group] @ noise)[:, :, 0]
        return rows.clamp(0, 1).float().unflatten(1, (1, 8, 8))


def main(fast: bool) -> None:
    digits = load_digits()
    classifier = train_classifier(digits, steps=100 if fast else 600)
    print(f"classifier: {classifier.accuracy(digits.test_images, digits.test_labels):.1%} on held-out digits")

    # The reference is computed once and shared by every metric that is given it.
    reference = ReferenceStatistics.from_features(classifier(digits.images))
    models = {
        "one Gaussian": GaussianPerGroup([digits.train_images]),
        "one per class": GaussianPerGroup([digits.train_images[digits.train_labels == c] for c in range(10)]),
    }
    # normalize=True says that images are floats; `feature` may be any module that returns rows.
    fid = {name: OptimisticFID(feature=classifier, reference=reference, normalize=True) for name in models}
    inception = {name: OptimisticIS(feature=Logits(classifier), normalize=True) for name in models}

    looks = (50, 200) if fast else (50, 200, 800, 3200)
    generator = torch.Generator().manual_seed(0)
    print(f"{'model':14} {'n':>5} {'FID':>7} {'debiased':>9} {'95% interval':>18} {'IS':>6} {'95% interval':>14}")
    for look in looks:
        for name, model in models.items():
            while fid[name].num_samples < look:
                images = model.sample(25, generator)
                fid[name].update(images)
                inception[name].update(images)
            low, high = fid[name].bounds()
            worst, best = inception[name].bounds()
            print(
                f"{name:14} {look:5d} {fid[name].estimate():7.2f} {fid[name].debiased().value:9.2f} "
                f"[{low:7.2f}, {high:7.2f}] {inception[name].estimate():6.2f} [{worst:5.2f}, {best:5.2f}]"
            )
    better = min(models, key=lambda name: fid[name].debiased().value)
    print(f"better by FID: {better}")


# sphinx_gallery_thumbnail_path = "images/witness.png"
if __name__ == "__main__":
    torch.set_num_threads(1)  # a small network: on a busy machine, threads would wait for each other
    parser = argparse.ArgumentParser()
    parser.add_argument("--fast", action="store_true", help="a short run, as in the tests")
    main(**vars(parser.parse_known_args()[0]))  # a notebook has its own arguments
