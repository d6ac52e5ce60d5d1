"""What a run changed lies between captures that begin and that end the times in which it wrote."""

import pytest

from hub.daemon.captures import stretches_of


@pytest.mark.parametrize(
    ("kinds", "stretches"),
    [
        ("", ""),
        ("before", ""),
        ("before after", "01"),
        ("before left", "01"),
        ("before left back after", "01 23"),
        ("before back after", "12"),
        ("before back left back back after", "12 45"),
        ("before left after", "01"),
        ("after", ""),
    ],
)
def test_stretches(kinds: str, stretches: str) -> None:
    taken = [(kind, str(place)) for place, kind in enumerate(kinds.split())]
    assert stretches_of(taken) == [(pair[0], pair[1]) for pair in stretches.split()]
