"""How far a long computation is: told to whoever listens, who may also stop it.

Solvers call :func:`report` where a piece of work is done; a view that runs them in a thread listens. Without a
listener a call costs next to nothing.

The first calls on a new machine compile the kernels, which takes a while before there is anything to report:
:func:`tell_of_compiling` has that said once, on standard error, as progress bars are. The environment variable
``REMAT_LAB_QUIET`` keeps it silent.
"""

from __future__ import annotations

import multiprocessing
import os
import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from contextvars import ContextVar

from numba.core import event

#: Where this is set (to anything), nothing is said of compiling.
QUIET_VARIABLE = "REMAT_LAB_QUIET"

_listener: ContextVar[Callable[[int, int], None] | None] = ContextVar("remat_lab_progress", default=None)


def report(done: int, total: int) -> None:
    """Say that ``done`` of ``total`` pieces are finished. What the listener raises ends the computation.

    A total of 0 is :func:`pulse`.
    """
    listener = _listener.get()
    if listener is not None:
        listener(done, total)


def pulse() -> None:
    """Say that work goes on, where no one knows how much is left; a listener may end it here as well."""
    report(0, 0)


@contextmanager
def listening(listener: Callable[[int, int], None]) -> Iterator[None]:
    """Hear every report made inside the block, in this thread."""
    token = _listener.set(listener)
    try:
        yield
    finally:
        _listener.reset(token)


class _CompileListener(event.Listener):
    """Hears of every kernel that numba compiles, which it does where its cache on disk has none."""

    said = False

    def on_start(self, started: event.Event) -> None:
        kernel = getattr((started.data or {}).get("dispatcher"), "py_func", None)
        quiet = self.said or os.environ.get(QUIET_VARIABLE)
        ours = str(getattr(kernel, "__module__", "")).partition(".")[0] == __package__
        # The workers of a sweep would all say the same.
        if ours and not quiet and multiprocessing.current_process().name == "MainProcess":
            self.said = True
            print(
                "remat_lab: compiling the solvers for this machine, once: about 20 s in all",
                file=sys.stderr,
                flush=True,
            )

    def on_end(self, ended: event.Event) -> None:
        pass


def tell_of_compiling() -> None:
    """From now on, say so (once) when a kernel has to be compiled. The package asks for it when it is imported."""
    event.register("numba:compile", _CompileListener())
