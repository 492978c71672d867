"""Shortest paths: their length is the distance."""

import pytest
import torch

import metricconv as mc
from geodesy import rough
from metricconv.geodesic import distance_map, path_length, shortest_path, shortest_paths
from metricconv.metrics import Randers

pytest.importorskip("numba")


@pytest.mark.parametrize("seed", range(4))
def test_length_of_a_path_is_the_distance_of_its_end(seed):
    metric = rough(seed, (41, 43), passes=4)
    start, end = [5.25, 6.5], [33.0, 37.0]
    for first, last in ((start, end), (end, start)):
        path = shortest_path(metric, first, last)
        distance = distance_map(metric, [first])[0, 0, round(last[0]), round(last[1])]
        if last == end:
            assert path_length(metric, path) == pytest.approx(distance.item(), rel=0.01)
        torch.testing.assert_close(path[0], torch.tensor(first).double())
        torch.testing.assert_close(path[-1], torch.tensor(last).double())


def test_paths_to_several_ends_are_those_to_each():
    metric = rough(7, (31, 31), passes=4)
    ends = [[3.0, 25.0], [28.0, 4.5]]
    for end, path in zip(ends, shortest_paths(metric, [15.0, 15.0], ends), strict=True):
        alone = shortest_path(metric, [15.0, 15.0], end)
        assert path_length(metric, path) == pytest.approx(path_length(metric, alone).item(), rel=1e-3)


def test_paths_go_around_walls_and_say_if_there_is_none():
    metric = mc.Riemannian.isotropic(1.0).expand_to((21, 21))
    mask = torch.ones(21, 21, dtype=torch.bool)
    mask[10, 3:] = False
    path = shortest_path(metric, [5.0, 18.0], [15.0, 18.0], mask=mask)
    assert mask[tuple(path.round().long().unbind(1))].all()
    expected = 2 * (15.5**2 + 4.5**2) ** 0.5 + 1
    assert path_length(metric, path) == pytest.approx(expected, rel=0.05)
    mask[10] = False
    with pytest.raises(ValueError, match="`end` cannot be reached"):
        shortest_path(metric, [5.0, 18.0], [15.0, 18.0], mask=mask)


def test_path_against_the_drift_is_longer():
    metric = Randers(*(torch.tensor(v).view(1, 1, -1, 1, 1).expand(-1, -1, -1, 9, 31) for v in ([1.0, 0, 1], [0, 0.5])))
    along, against = [4.0, 2.0], [4.0, 27.0]
    assert path_length(metric, shortest_path(metric, along, against)) == pytest.approx(37.5, rel=1e-3)
    assert path_length(metric, shortest_path(metric, against, along)) == pytest.approx(12.5, rel=1e-3)
