"""What is too large is refused before it fills the machine, and the refusal says what to do."""

import tracemalloc

import pytest

import remat_lab as rl
from remat_lab import arrays
from remat_lab.errors import TooLarge
from remat_lab.solvers import bptt, lower_sets, rotor_table


@pytest.fixture
def little_memory():
    """Whatever a refusal does, it does not allocate."""
    tracemalloc.start()
    yield
    _, peak = tracemalloc.get_traced_memory()
    tracemalloc.stop()
    assert peak < 200e6


@pytest.mark.parametrize("steps", [5_000_001, 10**9, 10**18])
def test_a_chain_of_too_many_steps_is_refused(steps, little_memory):
    with pytest.raises(TooLarge, match=f"a chain of {steps:,} steps is too large"):
        rl.Chain(steps)


def test_a_chain_of_a_million_steps_is_not():
    assert len(rl.Chain(10**6, hidden=4, internal=8)) == 10**6


@pytest.mark.parametrize(
    "ask",
    [
        lambda: bptt.hsm_table(10**6, 10**5),
        lambda: bptt.ism_table(10**6, 10**5),
        lambda: bptt.msm_table(10**6, 10**5, 2),
        lambda: rotor_table.rotor_table(rl.Chain(10**5), 1.0, 10**5),
    ],
    ids=["hsm", "ism", "msm", "rotor"],
)
def test_tables_of_too_many_entries_are_refused(ask, little_memory):
    with pytest.raises(TooLarge, match=r"table for .* would take .* TB|table for .* GB, more than 17.2 GB"):
        ask()


def test_graphs_of_too_many_nodes_for_lower_sets_are_refused(monkeypatch):
    monkeypatch.setattr(arrays, "MOST_BYTES", 10_000)
    graph = rl.Chain(1000).graph
    for method in ("kusumoto-approx", "kusumoto-branches", "kusumoto-best"):
        with pytest.raises(TooLarge, match=r"1,000 nodes would take 128 kB.*'chen'"):
            rl.solve(graph, "50%", method)
    assert lower_sets.words_for(1000) == 16


def test_in_a_comparison_it_is_a_row_with_the_reason():
    chain = rl.Chain(1000)
    found = rl.compare(chain, "60%", ["oracle", "checkmate", "chen-sqrt"], progress=False).set_index("method")
    assert list(found["status"]) == ["too large", "too large", "feasible"]
    assert found.loc["oracle", "error"].startswith("the oracle plans graphs of at most 64 ops")
    assert found.loc["checkmate", "error"].startswith("checkmate would need about")
