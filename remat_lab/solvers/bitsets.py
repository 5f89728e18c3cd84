"""Kernels on sets of nodes as rows of uint64 words, and a table that finds a set among many."""

from __future__ import annotations

import numpy as np
from numba import njit


@njit(cache=True, nogil=True)
def masks(start, index, n):
    """uint64 array, shape (n, words): a list of nodes per node (CSR) as bits."""
    out = np.zeros((n, (n + 63) // 64), dtype=np.uint64)
    for v in range(n):
        for e in range(start[v], start[v + 1]):
            u = index[e]
            out[v, u >> 6] |= np.uint64(1) << np.uint64(u & 63)
    return out


@njit(cache=True, nogil=True)
def descendants(after):
    """uint64 array, shape (n, words): all nodes reachable from v, v left out; ``after`` holds the successors."""
    n, words = after.shape
    out = after.copy()
    for v in range(n - 1, -1, -1):
        for w in range(words):
            rest = after[v, w]
            while rest != 0:
                low = rest & (~rest + np.uint64(1))
                rest ^= low
                out[v] |= out[w * 64 + bit_index(low)]
    return out


@njit(cache=True, nogil=True)
def bit_index(low):
    """Position of the only bit of a word."""
    at = 0
    for shift in (32, 16, 8, 4, 2, 1):
        if low >> np.uint64(shift):
            at += shift
            low >>= np.uint64(shift)
    return at


@njit(cache=True, nogil=True)
def has(words, v):
    return (words[v >> 6] >> np.uint64(v & 63)) & np.uint64(1) != 0


@njit(cache=True, nogil=True)
def hash_of(words):
    h = np.uint64(0x9E3779B97F4A7C15)
    for w in range(len(words)):
        h ^= words[w]
        h *= np.uint64(0xFF51AFD7ED558CCD)
        h ^= h >> np.uint64(32)
    return h


@njit(cache=True, nogil=True)
def table_of(rows):
    """Open addressing: int64 array, size a power of two, of row numbers (-1: empty)."""
    size = 64
    while size < 2 * len(rows):
        size *= 2
    table = np.full(size, -1, dtype=np.int64)
    mask = size - 1
    for r in range(len(rows)):
        at = np.int64(hash_of(rows[r]) & np.uint64(mask))
        while table[at] >= 0:
            at = (at + 1) & mask
        table[at] = r
    return table


@njit(cache=True, nogil=True)
def find(table, rows, words):
    """The row equal to ``words``, or -1."""
    mask = len(table) - 1
    at = np.int64(hash_of(words) & np.uint64(mask))
    while table[at] >= 0:
        r = table[at]
        same = True
        for w in range(len(words)):
            if rows[r, w] != words[w]:
                same = False
                break
        if same:
            return r
        at = (at + 1) & mask
    return -1
