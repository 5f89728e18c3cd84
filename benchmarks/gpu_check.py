"""The same table on a CUDA device: python benchmarks/gpu_check.py [network ...]

Skipped, with a sentence, where there is none. Also prints what the caching allocator and the driver took beyond
what ops asked for.
"""

import sys

import torch
from _rows import SIZES, Bench, run_all
from executor_table import METHODS

import remat_lab as rl
from remat_lab.execution.execute import call_tensors, resident_tensors
from remat_lab.execution.interpreter import Interpreter
from remat_lab.execution.measure import CudaMeter


def allocator(name: str) -> None:
    """Requested, allocated and reserved peaks of one vanilla step."""
    cap = Bench(name, "cuda", k=1).cap
    meter = CudaMeter(torch.device("cuda"))
    interpreter = Interpreter(cap, rl.Schedule.vanilla(cap.joint), resident_tensors(cap, call_tensors(cap)))
    with meter:
        interpreter.advance(mark=meter.mark)
    interpreter.abandon()
    print(
        f"{name}: ops asked for {rl.format_bytes(meter.levels.peak)}, the allocator gave "
        f"{rl.format_bytes(meter.allocated_peak)}, the driver {rl.format_bytes(meter.reserved_peak)}"
    )


def main(names: list[str]) -> int:
    if not torch.cuda.is_available():
        print("no CUDA device: skipped")
        return 0
    # Kernels that sum in another order each time would make two eager runs differ, too.
    torch.use_deterministic_algorithms(True, warn_only=True)
    torch.backends.cudnn.benchmark = False
    wrong = run_all(names, METHODS, "cuda", "gpu_check")
    for name in names:
        allocator(name)
    return int(wrong > 0)


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:] or list(SIZES)))
