"""Whatever is passed by mistake, a public function says which argument is wrong and what to pass."""

import re
from pathlib import Path

import pytest

import remat_lab as rl

GRAPH = rl.ComputationGraph.from_nodes([{"name": "a", "memory": 4}, {"name": "b", "memory": 2}], [("a", "b")])
WRONG = [3, None, "x", [], object()]
PROBLEM = "problem"

#: Public name (and its argument, where it is not the main one) -> the call, a pattern of what its error must say,
#: and which of the wrong values are right here.
CALLS = {
    "ComputationGraph": (lambda x: rl.ComputationGraph.from_nodes(x, []), r"node", ()),
    "ComputationGraph edges": (
        lambda x: rl.ComputationGraph.from_nodes([{"name": "a", "memory": 4}], x),
        r"edges must",
        ([],),
    ),
    "ComputationGraph from_networkx": (rl.ComputationGraph.from_networkx, r"DiGraph", ()),
    "Chain": (rl.Chain, r"steps", (3,)),
    "Chain hidden": (lambda x: rl.Chain(3, hidden=x), r"hidden", (3,)),
    "Schedule": (lambda x: rl.Schedule(x, [0]), r"joint must", ()),
    "Schedule actions": (lambda x: rl.Schedule(GRAPH.joint, x), r"actions must", ([],)),
    "Schedule from_ops": (lambda x: rl.Schedule.from_ops(x, [0]), r"joint must", ()),
    "Schedule from_ops ops": (lambda x: rl.Schedule.from_ops(GRAPH.joint, x), r"ops must", ([],)),
    "Schedule vanilla": (rl.Schedule.vanilla, r"joint must", ()),
    "Plan load": (lambda x: rl.Plan.load(x, GRAPH), r"path must", ("x",)),
    "Stepper": (rl.Stepper, r"a Plan or a Schedule", ()),
    "solve": (rl.solve, PROBLEM, ()),
    "solve budget": (lambda x: rl.solve(GRAPH, x), r"budget|3 B", (None,)),
    "solve method": (lambda x: rl.solve(GRAPH, None, x), r"unknown method", ()),
    "solve accounting": (lambda x: rl.solve(GRAPH, None, accounting=x), r"accounting must", ()),
    "frontier": (rl.frontier, PROBLEM, ()),
    "minimum_budget": (rl.minimum_budget, PROBLEM, ()),
    "vanilla_peak": (rl.vanilla_peak, PROBLEM, ()),
    "simulate": (rl.simulate, r"a Plan or a Schedule", ()),
    "explain": (rl.explain, PROBLEM, ()),
    "explain plan": (lambda x: rl.explain(GRAPH, x), r"a Plan or a Schedule", (None,)),
    "activation_budget": (rl.activation_budget, PROBLEM, ()),
    "activation_budget gpu": (lambda x: rl.activation_budget(GRAPH, gpu=x), r"gpu", (3,)),
    "activation_budget reserve": (lambda x: rl.activation_budget(GRAPH, reserve=x), r"reserve", (3,)),
    "activation_budget optimizer": (lambda x: rl.activation_budget(GRAPH, optimizer=x), r"optimizer", ()),
    "capture": (lambda x: rl.capture(x, None), r"model must", ()),
    "calibrate": (rl.calibrate, r"captured model", ()),
    "execute": (lambda x: rl.execute(x, rl.solve(GRAPH)), r"captured model", ()),
    "execute_chain": (lambda x: rl.execute_chain(x, rl.solve(GRAPH)), r"chain must", ()),
    "apply": (lambda x: rl.apply(x, rl.solve(GRAPH)), r"captured model", ()),
    "apply_chain": (lambda x: rl.apply_chain(x, rl.solve(GRAPH)), r"chain must", ()),
    "plain": (rl.plain, r"captured model", ()),
    "plain_chain": (rl.plain_chain, r"chain must", ()),
    "Chain from_rnn": (lambda x: rl.Chain.from_rnn(x, 3), r"cell must", ()),
    "Chain from_sequential": (lambda x: rl.Chain.from_sequential(x, None), r"model must", ()),
    "race": (rl.race, r"traces must|two or more", ()),
    "play": (rl.play, r"a Trace, a Plan or a Schedule", ()),
    "explore": (rl.explore, PROBLEM, ()),
    "stepper": (rl.stepper, r"a Trace, a Plan or a Schedule", ()),
    "save_html": (lambda x: rl.save_html(x, "none.html"), r"a Trace, a Plan or a Schedule|traces", ()),
    "plot_memory": (rl.plot_memory, r"Trace, Plan|got no trace", ()),
    "plot_graph": (rl.plot_graph, r"shown must", ()),
    "plot_frontier": (rl.plot_frontier, r"shown must|got no frontier", ()),
    "plot_comparison": (rl.plot_comparison, r"frame must", ()),
    "compare": (lambda x: rl.compare(x, "60%", "chen", progress=False), PROBLEM, ()),
    "compare budgets": (lambda x: rl.compare(GRAPH, x, "chen", progress=False), r"budget", (3, None)),
    "compare methods": (lambda x: rl.compare(GRAPH, "60%", x, progress=False), r"method", (None,)),
    "compare time_limit": (
        lambda x: rl.compare(GRAPH, "60%", "chen", time_limit=x, progress=False),
        r"time_limit must",
        (3, None),
    ),
    "leaderboard": (rl.leaderboard, r"frame must", ()),
    "suite": (rl.suite, r"pattern|no problem of the suite", ()),
    "sweep": (lambda x: rl.sweep(x, "60%", "chen", "none.jsonl", progress=False), r"problems must", ()),
    "sweep problem": (
        lambda x: rl.sweep({"g": x}, "60%", "chen", "none.jsonl", progress=False),
        r"problems\['g'\]",
        (),
    ),
    "sweep methods": (
        lambda x: rl.sweep({"g": GRAPH}, "60%", x, "none.jsonl", progress=False),
        r"method",
        (None,),
    ),
    "sweep path": (lambda x: rl.sweep({"g": GRAPH}, "60%", "chen", x, progress=False), r"path must", ("x",)),
    "load_sweep": (rl.load_sweep, r"path must", ("x",)),
    "methods": (rl.methods, PROBLEM, (None,)),
    "method": (rl.method, r"needs a name", ("x",)),
    "method function": (lambda x: rl.method("mistaken")(x), r"must be a function", ()),
    "method returns": (lambda x: rl.method("mistaken", returns=x), r"returns must", ()),
    "load_graph": (rl.load_graph, r"path must|no graph file", ()),
    "format_bytes": (rl.format_bytes, r"value must", (3,)),
    "parse_bytes": (rl.parse_bytes, r"size", (3,)),
}

#: What a function makes and no one writes out by hand.
RESULTS = {"JointGraph", "Frontier", "Trace", "Request", "Solution", "CapturedModel", "Measurement"}


def test_every_public_function_is_tried():
    errors = {
        n for n in rl.__all__ if isinstance(getattr(rl, n), type) and issubclass(getattr(rl, n), Exception)
    }
    assert {name.split()[0] for name in CALLS} == set(rl.__all__) - errors - RESULTS


CASES = [
    pytest.param(name, wrong, id=f"{name}-{type(wrong).__name__}")
    for name, (_, _, right) in CALLS.items()
    for wrong in WRONG
    if not any(type(wrong) is type(value) and wrong == value for value in right)
]


@pytest.mark.parametrize(("name", "wrong"), CASES)
def test_a_wrong_argument_is_named(name, wrong, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    call, says, _ = CALLS[name]
    with pytest.raises((rl.RematError, ValueError, TypeError)) as caught:
        call(wrong)
    assert re.search(says, str(caught.value)), str(caught.value)
    raised_in = Path(caught.traceback[-1].path)
    assert raised_in.is_relative_to(Path(rl.__file__).parent), (
        f"raised by {raised_in}, which knows no argument"
    )


@pytest.mark.parametrize("limit", [-1, 0, float("nan"), True])
def test_compare_refuses_a_time_limit_that_is_no_time(limit):
    with pytest.raises((ValueError, TypeError), match="time_limit must be a number of seconds"):
        rl.compare(GRAPH, "60%", "chen", time_limit=limit, progress=False)


def test_a_frontier_under_a_wrong_label_is_named():
    with pytest.raises(TypeError, match="must be a Frontier"):
        rl.plot_frontier({"mine": 3})
