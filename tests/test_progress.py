"""That kernels are being compiled is said once, and only when they are."""

import os
import subprocess
import sys

import pytest

import remat_lab as rl
from remat_lab.progress import listening

NOTICE = "remat_lab: compiling the solvers for this machine, once: about 20 s in all\n"
SIMULATE = "import remat_lab as rl; rl.vanilla_peak(rl.Chain(3)); rl.vanilla_peak(rl.Chain(4).joint)"


@pytest.fixture
def said(tmp_path):
    """What a fresh process says, with a cache of its own that lasts for the test."""

    def run(script, **settings):
        kept = {name: value for name, value in os.environ.items() if name != "REMAT_LAB_QUIET"}
        done = subprocess.run(
            [sys.executable, "-c", script],
            env={**kept, "NUMBA_CACHE_DIR": str(tmp_path), **settings},
            capture_output=True,
            text=True,
            check=True,
        )
        assert done.stdout == ""
        return done.stderr

    return run


def test_compiling_is_said_once_and_not_when_the_kernels_are_cached(said, tmp_path):
    assert said("import remat_lab") == ""
    assert said(SIMULATE) == NOTICE
    assert said(SIMULATE) == ""
    assert said(SIMULATE, REMAT_LAB_QUIET="1", NUMBA_CACHE_DIR=str(tmp_path / "fresh")) == ""


def test_what_else_is_compiled_is_no_business_of_ours(said):
    script = "import numba, remat_lab\n@numba.njit\ndef f(x): return x + 1\nf(1)"
    assert said(script) == ""


class Enough(Exception):
    pass


def chain():
    sizes = [1 + i % 7 for i in range(60)]
    return rl.Chain(hidden=sizes, internal=[9 + s for s in sizes])


@pytest.mark.parametrize(
    "method, problem, options",
    [
        ("local-search", rl.Chain(60), {"seconds": 60.0}),
        ("retention-intervals", rl.Chain(60), {"time_limit": 60.0, "warm_start": 0.0}),
        ("dtr", rl.Chain(60), {}),
        ("rotor", chain(), {}),
        ("kusumoto-best", rl.Chain(60), {}),
    ],
)
def test_who_listens_can_end_the_work(method, problem, options):
    heard = []

    def listener(done, total):
        heard.append((done, total))
        if len(heard) == 2:
            raise Enough

    if method == "retention-intervals":
        pytest.importorskip("ortools")
    budget = rl.vanilla_peak(problem) // 2
    with listening(listener), pytest.raises(Enough):
        rl.solve(problem, budget, method, **options)
    assert len(heard) == 2
