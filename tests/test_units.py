import math

import pytest
from hypothesis import given
from hypothesis import strategies as st

from remat_lab.errors import InfeasibleBudget
from remat_lab.units import format_bytes, format_exact, format_time, parse_budget, parse_bytes


@pytest.mark.parametrize(
    ("text", "value"),
    [
        (0, 0),
        (1024, 1024),
        ("1024", 1024),
        ("2.5 GB", 2_500_000_000),
        ("2.5GiB", 2_684_354_560),
        ("1 kb", 1000),
        ("1_000 MB", 10**9),
        ("12,345", 12345),
        (2**53 + 1, 2**53 + 1),
        (str(2**53 + 1), 2**53 + 1),
        (".5 KiB", 512),
    ],
)
def test_parse_bytes_reads_sizes(text, value):
    assert parse_bytes(text) == value


@pytest.mark.parametrize(
    "bad", ["", "lots", "12 XB", "-3", -3, math.nan, math.inf, None, [], True, "1.2.3 GB", "GB"]
)
def test_parse_bytes_names_what_it_cannot_read(bad):
    with pytest.raises(ValueError, match="size"):
        parse_bytes(bad)


def test_parse_budget_reads_shares_of_the_vanilla_peak():
    assert parse_budget("60%", 1000) == 600
    assert parse_budget("12.5 %", 1000) == 125
    assert parse_budget(None, 1000) is None
    assert parse_budget("1 kB", 5) == 1000


@pytest.mark.parametrize("bad", ["x%", "-5%", "nan%", "%", "inf%"])
def test_parse_budget_refuses_bad_shares(bad):
    with pytest.raises(ValueError, match=r"share|budget"):
        parse_budget(bad, 10)


def test_a_fraction_is_no_number_of_bytes():
    with pytest.raises(ValueError, match="60%"):
        parse_budget(0.6, 1000)


@given(st.integers(0, 2**62))
def test_format_bytes_is_within_half_a_percent(size):
    text = format_bytes(size)
    assert abs(parse_bytes(text) - size) <= 0.0051 * size + 0.5


def test_formats_are_short():
    assert format_bytes(999_999) == "1.00 MB"
    assert format_bytes(-2_000) == "-2.00 kB"
    assert format_time(0.0012, "s") == "1.20 ms"
    assert format_time(2.5e9, "flop") == "2.50 GFLOP"
    assert format_time(41, "paper") == "41"


@pytest.mark.parametrize(
    ("value", "text"),
    [(0, "0 B"), (93, "93 B"), (999, "999 B"), (1000, "1.00 kB (1000 B)"), (1234567, "1.23 MB (1234567 B)")],
)
def test_a_byte_count_is_written_once(value, text):
    assert format_exact(value) == text
    assert str(InfeasibleBudget.of("chen", 3, value)).count(text) == 1
    assert "(3 B)" not in str(InfeasibleBudget.of("chen", 3, value))
