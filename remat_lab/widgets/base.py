"""What all views share: the bundled script, a picture for where there is no widget, and an orderly end."""

from __future__ import annotations

import json
import weakref
from functools import cache
from importlib.resources import files
from typing import Any

import anywidget
import traitlets

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

#: Cell -> (execution, views made by it). Running a cell again closes the views its last run made.
_made: dict[str, tuple[str, weakref.WeakSet[View]]] = {}


class View(anywidget.AnyWidget):
    """A view in a notebook.

    Shown live it is a widget; in a saved notebook, an exported page or where no kernel runs it is the same
    player from the output's own HTML; where scripts do not run, a picture and two sentences.
    """

    #: The name of the script and the style sheet.
    _part = ""

    def __init__(self, **traits: Any) -> None:
        super().__init__(**traits)
        cell = _running_cell()
        if cell is not None:
            name, execution = cell
            last, views = _made.get(name, (execution, weakref.WeakSet()))
            if last != execution:
                for view in list(views):
                    view.close()
                views = weakref.WeakSet()
            views.add(self)
            _made[name] = (execution, views)

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
        return f"<{type(self).__name__}: {self.summary()}>"

    def _repr_mimebundle_(self, **kwargs: Any) -> tuple[dict[str, Any], dict[str, Any]] | None:
        from .page import fragment

        bundle = super()._repr_mimebundle_(**kwargs)
        if bundle is None:
            return None
        data, metadata = bundle
        return {**data, "text/html": fragment(self), "image/svg+xml": self.svg()}, metadata

    def close(self) -> None:
        """End the view: its comms are closed and the bytes it sent are let go."""
        if self.comm is None:  # already closed; ipywidgets closes once more when it collects a widget
            return
        layout, model_id = self.layout, self.model_id
        super().close()
        if layout is not None:  # a widget of its own, which ipywidgets leaves open
            layout.close()
        _forget_output(model_id)
        for name, trait in self.traits(sync=True).items():
            if isinstance(trait, traitlets.Bytes):
                self.set_trait(name, b"")


def _running_cell() -> tuple[str, str] | None:
    """(cell, execution) if a notebook cell is running that says which it is."""
    try:
        from IPython import get_ipython

        parent = get_ipython().get_parent()
        return str(parent["metadata"]["cellId"]), str(parent["header"]["msg_id"])
    except (ImportError, AttributeError, KeyError, TypeError):
        return None


def _forget_output(model_id: str | None) -> None:
    """Let go of a closed view's HTML: IPython keeps every output of a session, and with it the player."""
    try:
        from IPython import get_ipython

        records = list(get_ipython().history_manager.outputs.values())
    except (ImportError, AttributeError):
        return
    for bundle in (getattr(output, "bundle", {}) for outputs in records for output in outputs):
        if isinstance(bundle, dict) and bundle.get(_VIEW_TYPE, {}).get("model_id") == model_id:
            bundle.pop("text/html", None)
            bundle.pop("image/svg+xml", None)
