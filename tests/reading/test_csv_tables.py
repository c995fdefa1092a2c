"""Tables that are written: no text of them acts, and numbers stay numbers."""

from __future__ import annotations

import csv
import io
import math

import numpy as np
from hypothesis import example, given
from hypothesis import strategies as st

from channelfit.reading.csv_tables import bare, cell, csv_rows, csv_table
from channelfit.reading.errors import printable

#: What a spreadsheet takes for the beginning of a formula.
FORMULAS = "=+-@＝＋－＠\t\r"
texts = st.one_of(
    st.text(st.characters(codec=None, exclude_categories=[])),
    st.text("=+-@'\\x1b5cud80\x1b\u202e \t\r\n,;\"", max_size=12),
)


@given(texts)
@example("=cmd|' /C calc'!A0")
@example("\\x1b\x1b\\x5c\udcff")
@example("'=1")
@example("a\u2028\nb")
def test_a_text_acts_nowhere_and_comes_back(text):
    (row,) = csv.reader(io.StringIO(csv_rows([["a", text]]), newline=""))
    assert bare(row[1]) == text
    assert printable(row[1]) == row[1]
    row[1].encode()
    assert not row[1].startswith(tuple(FORMULAS)) or math.isfinite(float(row[1]))


def test_a_text_that_is_a_number_stays_one():
    """Such as the name of a data set that is the voltage of its step."""
    numbers = ["-80", "+1.5e-3", "-.5", "A01"]
    assert list(map(cell, numbers)) == numbers
    assert [cell(text) for text in ("-80 mV", "-1+1", "+inf", "--1", "-")] == [
        *("'-80 mV", "'-1+1", "'+inf", "'--1", "'-")
    ]


def test_numbers_are_written_to_the_bit_or_with_few_digits():
    values = np.array([0.1 + 0.2, -0.0, np.nan, 1e-310, 12.0, -np.inf])
    table = [("=x", values), ("t", list("abcdef"))]
    rows = list(csv.reader(csv_table(table).splitlines()))
    assert rows[0] == ["'=x", "t"]
    assert [row[1] for row in rows[1:]] == list("abcdef")
    back = np.array([float(row[0] or "nan") for row in rows[1:]])
    assert back.tobytes() == values.tobytes()
    short = csv_table([("a", values[:1]), ("b", values[:1])], digits=3, exact=["b"])
    assert short == "a,b\n0.3,0.30000000000000004\n"
