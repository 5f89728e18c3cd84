"""The text format of the computation graphs published with Kusumoto et al. (arXiv 1905.11722).

The graphs were captured from Chainer: *variables*, and the forward and backward *functions* between them. A file reads

    variables functions             how many of each
    id bytes name                   one line per variable; "_" if it has no name
    forward                         then each function: "forward" or "backward"
    inputs outputs                  how many of each
    id kind                         one line per input; kind is "_" in a forward function, and "gradient",
                                    "input" or "output" in a backward one
    id                              one line per output; a backward function's are the variables whose
                                    gradients it computes
    type                            "Convolution2DFunction", "ReLU", ...
    {...}                           a line of attributes, which planning does not need

A variable that no forward function outputs is a parameter (its name is a path, "/predictor/conv1/W"), data
or labels (numbered): resident, and not planned.
"""

from __future__ import annotations

from collections import Counter
from dataclasses import dataclass
from typing import Any

from ..errors import InvalidGraph
from ..graph import ComputationGraph, project
from ..joint import JointGraph

_KINDS = {"forward": ("_",), "backward": ("gradient", "input", "output")}


@dataclass(frozen=True)
class _Variable:
    bytes: int
    name: str

    @property
    def is_parameter(self) -> bool:
        return self.name.startswith("/")


@dataclass(frozen=True)
class _Function:
    """``inputs`` are (variable, kind), ``line`` is where the function starts in the file."""

    kind: str
    inputs: tuple[tuple[int, str], ...]
    outputs: tuple[int, ...]
    type: str
    line: int

    def reads(self, *kinds: str) -> list[int]:
        """Its input variables of these kinds, each once, in order."""
        return list(dict.fromkeys(variable for variable, kind in self.inputs if kind in kinds))

    @property
    def time(self) -> int:
        """The paper's rule: a convolution costs 10, everything else 1."""
        return 10 if self.type.startswith("Conv") else 1


def parse_chainer_graph(text: str, *, name: str = "") -> ComputationGraph:
    """A ComputationGraph from the text of such a file.

    Nodes are the variables that a forward function produces, named after the function's parameters
    ("conv3_2") or else after its type and the variable's number in the file ("ReLU 15").

    The joint graph follows the file's backward functions: each reads the gradients and the forward inputs
    and outputs that the file lists for it, adds to the gradients of its forward inputs and writes those of
    its parameters. Gradients of data and labels are left out, since nothing reads them. The file's order of
    functions is arbitrary; here forward functions run branch by branch, backward functions in reverse.

    A forward function with several outputs is one node (running it makes them all), with the
    sum of their bytes.

    Raises
    ------
    InvalidGraph
        On text that is not in this format (the message names the line), or a cyclic graph.
    """
    variables, functions = _parse(text)
    forward = _in_running_order([f for f in functions if f.kind == "forward"])
    backward = _backward_of(forward, [f for f in functions if f.kind == "backward"])
    resident = set(variables) - {x for f in forward for x in f.outputs}
    names = _names(forward, variables, resident)
    if _follows_the_paper(forward, backward, variables, resident):
        return _plain_graph(variables, forward, backward, resident, names, name)
    return project(_joint_graph(variables, forward, backward, resident, names, name), names=names)


# -- reading the lines -------------------------------------------------------------------------------------------
class _Lines:
    """The file's lines, one after the other, with errors that name the line."""

    def __init__(self, text: str):
        self.lines = text.splitlines()
        self.number = 0

    def next(self, what: str) -> str:
        if self.number >= len(self.lines):
            raise InvalidGraph(f"line {self.number + 1}: the file ends where {what} should be")
        self.number += 1
        return self.lines[self.number - 1].strip()

    def wrong(self, message: str) -> InvalidGraph:
        return InvalidGraph(f"line {self.number}: {message}")

    def integers(self, what: str, count: int) -> list[int]:
        fields = self.next(what).split()
        if len(fields) != count or not all(field.isdecimal() for field in fields):
            raise self.wrong(f"expected {what}, got {' '.join(fields)!r}")
        return [int(field) for field in fields]


def _parse(text: str) -> tuple[dict[int, _Variable], list[_Function]]:
    lines = _Lines(text)
    variable_count, function_count = lines.integers("the numbers of variables and functions", 2)
    variables: dict[int, _Variable] = {}
    for _ in range(variable_count):
        fields = lines.next("a variable (id, bytes, name)").split(maxsplit=2)
        if len(fields) < 2 or not (fields[0].isdecimal() and fields[1].isdecimal()):
            raise lines.wrong(f"expected a variable (id, bytes, name), got {' '.join(fields)!r}")
        number = int(fields[0])
        if number in variables:
            raise lines.wrong(f"variable {number} is given twice")
        variables[number] = _Variable(int(fields[1]), fields[2] if len(fields) > 2 else "_")
    functions = [_parse_function(lines, variables) for _ in range(function_count)]
    while lines.number < len(lines.lines):
        if extra := lines.next(""):
            raise lines.wrong(f"expected the end of the file after {function_count} functions, got {extra!r}")
    return variables, functions


def _parse_function(lines: _Lines, variables: dict[int, _Variable]) -> _Function:
    kind = lines.next("a function")
    start = lines.number
    if kind not in _KINDS:
        raise lines.wrong(f"expected 'forward' or 'backward', got {kind!r}")
    input_count, output_count = lines.integers("the numbers of inputs and outputs", 2)
    inputs = []
    for _ in range(input_count):
        fields = lines.next("an input (id, kind)").split()
        if len(fields) != 2 or not fields[0].isdecimal() or fields[1] not in _KINDS[kind]:
            raise lines.wrong(
                f"expected an input of a {kind} function (id, then {' or '.join(_KINDS[kind])}), "
                f"got {' '.join(fields)!r}"
            )
        inputs.append((_known(lines, variables, int(fields[0])), fields[1]))
    outputs = []
    for _ in range(output_count):
        (number,) = lines.integers("an output (id)", 1)
        outputs.append(_known(lines, variables, number))
    type_name = lines.next("the function's type")
    if not type_name or type_name in _KINDS:
        raise lines.wrong(f"expected the function's type, got {type_name!r}")
    attributes = lines.next("the function's attributes")
    if not attributes.startswith("{"):
        raise lines.wrong(f"expected the function's attributes, got {attributes!r}")
    return _Function(kind, tuple(inputs), tuple(outputs), type_name, start)


def _known(lines: _Lines, variables: dict[int, _Variable], number: int) -> int:
    if number not in variables:
        raise lines.wrong(f"{number} is not one of the file's variables")
    return number


# -- which function is whose ---------------------------------------------------------------------------------------
def _producers(forward: list[_Function]) -> dict[int, int]:
    """variable -> index of the forward function that outputs it."""
    producer: dict[int, int] = {}
    for i, function in enumerate(forward):
        if not function.outputs:
            raise InvalidGraph(f"line {function.line}: a forward function with no output")
        for variable in function.outputs:
            if variable in producer:
                first = forward[producer[variable]].line
                raise InvalidGraph(
                    f"line {function.line}: variable {variable} is already an output of the function at line {first}"
                )
            producer[variable] = i
    return producer


def _in_running_order(forward: list[_Function]) -> list[_Function]:
    """A topological order that finishes a branch before it starts the next, as a network's code does."""
    if not forward:
        raise InvalidGraph("the file has no forward function")
    producer = _producers(forward)
    sources = [{producer[x] for x in f.reads("_") if x in producer} for f in forward]
    consumers: list[list[int]] = [[] for _ in forward]
    for i, needed in enumerate(sources):
        for source in needed:
            consumers[source].append(i)
    waiting = [len(needed) for needed in sources]
    ready = [i for i, count in reversed(list(enumerate(waiting))) if count == 0]
    order = []
    while ready:
        i = ready.pop()
        order.append(i)
        for consumer in reversed(consumers[i]):
            waiting[consumer] -= 1
            if waiting[consumer] == 0:
                ready.append(consumer)
    if len(order) < len(forward):
        stuck = next(i for i, count in enumerate(waiting) if count)
        raise InvalidGraph(
            f"line {forward[stuck].line}: the forward functions form a cycle through this {forward[stuck].type}"
        )
    return [forward[i] for i in order]


def _backward_of(forward: list[_Function], backward: list[_Function]) -> list[_Function | None]:
    """The backward function of each forward function, if it has one."""
    producer = _producers(forward)
    matched: list[_Function | None] = [None] * len(forward)
    for function in backward:
        owners = {producer.get(variable) for variable in function.reads("gradient")}
        owner = owners.pop() if len(owners) == 1 else None
        if owner is None:
            raise InvalidGraph(
                f"line {function.line}: a backward function reads the gradients of one forward function's outputs; "
                f"this {function.type} reads those of {function.reads('gradient')}"
            )
        theirs = forward[owner]
        wrong = (
            [x for x in function.reads("input") if x not in theirs.reads("_")]
            + [x for x in function.reads("output") if x not in theirs.outputs]
            + [x for x in function.outputs if x not in theirs.reads("_")]
        )
        if wrong:
            raise InvalidGraph(
                f"line {function.line}: variable {wrong[0]} belongs to neither side of the forward "
                f"{theirs.type} at line {theirs.line}, whose backward function this is"
            )
        if matched[owner] is not None:
            raise InvalidGraph(
                f"line {function.line}: a second backward function of the {theirs.type} at line {theirs.line}"
            )
        matched[owner] = function
    return matched


def _names(forward: list[_Function], variables: dict[int, _Variable], resident: set[int]) -> list[str]:
    names = []
    for function in forward:
        paths = [
            variables[x].name for x in function.reads("_") if x in resident and variables[x].is_parameter
        ]
        path = paths[0].rpartition("/")[0].removeprefix("/predictor").strip("/") if paths else ""
        names.append(path or f"{function.type} {function.outputs[0]}")
    # A layer used twice gives its name to two nodes: tell them apart by the variable.
    count = Counter(names)
    return [x if count[x] == 1 else f"{x} {f.outputs[0]}" for x, f in zip(names, forward)]


# -- the graph -------------------------------------------------------------------------------------------------------
def _follows_the_paper(
    forward: list[_Function],
    backward: list[_Function | None],
    variables: dict[int, _Variable],
    resident: set[int],
) -> bool:
    """Whether the joint graph that a plain ComputationGraph makes of itself is exactly the file's.

    So it is if every function has one output and one backward function, which computes the gradients of all
    its planned inputs, and if no parameter's gradient is added up from several functions.
    """
    writers = Counter(x for f in backward if f is not None for x in f.outputs if variables[x].is_parameter)
    return max(writers.values(), default=0) <= 1 and all(
        len(f.outputs) == 1 and b is not None and set(f.reads("_")) - resident <= set(b.outputs)
        for f, b in zip(forward, backward)
    )


def _plain_graph(
    variables: dict[int, _Variable],
    forward: list[_Function],
    backward: list[_Function | None],
    resident: set[int],
    names: list[str],
    name: str,
) -> ComputationGraph:
    name_of = {f.outputs[0]: label for f, label in zip(forward, names)}
    nodes: list[dict[str, Any]] = []
    for function, gradient, label in zip(forward, backward, names):
        assert gradient is not None
        nodes.append(
            {
                "name": label,
                "op": function.type,
                "time": function.time,
                "memory": variables[function.outputs[0]].bytes,
                "parameter_bytes": sum(
                    variables[x].bytes
                    for x in set(gradient.outputs)
                    if x in resident and variables[x].is_parameter
                ),
                "needs": [name_of[x] for x in gradient.reads("input", "output") if x not in resident],
            }
        )
    edges = [(name_of[x], name_of[f.outputs[0]]) for f in forward for x in f.reads("_") if x in name_of]
    baseline = sum(variables[x].bytes for x in resident)
    return ComputationGraph.from_nodes(nodes, edges, baseline=baseline, name=name)


def _joint_graph(
    variables: dict[int, _Variable],
    forward: list[_Function],
    backward: list[_Function | None],
    resident: set[int],
    names: list[str],
    name: str,
) -> JointGraph:
    """The general case. As in ComputationGraph, a backward function takes twice its forward's time."""
    values: list[dict[str, Any]] = []
    value_of: dict[tuple[str, int], int] = {}

    def value(role: str, variable: int) -> int:
        key = (role, variable)
        if key not in value_of:
            value_of[key] = len(values)
            values.append(
                {
                    "name": label_of[variable] if role == "value" else f"grad {label_of[variable]}",
                    "bytes": variables[variable].bytes,
                    "category": category(role, variable),
                }
            )
        return value_of[key]

    def category(role: str, variable: int) -> str:
        if role == "gradient":
            return "parameter gradient" if variable in resident else "gradient"
        if variable not in resident:
            return "activation"
        return "parameter" if variables[variable].is_parameter else "input"

    label_of = {x: variable.name for x, variable in variables.items()}
    for function, label in zip(forward, names):
        several = len(function.outputs) > 1
        label_of.update({x: f"{label}[{i}]" if several else label for i, x in enumerate(function.outputs)})
    ops: list[dict[str, Any]] = [
        {
            "name": label,
            "type": function.type,
            "time": function.time,
            "reads": [value("value", x) for x in function.reads("_")],
            "writes": [value("value", x) for x in function.outputs],
        }
        for function, label in zip(forward, names)
    ]
    gradients = [(f, b, label) for f, b, label in zip(forward, backward, names) if b is not None]
    computed = {x for _, b, _ in gradients for x in b.outputs}
    for _, b, _ in gradients:
        for x in b.reads("gradient"):
            if x not in computed:
                ops.append(
                    {
                        "name": f"seed {label_of[x]}",
                        "type": "seed",
                        "backward": True,
                        "writes": [value("gradient", x)],
                    }
                )
    outputs = []
    for function, gradient, label in reversed(gradients):
        wanted = [x for x in gradient.outputs if x not in resident or variables[x].is_parameter]
        ops.append(
            {
                "name": f"backward {label}",
                "type": f"{function.type} backward",
                "time": 2 * function.time,
                "backward": True,
                "reads": [value("gradient", x) for x in gradient.reads("gradient")]
                + [value("value", x) for x in gradient.reads("input", "output")],
                "writes": [value("gradient", x) for x in wanted],
            }
        )
        outputs += [value("gradient", x) for x in wanted if x in resident]
    return JointGraph.build(ops, values, outputs, name=name)
