"""How much of X was used: the largest share, and what 99 % of the values are at most."""

from __future__ import annotations

import pytest

from spe.figures.histogram import Histogram, at_most, merged


def of(*values: float) -> Histogram:
    histogram = Histogram()
    for value in values:
        histogram.add(value)
    return histogram


def test_largest_value_does_not_depend_on_order() -> None:
    many = Histogram()
    many.add_many([0] * 6 + [2] * 7, 3, 2.5, 1.4)
    assert many.status().largest == 1.4
    assert of(0.3, 0.7, 0.1).status().largest == 0.7
    assert of().status().largest == 0


@pytest.mark.parametrize(
    ("values", "share", "found"),
    [
        ([0.3] * 99 + [0.95], 0.99, 0.5),  # the bound of the interval from 0.25
        ([0.3] * 98 + [0.95] * 2, 0.99, 0.95),  # no more than the largest
        ([7.0], 0.99, 7.0),  # above all bounds
        ([0.3, 0.3], 1.0, 0.3),
    ],
)
def test_share_of_values_is_at_most_bound_of_its_interval(values: list[float], share: float, found: float) -> None:
    assert at_most(of(*values).status(), share) == found


def test_histograms_of_several_starts_are_one() -> None:
    both = merged([of(0.3, 0.95).status(), None, of(0.3).status()])
    assert both == of(0.3, 0.95, 0.3).status()
    assert merged([None, of().status()]) is None
