"""For nbconvert: keep the players of a notebook that was saved with its widgets' state.

``jupyter nbconvert --to html`` keeps the players by itself when the notebook carries no widget state: each output
holds a player of its own. Where a notebook was saved with widget state (JupyterLab's ``saveState``, or executed
by nbconvert), nbconvert prefers that state and a widget manager that the reader's browser must fetch. This
preprocessor takes the embedded player instead::

    jupyter nbconvert --to html --HTMLExporter.preprocessors=remat_lab.widgets.export.KeepPlayers lesson.ipynb
"""

from __future__ import annotations

from typing import Any

from nbconvert.preprocessors import Preprocessor

_WIDGET = "application/vnd.jupyter.widget-view+json"


class KeepPlayers(Preprocessor):
    """Drop the widget reference of every output that also carries a player as HTML."""

    enabled = True

    def preprocess_cell(self, cell: Any, resources: Any, index: int) -> tuple[Any, Any]:
        for output in cell.get("outputs", ()):
            data = output.get("data", {})
            if _WIDGET in data and 'class="rl-embedded"' in data.get("text/html", ""):
                del data[_WIDGET]
        return cell, resources
