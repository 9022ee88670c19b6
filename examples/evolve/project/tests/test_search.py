import pytest
import search


@pytest.mark.parametrize(
    "one, other, expected",
    [("", "", 0), ("a", "", 1), ("cat", "cart", 1), ("kitten", "sitting", 3), ("abc", "xyz", 3)],
)
def test_distance(one, other, expected):
    assert search.distance(one, other) == expected


def test_search_finds_the_nearest():
    assert search.search("numpi", ["pandas", "numpy", "scipy"]) == "numpy"
