"""The cost of a failure: the delay of new results, and the number of tentative ones."""

from __future__ import annotations

from consistency.checking.measures import cost
from tests.support.histories import told
from tests.unit.consistency.checking.test_checkers import make_plan


def test_a_delay_ends_when_a_result_or_boundary_covers_the_row() -> None:
    """A result covers times up to its t_max, a boundary of either kind up to its time; the first of them counts."""
    history = told(
        """
        1.0 sent a 1 10 10
        1.2 give client:c: S1/10x
        2.0 sent a 2 20 20
        2.0 sent b 1 15 15
        2.5 give client:c: T/20y b30
        3.0 give client:c: U(1) S2/20y B30(2)
        """
    )
    found = cost(history, *make_plan(), "c")
    assert found.delays_us == (200_000, 500_000, 500_000)
    assert (found.tentative, found.stable, found.never) == (1, 2, 0)
    assert [found.quantile_us(q) for q in (0.0, 0.5, 1)] == [200_000, 500_000, 500_000]


def test_rows_that_nothing_covers_are_counted_separately() -> None:
    found = cost(told("1.0 sent a 1 10 10\n2.0 sent a 2 20 20\n2.5 give client:c: B10(0)"), *make_plan(), "c")
    assert (found.delays_us, found.never) == ((1_500_000,), 1)


def test_a_client_without_results_has_no_delays() -> None:
    assert cost(told("1.0 note n1a x"), *make_plan(), "c").quantile_us(0.5) == 0
