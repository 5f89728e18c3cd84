"""Remember a derived object beside the immutable object it was derived from."""

from __future__ import annotations

from collections.abc import Callable, Hashable
from typing import Any, TypeVar

T = TypeVar("T")


def memo(owner: Any, key: Hashable, make: Callable[[], T]) -> T:
    """``make()`` once per ``owner`` and ``key``; forgotten together with the owner.

    For immutable owners with a ``__dict__`` only. The key must name everything ``make`` depends on.
    """
    store: dict[Hashable, Any] = owner.__dict__.setdefault("_memo", {})
    if key not in store:
        store[key] = make()
    return store[key]
