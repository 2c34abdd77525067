"""Bad input: a clear error, raised before anything changes."""

import math
from functools import partial

import pytest
import torch
from torch import nn

from tests._make import scaled_rows
from tm_bandit import OptimisticFID
from tm_bandit.errors import BanditError, InputError

DIM = 5


draw = partial(scaled_rows, dim=DIM)


@pytest.mark.parametrize(
    ("bad", "message"),
    [
        (torch.full((3, DIM), math.nan), "3 of 3 rows"),
        (torch.cat([draw(1, 3), torch.tensor([[math.inf, 0, 0, 0, 0]])]), "1 of 4 rows"),
        (torch.cat([draw(1, 3), torch.tensor([[0, -math.inf, 0, 0, 0]])]).half(), "1 of 4 rows"),
        (draw(1, 4).double() * 1e200, "4 of 4 rows"),
        (draw(1, 3, dim=DIM + 1), rf"\(n, {DIM}\), but got \(3, {DIM + 1}\)"),
        (draw(1, 3)[0], rf"but got (shape )?\({DIM},\)"),
        (torch.ones(3, DIM, dtype=torch.int64), "floating-point tensor, but got dtype torch.int64"),
        (torch.ones(3, DIM, dtype=torch.complex64), "floating-point tensor"),
        ([[1.0] * DIM], "Expected .* tensor.*, but got a list"),
    ],
)
@pytest.mark.parametrize("how", ["update_features", "update", "forward", "update_rows"])
def test_bad_rows_leave_the_samples_alone(reference, bad, message, how):
    metric = OptimisticFID("none", reference, bound="authors")
    metric.update_features(draw(2, 9))
    before = float(metric.compute())
    with pytest.raises(InputError, match=message):
        getattr(metric, how)(bad)
    assert metric.num_samples == 9
    metric._computed = None
    assert float(metric.compute()) == before


def test_images_are_checked_by_the_network(reference):
    metric = OptimisticFID(nn.Flatten(), bound="none", normalize=True)
    metric.update(torch.rand(4, 1, 2, 2), real=True)
    for bad in (torch.rand(4, 1, 2, 2) + 0.5, (torch.rand(4, 1, 2, 2) * 255).byte()):
        with pytest.raises(InputError, match="normalize=True"):
            metric.update(bad)
    assert metric.num_samples == 0


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ({"bound": "tight"}, "`bound` to be one of"),
        ({"delta": 0.0}, "strictly between 0 and 1, but got 0.0"),
        ({"delta": 1.0}, "strictly between"),
        ({"delta": math.nan}, "strictly between"),
        ({"delta": "0.05"}, "strictly between"),
        ({"horizon": 0}, "`horizon`"),
        ({"horizon": 2.5}, "`horizon`"),
        ({"kappa": 0.0}, "`kappa`"),
        ({"threshold": -1.0}, "`threshold`"),
        ({"norm_bound": 0.0}, "`norm_bound`"),
        ({"bound": "bounded"}, "Expected `norm_bound` with"),
        ({"bound": "authors", "paper_as_printed": True}, "`paper_as_printed` with"),
        ({"max_rows": 1}, "`max_rows`"),
        ({"reset_real_features": "no"}, "`reset_real_features`"),
        ({"reference": torch.zeros(3)}, "ReferenceStatistics or a path"),
        ({"reference": "missing.npz"}, "there is none at missing.npz"),
        ({"feature": 63}, "layer of the Inception network"),
    ],
)
def test_arguments(arguments, message):
    with pytest.raises(InputError, match=message):
        OptimisticFID(**{"feature": "none", **arguments})


def test_norms_beyond_the_promise_are_refused(reference):
    metric = OptimisticFID("none", reference, bound="bounded", norm_bound=1.0)
    unit = nn.functional.normalize(draw(1, 6), dim=1)
    metric.update_features(unit)
    with pytest.raises(InputError, match=r"norm at most `norm_bound` = 1, but got a row of norm 1\.5"):
        metric.update_features(1.5 * unit)
    assert metric.num_samples == 6


def test_unknown_fields_are_named(reference):
    metric = OptimisticFID("none", reference, bound="none")
    metric.update_features(draw(1, 4))
    with pytest.raises(InputError, match="but got \\['fid'\\]"):
        metric.losses(["estimate", "fid"])


def test_all_refusals_are_of_one_family():
    with pytest.raises(BanditError):
        OptimisticFID("none", delta=2.0)
    with pytest.raises(ValueError, match="delta"):
        OptimisticFID("none", delta=2.0)
