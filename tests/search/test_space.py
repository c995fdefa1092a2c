"""The map between the unit cube and physical parameters."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from channelfit.model.channel import Parameter
from channelfit.reading.errors import InputError
from channelfit.search.space import SearchSpace

FINITE = st.floats(-1e300, 1e300, allow_subnormal=False)
POSITIVE = st.floats(1e-30, 1e30)
UNIT = st.lists(st.floats(0, 1), min_size=1, max_size=20)


def space_of(*ranges: tuple[float, float], scale: str = "linear") -> SearchSpace:
    return SearchSpace(
        tuple(
            Parameter(f"p{i}", "mV", low, high, scale=scale) for i, (low, high) in enumerate(ranges)
        )
    )


@given(
    st.one_of(
        st.tuples(st.just("linear"), st.tuples(FINITE, FINITE).map(sorted)),
        st.tuples(st.just("log"), st.tuples(POSITIVE, POSITIVE).map(sorted)),
    ),
    UNIT,
    st.sampled_from([np.float64, np.float32]),
)
def test_bounds_are_exact_and_never_left(range_, unit, dtype):
    scale, bounds = range_
    unit = np.array([[0.0, 1.0, 0.5, *unit]], dtype=dtype)
    physical = space_of(tuple(bounds), scale=scale).to_physical(unit)
    assert physical.dtype == np.float64
    assert physical[0, :2].tolist() == bounds
    assert ((physical >= bounds[0]) & (physical <= bounds[1])).all()
    middle = np.mean(bounds) if scale == "linear" else np.sqrt(bounds[0]) * np.sqrt(bounds[1])
    assert physical[0, 2] == pytest.approx(middle, rel=1e-12, abs=1e-12 * abs(bounds[0]))


def test_fixed_parameters_are_put_back_in_their_place():
    space = SearchSpace(
        (
            Parameter("e", "mV", -200, 0, value=-85.0, fixed=True),
            Parameter("a", "1/ms", 0, 10),
            Parameter("g", "nS", 0, 1, value=0.25, fixed=True),
            Parameter("b", "1/ms", 0, 100),
        )
    )
    assert space.free == (1, 3)
    assert (space.n_free, space.n_parameters) == (2, 4)
    unit = np.array([[0.0, 0.5, 1.0], [1.0, 0.5, 0.0]])
    physical = space.to_physical(unit)
    np.testing.assert_array_equal(
        physical, [[-85, -85, -85], [0, 5, 10], [0.25, 0.25, 0.25], [100, 50, 0]]
    )
    np.testing.assert_array_equal(space.to_unit(physical), unit)


def test_points_outside_the_cube_land_on_the_bounds_and_the_input_is_kept():
    unit = np.array([[-0.5, 1.5]])
    for scale in ("linear", "log"):
        space = space_of((1.0, 3.0), scale=scale)
        np.testing.assert_array_equal(space.to_physical(unit), [[1.0, 3.0]])
    np.testing.assert_array_equal(unit, [[-0.5, 1.5]])


@pytest.mark.parametrize("value", [-0.1, 1.1, np.nan, np.inf])
def test_a_value_outside_its_range_is_refused_by_name(value):
    with pytest.raises(InputError, match=r"parameters\.p1: .* \[0, 1\] mV"):
        space_of((0, 1), (0, 1)).to_unit(np.array([[0.5, 0.5], [0.5, value]]))


@pytest.mark.parametrize(
    ("parameter", "message"),
    [
        (Parameter("k", "1/ms", 0, 1, scale="log"), "starts above 0, not"),
        (Parameter("k", "1/ms", 0, 1, scale="cubic"), '"linear" or "log", not "cubic"'),
        (Parameter("k", "1/ms", 0, np.inf), "finite"),
        (Parameter("k", "1/ms", 2, 1), "ends below its start"),
        (Parameter("k", "1/ms", 0, 1, fixed=True), "needs a value"),
    ],
)
def test_parameters_that_cannot_be_searched_are_refused_by_name(parameter, message):
    with pytest.raises(InputError, match=message) as caught:
        SearchSpace((Parameter("a", "mV", 0, 1), parameter))
    assert caught.value.key == "parameters.k"
