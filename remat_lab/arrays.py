"""Small array helpers shared by the graphs: lists of lists as two flat arrays (CSR)."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import NamedTuple

import numpy as np

from .errors import TooLarge
from .units import format_bytes

#: The most bytes that one table may take: what a workstation has to spare.
MOST_BYTES = 16 * 2**30


class Csr(NamedTuple):
    """Lists of ints as flat arrays: list ``i`` is ``index[start[i]:start[i + 1]]``.

    ``start`` is int64 of shape (n + 1,), ``index`` int64 of shape (total,).
    """

    start: np.ndarray
    index: np.ndarray  # type: ignore[assignment]

    def row(self, i: int) -> np.ndarray:
        return self.index[self.start[i] : self.start[i + 1]]

    @property
    def rows(self) -> int:
        return len(self.start) - 1

    def owners(self) -> np.ndarray:
        """For each entry of ``index``, the row it belongs to."""
        return np.repeat(np.arange(self.rows, dtype=np.int64), np.diff(self.start))

    def rows_of(self, chosen: np.ndarray) -> Csr:
        """The chosen rows, in that order."""
        return csr([self.row(i).tolist() for i in chosen.tolist()])

    def transposed(self, columns: int) -> Csr:
        """The lists the other way round; each is in ascending order of row."""
        order = np.argsort(self.index, kind="stable")
        counts = (
            np.bincount(self.index, minlength=columns) if len(self.index) else np.zeros(columns, np.int64)
        )
        start = np.concatenate([[0], np.cumsum(counts)]).astype(np.int64)
        return Csr(frozen(start), frozen(self.owners()[order]))


def csr(lists: Sequence[Iterable[int]]) -> Csr:
    """Build from Python lists."""
    rows = [list(row) for row in lists]
    start = np.concatenate([[0], np.cumsum([len(row) for row in rows])]).astype(np.int64)
    index = np.array([x for row in rows for x in row], dtype=np.int64)
    return Csr(frozen(start), frozen(index))


def check_bytes(what: str, size: int, instead: str) -> None:
    """Refuse a table before it is made, rather than fill the machine's memory.

    Raises
    ------
    TooLarge
        If ``size`` is more than :data:`MOST_BYTES`; the message says what to do ``instead``.
    """
    if size > MOST_BYTES:
        raise TooLarge(
            f"{what} would take {format_bytes(size)}, more than {format_bytes(MOST_BYTES)}: {instead}"
        )


def frozen(array: np.ndarray) -> np.ndarray:
    """Mark an array read-only and return it."""
    array.setflags(write=False)
    return array
