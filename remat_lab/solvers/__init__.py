"""The solvers: one file per family, each numba kernel beside the wrapper that explains it."""
