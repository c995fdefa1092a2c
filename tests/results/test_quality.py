"""How good a fit is: every figure against values computed by hand."""

from __future__ import annotations

import json
import math

import numpy as np
import pytest

from channelfit.results.quality import Quality, pooled, quality
from channelfit.results.report.fit_words import quality_texts
from channelfit.results.run_state import json_text

DATA = np.array([[0.0, 10.0, 2.0], [0.0, -4.0, -2.0]])  # mean 1, squares about it 118
FIT = np.array([[1.0, 8.0, 2.0], [0.0, -5.0, -1.0]])  # off by 1, -2, 0, 0, -1, 1: squares 7


def test_the_figures_are_those_computed_by_hand():
    found = quality(FIT, DATA)
    assert found.rms_pA == pytest.approx(math.sqrt(7 / 6))
    assert found.peak_pA == 10
    assert found.rms_relative_to_peak == pytest.approx(math.sqrt(7 / 6) / 10)
    assert found.variance_explained == pytest.approx(1 - 7 / 118)
    # 8 instead of 10, and -5 instead of -4: 2 and 1 off
    assert found.peak_error_pA == pytest.approx(math.sqrt((4 + 1) / 2))
    assert found.peak_error_relative == pytest.approx(math.sqrt(2.5) / 10)
    mean = np.full_like(DATA, 1.0)
    assert quality(mean, DATA).variance_explained == pytest.approx(0)
    assert quality(mean + 5, DATA).variance_explained < 0
    assert (quality(DATA, DATA).variance_explained, quality(DATA, DATA).peak_error_pA) == (1, 0)
    # the fit's peak is looked for in the direction of the data's, at whatever time
    found = quality(np.array([[99.0, 0.0, -101.0]]), np.array([[0.0, 100.0, -99.0]]))
    assert found.peak_error_pA == pytest.approx(1)
    for nothing in (Quality(), quality(FIT, DATA, np.zeros_like(DATA)), pooled([])):
        assert math.isnan(nothing.rms_pA)
        assert nothing.variance_explained is None
        assert nothing.rms_relative_to_peak is None
        assert quality_texts(nothing.as_plain()) == {}


def test_weights_count_and_what_is_masked_does_not():
    weight = np.array([[0.0, 1.0, 2.0], [0.0, 0.0, 1.0]])
    found = quality(FIT, np.where(weight > 0, DATA, 1e9), weight)
    mean = (10 + 2 * 2 - 2) / 4
    spread = (10 - mean) ** 2 + 2 * (2 - mean) ** 2 + (-2 - mean) ** 2
    squares = 2**2 + 2 * 0 + 1
    assert found.rms_pA == pytest.approx(math.sqrt(squares / 4))
    assert found.variance_explained == pytest.approx(1 - squares / spread)
    # the second sweep's peak is the one sample that is left of it: -1 instead of -2
    assert found.peak_error_pA == pytest.approx(math.sqrt((2**2 + 1**2) / 2))


@pytest.mark.parametrize("level", [0.0, 0.1, -700.3])
def test_constant_data_have_no_variance(level):
    """Sums of 0.1 are not exact: rounding must not pass for variance."""
    data = np.full((3, 1001), level)
    found = quality(data + 2, data)
    assert found.variance_explained is None
    assert found.rms_pA == pytest.approx(2)
    assert found.peak_error_pA == pytest.approx(2)
    assert (found.peak_error_relative is None) == (level == 0)


def test_unknown_data_do_not_count_and_an_unknown_fit_is_told():
    data = DATA.copy()
    data[0, 0] = np.nan
    kept = np.array([[0.0, 1.0, 1.0], [1.0, 1.0, 1.0]])
    assert quality(FIT, data) == quality(FIT, DATA, kept)
    fit = FIT.copy()
    fit[0, 0] = np.nan  # where the data are NaN too
    assert math.isfinite(quality(fit, data).rms_pA)
    fit[1, 1] = np.nan
    broken = quality(fit, data)
    assert math.isnan(broken.rms_pA)
    assert math.isnan(broken.variance_explained)
    assert math.isnan(broken.peak_error_pA)
    assert quality_texts(broken.as_plain()) == {}
    assert json.loads(json_text(broken.as_plain()))["variance_explained"] is None


def test_experiments_are_pooled_by_their_weights():
    """Each about its own mean; one of weight 0 does not count, not even its peak."""
    other = quality(np.array([[3.0, 1.0]]), np.array([[2.0, 4.0]]))  # off by 1, -3
    held_out = quality(np.zeros((1, 2)), np.array([[1e6, 0.0]]))
    whole = pooled([(quality(FIT, DATA), 1.0), (other, 3.0), (held_out, 0.0)])
    assert whole.mean_square == pytest.approx((7 + 3 * 10) / (6 + 3 * 2))
    assert whole.variance_explained == pytest.approx(1 - (7 + 3 * 10) / (118 + 3 * 2))
    assert whole.peak_pA == 10
    # 3 instead of 4 in the second experiment
    assert whole.peak_error_pA == pytest.approx(math.sqrt((4 + 1 + 3 * 1) / (2 + 3)))
