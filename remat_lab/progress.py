"""How far a long computation is: told to whoever listens, who may also stop it.

Solvers call :func:`report` where a piece of work is done; a view that runs them in a thread listens. Without a
listener a call costs next to nothing.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from contextvars import ContextVar

_listener: ContextVar[Callable[[int, int], None] | None] = ContextVar("remat_lab_progress", default=None)


def report(done: int, total: int) -> None:
    """Say that ``done`` of ``total`` pieces are finished. What the listener raises ends the computation."""
    listener = _listener.get()
    if listener is not None:
        listener(done, total)


@contextmanager
def listening(listener: Callable[[int, int], None]) -> Iterator[None]:
    """Hear every report made inside the block, in this thread."""
    token = _listener.set(listener)
    try:
        yield
    finally:
        _listener.reset(token)
