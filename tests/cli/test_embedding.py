"""Images become rows once: an identical second run embeds nothing, and whatever changes is embedded again."""

import json
import os
import shutil
import time

import pytest
import torch

from tests._inception import random_weights_file
from tests._pictures import pictures, save_pictures
from tm_bandit.cli.embedding import Sample, embed
from tm_bandit.data import feature_cache
from tm_bandit.extractors.inception_network import InceptionNetwork

WORDS = "select --reference real64 one two --feature 64 --weights w.pth --budget 24 --batch-size 4 --burn-in 4 --quiet"


@pytest.fixture
def embedded(here, tmp_path_factory, monkeypatch):
    """Small folders, weights of a network by name, and how many images went through it."""
    monkeypatch.setattr(feature_cache, "_SETTLED_NS", 0)
    folder = tmp_path_factory.getbasetemp()
    (here / "w.pth").symlink_to(random_weights_file(folder))
    for seed, name in enumerate(("real64", "one", "two")):
        save_pictures(here / name, pictures(seed, 12, 20 * seed))
    count = []
    forward = InceptionNetwork.forward

    def spy(self, inputs, layer="2048"):
        count.append(len(inputs))
        return forward(self, inputs, layer)

    monkeypatch.setattr(InceptionNetwork, "forward", spy)

    def spent():
        total = sum(count)
        count.clear()
        return total

    return spent


def ran(run, *more):
    outcome = run(WORDS, *more, "--json")
    assert outcome.code == 0, outcome.err
    return json.loads(outcome.out)


def test_an_identical_second_run_embeds_nothing(run, embedded, here):
    first = ran(run, "--cache kept")
    drawn = sum(row["n"] for row in first["arms"])
    assert embedded() == 12 + drawn
    assert ran(run, "--cache kept") == first
    assert embedded() == 0
    assert run("cache --cache kept").out.splitlines()[1] == f"rows: {12 + drawn}"
    # The user's cache folder is the default; `stats` uses the same rows.
    shutil.copytree(here / "kept", here / "caches" / "tm-bandit")
    assert ran(run) == first
    assert run("stats real64 -o ref64.npz --feature 64 --weights w.pth --workers 0 --quiet").code == 0
    assert embedded() == 0
    assert ran(run, "--no-cache") == first
    assert embedded() == 12 + drawn


def test_what_has_changed_is_embedded_anew(run, embedded, here, tmp_path_factory):
    ran(run, "--cache kept")
    embedded()
    picture, status = here / "real64" / "0003.png", (here / "real64" / "0003.png").stat()
    time.sleep(0.02)
    save_pictures(here / "other", pictures(9, 1, 90))
    shutil.copy(next((here / "other").iterdir()), picture)
    os.utime(picture, ns=(status.st_atime_ns, status.st_mtime_ns))
    ran(run, "--cache kept")
    assert embedded() == 1
    ran(run, "--cache kept --resize 16")
    assert embedded() > 12
    ran(run, "--cache kept --no-antialias")
    assert embedded() > 12
    (here / "w.pth").unlink()
    (here / "w.pth").symlink_to(random_weights_file(tmp_path_factory.getbasetemp(), seed=1))
    ran(run, "--cache kept")
    assert embedded() > 12
    assert run("cache --cache kept --clear").out.splitlines()[1:] == ["rows: 0", "bytes: 0"]


def test_rows_of_the_users_own_functions_are_not_kept(run, reference, here):
    outcome = run("select --reference ref.npz near far --feature cli_parts:pool --budget 80 --cache kept --quiet")
    assert outcome.code == 0, outcome.err
    assert not (here / "kept").exists()


def test_the_order_is_that_of_the_samples():
    images = [torch.full((3, 2, 2), float(at)) for at in range(120)]
    samples = [Sample(torch.tensor([float(at)]), True) if at % 3 else Sample(image) for at, image in enumerate(images)]
    sizes = []

    def mean(batch):
        sizes.append(len(batch))
        return batch.mean((1, 2, 3)).unsqueeze(1)

    assert embed(samples, mean, None).flatten().tolist() == list(range(120))
    assert sizes == [40]
    assert embed([Sample(image) for image in images], mean, None).flatten().tolist() == list(range(120))
    assert sizes[1:] == [50, 50, 20]
