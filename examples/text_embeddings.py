"""Which of my text generators writes most like the corpus?
========================================================

Any modality: choose between text generators by the Frechet distance of text embeddings.

The candidates are Markov chains over characters, of order 1 to 5, trained on the prose that ships with scikit-learn.
The embedding is latent semantic analysis of character n-grams. Nothing here is an image: rows of numbers are all that
the selector needs, so audio (VGGish: the Frechet audio distance), video (I3D) or sentence-transformer embeddings
work in the same way::

    python examples/text_embeddings.py [--fast]
"""

import argparse
import random
import textwrap
from collections import defaultdict

import torch
from sklearn import datasets
from sklearn.decomposition import TruncatedSVD
from sklearn.feature_extraction.text import TfidfVectorizer
from sklearn.pipeline import make_pipeline

from tm_bandit import ModelSelector, OptimisticFID, ReferenceStatistics, SelectionResult

LENGTH = 200


class MarkovText:
    """Writes text one character at a time, each drawn after the last ``order`` characters."""

    def __init__(self, corpus: str, order: int):
        self.order, self.corpus = order, corpus
        self.followers = defaultdict(list)
        for i in range(len(corpus) - order):
            self.followers[corpus[i : i + order]].append(corpus[i + order])

    def write(self, rng: random.Random) -> str:
        start = rng.randrange(len(self.corpus) - self.order)
        text = self.corpus[start : start + self.order]
        while len(text) < LENGTH + self.order:
            text += rng.choice(self.followers.get(text[-self.order :], [" "]))
        return text[self.order :]


def main(fast: bool) -> SelectionResult:
    loaders = (datasets.load_iris, datasets.load_wine, datasets.load_breast_cancer, datasets.load_digits)
    corpus = " ".join(" ".join(loader().DESCR.split()) for loader in (*loaders, datasets.load_diabetes))
    pieces = [corpus[i : i + LENGTH] for i in range(0, len(corpus) - LENGTH, 20)]
    embed = make_pipeline(
        TfidfVectorizer(analyzer="char", ngram_range=(1, 3), max_features=2000),
        TruncatedSVD(n_components=32, random_state=0),
    ).fit(pieces)
    reference = ReferenceStatistics.from_features(torch.from_numpy(embed.transform(pieces)))

    models = {f"order {order}": MarkovText(corpus, order) for order in range(1, 6)}

    def sampler(model):
        def draw(num_samples, generator):
            rng = random.Random(generator.initial_seed())
            return torch.from_numpy(embed.transform([model.write(rng) for _ in range(num_samples)]))

        return draw

    selector = ModelSelector(
        metric=OptimisticFID(feature="none", reference=reference),
        arms={name: sampler(model) for name, model in models.items()},
        samples="features",
        batch_size=10,
        budget=200 if fast else 1500,
        goal="identify",
    )
    result = selector.run(progress=False)
    print(result)
    print(f"\n{result.best} ({result.status}), {result.total_samples} texts written. It writes:")
    print(textwrap.fill(models[result.best].write(random.Random(0)), 100))
    return result


if __name__ == "__main__":
    torch.set_num_threads(1)  # a small network: on a busy machine, threads would wait for each other
    parser = argparse.ArgumentParser()
    parser.add_argument("--fast", action="store_true", help="a short run, as in the tests")
    result = main(**vars(parser.parse_known_args()[0]))  # a notebook has its own arguments
