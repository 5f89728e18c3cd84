"""suite(): the problems methods are compared on, under one name each, made when they are first asked for."""

from __future__ import annotations

import os
from collections.abc import Callable, Iterator, Mapping
from fnmatch import fnmatchcase
from functools import partial
from html import escape
from pathlib import Path
from typing import Any, NamedTuple

from ..chain import Chain
from . import generators
from .files import load_graph

#: Where the published graph files are, unless ``suite(data=...)`` says so.
DATA_VARIABLE = "REMAT_LAB_DATA"

_NETWORKS = ("vgg19", "resnet50", "resnet152", "densenet", "googlenet", "unet", "pspnet")
_JOINT = {
    "joint-vgg16": "VGG16_256_224x224x3_train",
    "joint-vgg19": "VGG19_256_224x224x3_train",
    "joint-fcn8": "fcn_8_vgg_32_416x608x3_train",
    "joint-unet": "vgg_unet_32_416x608x3_train",
    "joint-resnet50": "ResNet50_256_224x224x3_train",
    "joint-layered-100": "random_layered_n100_w0.27_nlv0.75_ed0.2_scd0.14",
    "joint-layered-250": "random_layered_n250_w0.43_nlv0.75_ed0.2_scd0.14",
    "joint-layered-1000": "random_layered_n1000_w0.31_nlv0.75_ed0.2_scd0.14",
}


class Entry(NamedTuple):
    """A problem of the suite before it is made."""

    kind: str
    about: str
    make: Callable[[], Any]


class Suite(Mapping[str, Any]):
    """Name -> problem. A problem is made when it is first asked for, and the same object after that.

    Attributes
    ----------
    missing : dict, name -> why it was left out
    """

    def __init__(self, entries: Mapping[str, Entry], missing: Mapping[str, str] | None = None):
        self.entries = dict(entries)
        self.missing = dict(missing or {})
        self._made: dict[str, Any] = {}

    def __getitem__(self, name: str) -> Any:
        if name not in self.entries:
            why = self.missing.get(name, f"there are {', '.join(self.entries)}")
            raise KeyError(f"no problem {name!r} in the suite: {why}")
        if name not in self._made:
            self._made[name] = self.entries[name].make()
        return self._made[name]

    def __contains__(self, name: object) -> bool:  # Mapping's own would make the problem
        return name in self.entries

    def __iter__(self) -> Iterator[str]:
        return iter(self.entries)

    def __len__(self) -> int:
        return len(self.entries)

    def _note(self) -> str:
        if not self.missing:
            return ""
        return f"Left out: {', '.join(self.missing)}; {next(iter(self.missing.values()))}."

    def __repr__(self) -> str:
        width = max(map(len, self.entries), default=0)
        lines = [f"{name:<{width}}  {e.kind:<11}  {e.about}" for name, e in self.entries.items()]
        return "\n".join([*lines, self._note()]).rstrip()

    def _repr_html_(self) -> str:
        rows = "".join(
            f"<tr><td>{escape(name)}</td><td>{escape(e.kind)}</td><td>{escape(e.about)}</td></tr>"
            for name, e in self.entries.items()
        )
        head = "<tr><th>problem</th><th>kind</th><th></th></tr>"
        return f"<table><thead>{head}</thead><tbody>{rows}</tbody></table><p>{escape(self._note())}</p>"


def suite(*patterns: str, data: str | os.PathLike[str] | None = None) -> Suite:
    """The problem suite, or the part of it whose names match a pattern.

    The seven networks of Kusumoto et al. and eight published joint graphs come from files; recurrent chains,
    random layered graphs, transformer blocks and a unit chain are made by formula. None of them needs torch.

    Parameters
    ----------
    *patterns : names, with ``*`` and ``?`` as in a shell, such as "joint-*"; default: everything
    data : folder with the graph files, ``kusumoto/`` and ``joint_graphs/`` in it; default: what the environment
        variable REMAT_LAB_DATA names, else ``../shared/data`` beside the repository. Without one, these
        problems are left out, and ``missing`` says so.

    Raises
    ------
    ValueError
        If ``data`` or REMAT_LAB_DATA names no such folder, or a pattern matches nothing.

    >>> suite("rnn-*")["rnn-64"]
    Chain('rnn-64', 64 equal steps, hidden state 131 kB, internal state 262 kB)
    """
    for pattern in patterns:
        if not isinstance(pattern, str):
            raise TypeError(f"patterns must be names or patterns such as 'rnn-*', got {pattern!r}")
    folder = _folder(data)
    entries, missing = dict(_by_formula()), {}
    for name, (kind, about, path) in _files().items():
        if folder is not None and (folder / path).exists():
            entries[name] = Entry(kind, about, partial(load_graph, folder / path))
        else:
            where = (
                f"{path} is not in {folder}" if folder is not None else f"no graph files: set {DATA_VARIABLE}"
            )
            missing[name] = where
    for pattern in patterns:
        if not any(fnmatchcase(name, pattern) for name in (*entries, *missing)):
            raise ValueError(f"no problem of the suite matches {pattern!r}; there are {', '.join(entries)}")
    if patterns:
        entries = {name: e for name, e in entries.items() if any(fnmatchcase(name, p) for p in patterns)}
        missing = {name: e for name, e in missing.items() if any(fnmatchcase(name, p) for p in patterns)}
    return Suite(entries, missing)


def _folder(data: str | os.PathLike[str] | None) -> Path | None:
    named = data if data is not None else os.environ.get(DATA_VARIABLE)
    if named:
        folder = Path(named)
        if not any((folder / part).is_dir() for part in ("kusumoto", "joint_graphs")):
            raise ValueError(
                f"{str(folder)!r} holds no graph files: it has neither kusumoto/ nor joint_graphs/"
            )
        return folder
    beside = Path(__file__).resolve().parents[2].parent / "shared" / "data"
    return beside if beside.is_dir() else None


def _files() -> dict[str, tuple[str, str, str]]:
    found = {}
    for name in _NETWORKS:
        found[name] = ("graph", "network, as published by Kusumoto et al.", f"kusumoto/cg_{name}.txt")
    for name, stem in _JOINT.items():
        found[name] = ("joint graph", stem, f"joint_graphs/{stem}.json")
    return found


def _by_formula() -> Iterator[tuple[str, Entry]]:
    yield (
        "unit-chain-8",
        Entry(
            "joint graph",
            "8 forward ops, unit costs: small enough for a proof",
            partial(generators.unit_chain, 8),
        ),
    )
    for steps in (64, 256, 1000):
        yield f"rnn-{steps}", Entry("chain", f"recurrent network, {steps} steps", partial(_rnn, steps))
    for steps in (64, 256):
        yield f"lstm-{steps}", Entry("chain", f"LSTM, {steps} steps", partial(_lstm, steps))
    for nodes in (12, 50, 200):
        yield (
            f"layered-{nodes}",
            Entry("graph", f"random layered, {nodes} nodes", partial(generators.random_layered, nodes)),
        )
    for layers in (2, 6, 12):
        yield (
            f"transformer-{layers}",
            Entry("graph", f"{layers} pre-norm transformer blocks", partial(generators.transformer, layers)),
        )


def _rnn(steps: int, batch: int = 64, units: int = 512) -> Chain:
    """h_t = tanh(W h_{t-1} + U x_t): the hidden state, and what it is before tanh."""
    row = 4 * batch * units
    time = 4.0 * batch * units * units
    return Chain(
        steps, hidden=row, internal=2 * row, time=time, parameter_gradient=8 * units * units, time_unit="flop",
        name=f"rnn-{steps}",
    )  # fmt: skip


def _lstm(steps: int, batch: int = 64, units: int = 512) -> Chain:
    """The state is h_t and c_t; the backward also reads four gates and tanh c_t."""
    row = 4 * batch * units
    time = 16.0 * batch * units * units
    return Chain(
        steps, hidden=2 * row, internal=7 * row, time=time, parameter_gradient=32 * units * units,
        time_unit="flop", name=f"lstm-{steps}",
    )  # fmt: skip
