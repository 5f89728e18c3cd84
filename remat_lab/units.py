"""Bytes and times, read from people and written for people."""

from __future__ import annotations

import math
import numbers
import re

_SCALE = {
    "": 1,
    "b": 1,
    "byte": 1,
    "bytes": 1,
    "k": 10**3,
    "kb": 10**3,
    "m": 10**6,
    "mb": 10**6,
    "g": 10**9,
    "gb": 10**9,
    "t": 10**12,
    "tb": 10**12,
    "kib": 2**10,
    "mib": 2**20,
    "gib": 2**30,
    "tib": 2**40,
}
_BYTES = re.compile(r"^\s*([0-9][0-9_,]*(?:\.[0-9]+)?|\.[0-9]+)\s*([a-zA-Z]*)\s*$")
_HELP = "write bytes as an int, '2.5 GB' (10^9) or '2.5 GiB' (2^30)"
_BUDGET_HELP = (
    "write bytes as an int, '2.5 GB' (10^9), '2.5 GiB' (2^30), '60%' (of the vanilla peak) or 'min'"
)


def parse_bytes(text: int | float | str) -> int:
    """Read a number of bytes: ``1024``, ``"2.5 GB"`` (10^9) or ``"2.5 GiB"`` (2^30).

    Raises
    ------
    ValueError
        If the text is not a size, or the size is negative, NaN or infinite.

    >>> parse_bytes("2.5 GB"), parse_bytes("1 KiB")
    (2500000000, 1024)
    """
    return read_bytes(text, "a size")


def read_bytes(text: int | float | str, what: str, how: str = _HELP) -> int:
    """:func:`parse_bytes`, with errors that call the size ``what`` and say ``how`` to write it."""
    unreadable = f"cannot read {text!r} as {what}: {how}"
    if isinstance(text, bool):
        raise ValueError(unreadable)
    if isinstance(text, numbers.Integral):
        value = int(text)
    elif isinstance(text, numbers.Real):
        number = float(text)
        if not math.isfinite(number):
            raise ValueError(f"{what} must be finite, got {text!r}")
        value = int(number)
    elif isinstance(text, str):
        match = _BYTES.match(text)
        if match is None or match.group(2).lower() not in _SCALE:
            raise ValueError(unreadable)
        number_text = match.group(1).replace(",", "").replace("_", "")
        scale = _SCALE[match.group(2).lower()]
        value = int(number_text) * scale if number_text.isdigit() else round(float(number_text) * scale)
    else:
        raise ValueError(unreadable)
    if value < 0:
        raise ValueError(f"{what} must not be negative, got {text!r}")
    return value


def parse_budget(budget: int | float | str | None, vanilla_peak: int) -> int | None:
    """Read a budget: bytes, a size as text, ``"60%"`` of ``vanilla_peak``, or ``None`` for no bound.

    ``"min"`` is resolved by the caller, who knows the method. Fractions such as ``0.6`` are refused: a
    number is bytes, a share is written ``"60%"``.

    >>> parse_budget("60%", 1000)
    600
    """
    if budget is None:
        return None
    if isinstance(budget, str) and budget.strip().endswith("%"):
        try:
            share = float(budget.strip()[:-1])
        except ValueError:
            raise ValueError(f"cannot read {budget!r} as a budget: {_BUDGET_HELP}") from None
        if not math.isfinite(share) or share < 0:
            raise ValueError(f"a share must be a finite number of percent, not negative, got {budget!r}")
        return int(vanilla_peak * share / 100)
    if isinstance(budget, float) and 0 < budget < 1:
        raise ValueError(f"a budget of {budget} bytes? For a share of the vanilla peak write '{budget:.0%}'")
    return read_bytes(budget, "a budget", _BUDGET_HELP)


def format_bytes(value: int | float) -> str:
    """Write bytes for people, in powers of ten.

    >>> format_bytes(1234567), format_bytes(12)
    ('1.23 MB', '12 B')
    """
    try:
        size = float(value)
    except (TypeError, ValueError):
        raise TypeError(f"value must be a number of bytes, got {value!r}") from None
    sign = "-" if size < 0 else ""
    size = abs(size)
    for unit, scale in (("TB", 1e12), ("GB", 1e9), ("MB", 1e6), ("kB", 1e3)):
        if size >= scale * 0.9995:
            return f"{sign}{_three(size / scale)} {unit}"
    return f"{sign}{size:.0f} B"


def format_exact(value: int) -> str:
    """Write bytes for people, and the whole number behind it unless it is there already.

    >>> format_exact(1234567), format_exact(12)
    ('1.23 MB (1234567 B)', '12 B')
    """
    short = format_bytes(value)
    return short if short == f"{value} B" else f"{short} ({value} B)"


def format_time(value: float, unit: str) -> str:
    """Write a time in its graph's unit (``"s"``, ``"flop"`` or ``"paper"``)."""
    if unit == "s":
        for name, scale in (("s", 1.0), ("ms", 1e-3), ("µs", 1e-6)):
            if abs(value) >= scale or name == "µs":
                return f"{_three(value / scale)} {name}"
    if unit == "flop":
        for name, scale in (("TFLOP", 1e12), ("GFLOP", 1e9), ("MFLOP", 1e6), ("kFLOP", 1e3)):
            if abs(value) >= scale:
                return f"{_three(value / scale)} {name}"
        return f"{value:.0f} FLOP"
    return f"{value:g}"


def _three(number: float) -> str:
    """Three significant digits, without an exponent."""
    if abs(number) >= 99.95:
        return f"{number:.0f}"
    return f"{number:.1f}" if abs(number) >= 9.995 else f"{number:.2f}"
