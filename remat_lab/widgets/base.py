"""What all views share: the bundled script, a picture for where there is no widget, and an orderly end."""

from __future__ import annotations

import json
import weakref
from functools import cache
from importlib.resources import files
from typing import Any

import anywidget

from ..errors import ViewClosed
from ..palette import for_script

#: Scripts that several views need, in the order in which they build on one another.
PARTS = ("film", "theme", "timeline", "graph", "transport", "player")


@cache
def script(name: str) -> str:
    """The module of one view: the palette, the shared parts, and the view's own script, as text.

    Text, not a path: a path is watched for changes and thereby keeps every closed widget alive.
    """
    here = files(__package__)
    palette = f"const PALETTE = {json.dumps(for_script())};\n"
    return palette + "\n".join(here.joinpath(f"{part}.js").read_text("utf-8") for part in (*PARTS, name))


@cache
def style(name: str) -> str:
    """The style sheet of one view, shared rules first."""
    here = files(__package__)
    return "\n".join(here.joinpath(f"{part}.css").read_text("utf-8") for part in ("base", name))


_VIEW_TYPE = "application/vnd.jupyter.widget-view+json"

#: Views with a comm: those that an output shows.
_open: weakref.WeakSet[View] = weakref.WeakSet()


class View(anywidget.AnyWidget):
    """A view in a notebook.

    Shown live it is a widget; in a saved notebook, an exported page or where no kernel runs it is the same
    player from the output's own HTML; where scripts do not run, a picture and two sentences.

    Its comm is opened when it is first shown, and closed when every cell that showed it has run again without
    showing it. A view that a variable still holds then goes on working, and opens anew where it is next shown.
    :meth:`close` ends a view for good.
    """

    #: The name of the script and the style sheet.
    _part = ""
    #: What a view holds besides its traits; dropped by close().
    _holds: tuple[str, ...] = ()
    _made = _closed = False

    def __init__(self, **traits: Any) -> None:
        #: Cell -> the execution that showed this view there; None stands for what is no cell.
        self._places: dict[str | None, str] = {}
        super().__init__(**traits)
        self._made = True

    def __getattr__(self, name: str) -> Any:
        if self._closed and not name.startswith("_") and (name in self._holds or hasattr(type(self), name)):
            raise ViewClosed(f"this {self._part} view was closed, and its {name} with it: make another")
        raise AttributeError(f"{type(self).__name__!r} object has no attribute {name!r}")

    # -- on and off the page ---------------------------------------------------------------------------------
    def open(self) -> None:
        """Open the comm. Showing a view does it; a view that nobody looks at needs none."""
        if not self._made or self._closed:  # ipywidgets calls this from its constructor
            return
        if self.layout.comm is None:
            self.layout.open()
        super().open()
        _open.add(self)

    @property
    def model_id(self) -> str | None:
        """The id of the comm, which is opened for it."""
        self._show()
        return None if self.comm is None else str(self.comm.comm_id)

    def _show(self) -> None:
        """Open the comm if there is none, and remember the cell that runs."""
        if self.comm is None:
            self.open()
        if self._closed:
            return
        cell, execution = _running_cell() or (None, "")
        if cell is not None:
            _after_every_cell(_leave_stale)
        self._places[cell] = execution

    def _leave(self) -> None:
        """Go off the page: close the comm and let the notebook's history forget the view."""
        if self.comm is None:  # ipywidgets closes once more when it collects a widget
            return
        model_id = self.comm.comm_id
        super().close()
        self.__dict__.pop("_repr_mimebundle_", None)  # ipywidgets hides it for good
        self._model_id = None
        self._places.clear()
        _open.discard(self)
        if self.layout is not None:  # a widget of its own, which ipywidgets leaves open
            self.layout.close()
        _forget(self, model_id)

    def close(self) -> None:
        """End the view for good: its comms are closed, and what it showed is let go."""
        self._leave()
        if self._closed:
            return
        self._closed = True
        self.unobserve_all()
        for name, value in self.state().items():
            if isinstance(value, (bytes, list, dict)):
                self.set_trait(name, type(value)())
        for name in self._holds:
            self.__dict__.pop(name, None)

    # -- what stands in for the widget -----------------------------------------------------------------------
    def summary(self) -> str:
        """The view in words."""
        raise NotImplementedError

    def svg(self) -> str:
        """The view as a still picture, SVG."""
        raise NotImplementedError

    def state(self) -> dict[str, Any]:
        """The view's own synced traits, by name: what an exported page starts from."""
        mine = self.traits(sync=True)
        return {
            name: getattr(self, name)
            for name in mine
            if not name.startswith("_") and name not in anywidget.AnyWidget.class_trait_names()
        }

    def to_html(self) -> str:
        """A self-contained page: script, state, and nothing fetched."""
        from .page import page

        return page(self)

    def __repr__(self) -> str:
        return f"<{type(self).__name__}: {'closed' if self._closed else self.summary()}>"

    def _repr_mimebundle_(self, **kwargs: Any) -> tuple[dict[str, Any], dict[str, Any]] | None:
        from .page import fragment

        if self._closed:
            return {"text/plain": f"This {self._part} view was closed."}, {}
        bundle = super()._repr_mimebundle_(**kwargs)
        if bundle is None:
            return None
        data, metadata = bundle
        return {**data, "text/html": fragment(self), "image/svg+xml": self.svg()}, metadata


class Gone:
    """What a notebook's history keeps in the place of a view whose cell has run again."""

    def __init__(self, view: View):
        self.part = view._part

    def __repr__(self) -> str:
        return f"A {self.part} view was here, until its cell ran again or it was closed."


# -- the notebook ------------------------------------------------------------------------------------------------
def _shell() -> Any:
    """The notebook's IPython, None where there is none."""
    try:
        from IPython import get_ipython
    except ImportError:
        return None
    return get_ipython()


def _running_cell() -> tuple[str, str] | None:
    """(cell, execution) if a notebook cell is running that says which it is."""
    try:
        parent = _shell().get_parent()
        return str(parent["metadata"]["cellId"]), str(parent["header"]["msg_id"])
    except (AttributeError, KeyError, TypeError):
        return None


def _after_every_cell(function: Any) -> None:
    shell = _shell()
    if shell is not None:
        shell.events.register("post_run_cell", function)  # once, however often it is asked for


def _leave_stale(*_: Any) -> None:
    """After a cell has run: the views that only its last run showed leave the page."""
    running = _running_cell()
    if running is None:
        return
    cell, execution = running
    for view in list(_open):
        if view._places.get(cell, execution) == execution:
            continue
        del view._places[cell]
        if not view._places:
            view._leave()


def _forget(view: View, model_id: str) -> None:
    """Let go of a view and its HTML: IPython keeps every output of a session, under four names and more."""
    shell = _shell()
    if shell is None:
        return
    gone = Gone(view)
    for names in (shell.user_ns, shell.user_ns_hidden):
        for name in [n for n, value in names.items() if value is view and _numbered(n)]:
            names[name] = gone
    for name in ("_", "__", "___"):
        if getattr(shell.displayhook, name, None) is view:
            setattr(shell.displayhook, name, gone)
    history = shell.history_manager
    for number in [n for n, value in history.output_hist.items() if value is view]:
        history.output_hist[number] = gone
    last = shell.last_execution_result
    if last is not None and last.result is view:
        last.result = gone
    for output in (output for outputs in getattr(history, "outputs", {}).values() for output in outputs):
        bundle = getattr(output, "bundle", None)
        if isinstance(bundle, dict) and bundle.get(_VIEW_TYPE, {}).get("model_id") == model_id:
            bundle.pop("text/html", None)
            bundle.pop("image/svg+xml", None)


def _numbered(name: str) -> bool:
    """Whether IPython gave the name: _, __, ___, _12."""
    return name in ("_", "__", "___") or (name[:1] == "_" and name[1:].isdigit())
