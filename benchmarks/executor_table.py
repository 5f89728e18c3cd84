"""Predicted beside measured on eleven networks: python benchmarks/executor_table.py [network ...]

Vanilla, and every method below at its least budget and halfway to vanilla: the difference in bytes, and whether
gradients, buffers and the random state equal eager's. The table goes to benchmarks/results/executor_table.csv.
"""

import sys

from _rows import SIZES, run_all

METHODS = ["chen", "kusumoto-approx", "kusumoto-best", "torch-min-cut", "torch-budget"]

if __name__ == "__main__":
    sys.exit(run_all(sys.argv[1:] or list(SIZES), METHODS, None, "executor_table") > 0)
