"""Checks of arguments that many functions share: each names the argument, what it got and what to pass."""

from __future__ import annotations

import math
import numbers
import os
from pathlib import Path
from typing import Any


def as_path(given: Any, name: str = "path") -> Path:
    """A path from what a caller gave as one.

    Raises
    ------
    TypeError
        If it is none: a number, for instance, which Python would take for an open file's.
    """
    if not isinstance(given, (str, os.PathLike)):
        raise TypeError(f"{name} must be a file's name or a pathlib.Path, got {given!r}")
    return Path(given)


def check_seconds(given: Any, name: str) -> None:
    """Refuse what is no time to wait.

    Raises
    ------
    TypeError, ValueError
        If it is neither a number of seconds above zero nor None (no limit).
    """
    if given is None:
        return
    if isinstance(given, bool) or not isinstance(given, numbers.Real):
        raise TypeError(f"{name} must be a number of seconds or None, got {given!r}")
    if math.isnan(given) or given <= 0:
        raise ValueError(f"{name} must be a number of seconds > 0 or None, got {given!r}")
