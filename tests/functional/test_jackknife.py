"""Traces of roots without one row, against rows that are really left out."""

import pytest
import torch

from tm_bandit.functional.jackknife import root_traces_without


def centred(rows):
    return rows - rows.mean(0)


@pytest.mark.parametrize(("count", "dim"), [(3, 2), (3, 9), (12, 12), (13, 12), (7, 40), (60, 6)])
@pytest.mark.parametrize("scale", [1e-6, 1.0, 1e6])
def test_every_row_is_left_out(count, dim, scale):
    generator = torch.Generator().manual_seed(count)
    rows = torch.randn(count, dim, generator=generator, dtype=torch.float64) * torch.logspace(0, -3, dim).double()
    rows = scale * (rows + 5)
    all_rows, found = root_traces_without(centred(rows))
    whole = float(torch.linalg.svdvals(centred(rows)).sum())
    assert float(all_rows) == pytest.approx(whole, rel=1e-6)
    for number in range(count):
        others = centred(torch.cat([rows[:number], rows[number + 1 :]]))
        assert float(found[number]) == pytest.approx(float(torch.linalg.svdvals(others).sum()), abs=1e-6 * whole)


def test_a_row_that_is_alone_on_its_axis_takes_it_along():
    rows = torch.zeros(10, 3, dtype=torch.float64)
    rows[0, 1] = 4.0
    rows[1:, 0] = torch.arange(9.0)
    expected = torch.linalg.svdvals(centred(rows[1:])).sum()
    assert float(root_traces_without(centred(rows))[1][0]) == pytest.approx(float(expected), rel=1e-6)


def test_equal_rows_have_no_trace():
    whole, without = root_traces_without(torch.zeros(5, 3, dtype=torch.float64))
    assert [float(whole), *without.tolist()] == [0.0] * 6


@pytest.mark.parametrize("count", [11, 25, 50])
def test_the_axes_in_which_rows_are_written_do_not_matter(count):
    generator = torch.Generator().manual_seed(count)
    rows = centred(torch.randn(count, 80, generator=generator, dtype=torch.float64))
    turn = torch.linalg.qr(torch.randn(80, 80, generator=generator, dtype=torch.float64))[0]
    found, turned = (root_traces_without(centred(some))[1] for some in (rows, rows @ turn))
    torch.testing.assert_close(turned, found, rtol=3e-11, atol=0)
