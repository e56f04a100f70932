"""The order of tests among workers, looked at with those that are run now."""

from __future__ import annotations

from itertools import dropwhile

import pytest
from order import dealt, is_slow, place


@pytest.mark.parametrize("shares", [1, 2, 3, 4])
def test_every_test_runs_once_and_slow_ones_stand_at_the_end_of_no_share(
    shares: int, request: pytest.FixtureRequest
) -> None:
    items = request.session.items
    order = dealt(items, shares)
    assert sorted(map(id, order)) == sorted(map(id, items))
    if sum(map(is_slow, items)) * 2 < len(items) // shares:  # else there are too few others to stand behind them
        at = 0
        for number in range(shares):
            size = (len(order) - at) // (shares - number)
            share, at = order[at : at + size], at + size
            slow = {place(item) for item in share if is_slow(item)}
            quick = dropwhile(lambda item, slow=slow: place(item) in slow, share)  # type: ignore[misc]
            assert not any(map(is_slow, quick))


def test_files_that_share_something_stay_together(request: pytest.FixtureRequest) -> None:
    order = dealt(request.session.items, 2)
    places = [at for at, item in enumerate(order) if item.path.parent.name == "deploy"]
    assert places == list(range(places[0], places[0] + len(places))) if places else True
