import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from oracles import graphs, recount_peak

import remat_lab as rl
from remat_lab import ComputationGraph, InvalidSchedule, JointGraph, Schedule, Stepper, simulate


def chain(n, memory=10, **extra):
    return ComputationGraph.from_nodes(
        [{"name": f"n{i}", "memory": memory, **extra} for i in range(n)],
        [(f"n{i}", f"n{i + 1}") for i in range(n - 1)],
    )


@st.composite
def valid_runs(draw):
    """A graph and a valid op order: the plain one with forward ops run again where their inputs allow."""
    graph = draw(graphs())
    joint = graph.joint
    order = []
    done: set[int] = set()
    for op in range(joint.n_ops):
        again = [o for o in sorted(done) if not joint.op_backward[o]]
        for _ in range(draw(st.integers(0, 2))):
            if again:
                order.append(draw(st.sampled_from(again)))
        order.append(op)
        done.add(op)
    return joint, order


@given(valid_runs())
def test_peak_equals_the_naive_recount(case):
    joint, order = case
    schedule = Schedule.from_ops(joint, order)
    trace = simulate(schedule)
    assert trace.peak == recount_peak(schedule)
    assert np.array_equal(trace.by_category.sum(axis=1), trace.during)
    assert schedule.recomputed_ops == len(order) - joint.n_ops


@given(valid_runs())
def test_nothing_but_outputs_is_left_at_the_end(case):
    joint, order = case
    trace = simulate(Schedule.from_ops(joint, order))
    kept = sum(int(joint.value_bytes[v]) for v in joint.outputs)
    assert (trace.bytes[-1] if len(trace.bytes) else 0) == kept
    assert {value.index for value in trace.live_at(len(trace.bytes) - 1)} == set(joint.outputs.tolist())


@given(valid_runs(), st.data())
def test_workspace_counts_while_the_op_runs(case, data):
    joint, order = case
    extra = [data.draw(st.integers(0, 30)) for _ in range(joint.n_ops)]
    schedule = Schedule.from_ops(joint.with_costs(op_workspace=extra), order)
    assert simulate(schedule).peak == recount_peak(schedule)


def test_vanilla_chain_by_hand():
    # forward holds n0 n1 n2; then the last gradient and its seed, going down
    trace = simulate(Schedule.vanilla(chain(3).joint))
    assert trace.peak == 40  # n0, n1, grad n2, grad n1 (n2 is read by nobody)
    assert trace.bytes[-1] == 0


def test_at_peak_is_largest_first_and_sums_to_the_peak():
    graph = ComputationGraph.from_nodes(
        [{"name": "a", "memory": 1}, {"name": "b", "memory": 5}, {"name": "c", "memory": 3}],
        [("a", "b"), ("b", "c")],
    )
    trace = simulate(Schedule.vanilla(graph.joint))
    held = trace.at_peak()
    assert sum(v.bytes for v in held) == trace.peak
    assert [v.bytes for v in held] == sorted((v.bytes for v in held), reverse=True)


def test_a_value_computed_again_while_it_lives_exists_twice_for_a_moment():
    joint = JointGraph.build(
        [{"name": "make", "writes": [0]}, {"name": "use", "reads": [0], "writes": [1]}],
        [{"name": "x", "bytes": 8}, {"name": "y", "bytes": 1}],
        [1],
    )
    trace = simulate(Schedule(joint, np.array([0, 0, 1, ~0], dtype=np.int32)))
    assert trace.during.tolist() == [8, 16, 9, 1]


def test_missing_reads_name_the_step_the_op_the_value_and_who_freed_it():
    joint = chain(3).joint
    with pytest.raises(
        InvalidSchedule, match=r"step 2: 'n1' reads 'n0', which is not held: it was freed at step 1"
    ) as e:
        simulate(Schedule(joint, np.array([0, ~0, 1], dtype=np.int32)))
    assert (e.value.step, e.value.op, e.value.value, e.value.freed_at) == (2, "n1", "n0", 1)
    with pytest.raises(InvalidSchedule, match="has not been computed yet"):
        simulate(Schedule(joint, np.array([1], dtype=np.int32)))
    with pytest.raises(InvalidSchedule, match="free of 'n0'"):
        simulate(Schedule(joint, np.array([~0], dtype=np.int32)))


def test_a_partly_accumulated_gradient_cannot_be_read():
    graph = ComputationGraph.from_nodes([{"name": x, "memory": 1} for x in "abc"], [("a", "b"), ("a", "c")])
    joint = graph.joint
    order = [o for o in range(joint.n_ops) if joint.op_names[o] != "backward b"]
    with pytest.raises(InvalidSchedule, match="before every contribution"):
        simulate(Schedule.from_ops(joint, order))


def test_a_missing_output_is_named():
    graph = chain(2, parameter_bytes=4)
    joint = graph.joint
    with pytest.raises(InvalidSchedule, match=r"output .*n0's parameters.* is missing"):
        simulate(Schedule.from_ops(joint, range(joint.n_ops - 1)))


def test_schedules_refuse_what_is_no_op():
    joint = chain(2).joint
    with pytest.raises(InvalidSchedule, match="not an op"):
        Schedule.from_ops(joint, [0, 99])
    with pytest.raises(InvalidSchedule, match="names no op or value"):
        Schedule(joint, np.array([0, ~99], dtype=np.int32))
    with pytest.raises(InvalidSchedule, match="flat"):
        Schedule(joint, np.zeros((2, 2), dtype=np.int32))


def test_equal_schedules_are_equal_and_hash_alike():
    first, second = Schedule.vanilla(chain(4).joint), Schedule.vanilla(chain(4).joint)
    assert first == second and hash(first) == hash(second)
    assert first != Schedule.vanilla(chain(5).joint)
    assert first[0] == ("run", 0, "n0")
    assert len(list(first)) == len(first)


@given(valid_runs(), st.data())
def test_the_stepper_goes_both_ways(case, data):
    joint, order = case
    schedule = Schedule.from_ops(joint, order)
    step = Stepper(schedule)
    states = [{v.index for v in step.live}]
    while not step.done:
        step.next()
        states.append({v.index for v in step.live})
        assert step.bytes == sum(v.bytes for v in step.live)
    assert step.next() == step.explain() and step.position == len(schedule)
    for position in range(len(schedule) - 1, -1, -1):
        step.back()
        assert step.position == position
        assert {v.index for v in step.live} == states[position]
    there = data.draw(st.integers(0, len(schedule)))
    step.goto(there)
    assert {v.index for v in step.live} == states[there]
    with pytest.raises(ValueError, match="outside"):
        step.goto(len(schedule) + 1)


def test_explain_says_what_why_and_how_much():
    joint = chain(3).joint
    step = Stepper(
        Schedule.from_ops(joint, [0, 1, 2, 3, 4, 1, 5, 6] if joint.n_ops == 7 else range(joint.n_ops))
    )
    sentences = [step.explain()]
    while not step.done:
        sentences.append(step.next())
    assert sentences[0].startswith("Nothing has run yet")
    assert sentences[1] == "Step 0: compute n0, reading only parameters and inputs. Memory 0 B to 10 B."
    again = next(s for s in sentences if "compute again n1" in s)
    assert "Why now: n1 is read by" in again or "wasted" in again
    assert sum("This is the peak." in s for s in sentences) == 1


def test_a_peak_is_split_by_module_where_there_are_modules():
    graph = rl.ComputationGraph.from_nodes([{"name": n, "memory": 4} for n in "abc"], ["ab", "bc"])
    assert "module" not in str(rl.explain(graph))
    data = graph.joint.to_dict()
    for op in data["ops"]:
        op["module"] = "" if op["name"].startswith("a") else "block"
    text = str(rl.explain(rl.JointGraph.from_dict(data)))
    assert "By module: " in text and "block" in text
