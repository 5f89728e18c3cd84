"""The colours of every picture: on screen, on paper, light and dark.

The hues are those of Okabe and Ito (2008), chosen to stay apart under the common kinds of colour blindness;
the dark ones are lightened until they hold at least 3:1 against a dark background. Where two things must not
be confused (kept and recomputed, dropped and not yet run) a shape says it as well.
"""

from __future__ import annotations

from .simulate import TRACE_CATEGORIES

#: Category of a trace -> (on light, on dark). The order is the order in which areas are stacked.
CATEGORY_COLOURS = {
    "activation": ("#0072B2", "#4AA8E0"),
    "gradient": ("#009E73", "#2CC69B"),
    "parameter gradient": ("#B5558B", "#DE93BE"),
    "buffer": ("#7A7A7A", "#A8A8A8"),
    "output": ("#4B4FA6", "#9EA2F2"),
    "workspace": ("#C9A800", "#F0E442"),
}
assert tuple(CATEGORY_COLOURS) == TRACE_CATEGORIES

#: State of an op -> (on light, on dark).
STATE_COLOURS = {
    "waiting": ("#C9CED6", "#4A505A"),
    "kept": ("#0072B2", "#4AA8E0"),
    "dropped": ("#8A929E", "#7F8896"),
    "recomputed": ("#D55E00", "#FF8A3D"),
    "gradient": ("#009E73", "#2CC69B"),
    "done": ("#A9D9CA", "#2A5E50"),
}

#: Lines of several traces on one axis, told apart by dashes as well.
SERIES_COLOURS = ("#0072B2", "#D55E00", "#009E73", "#B5558B", "#7A7A7A", "#C9A800")
SERIES_DASHES = ("solid", (0, (5, 1.5)), (0, (1.5, 1.2)), (0, (6, 1.5, 1.5, 1.5)), "solid", (0, (5, 1.5)))


def for_script() -> dict[str, dict[str, list[str]]]:
    """The palette as the scripts in the browser read it: light and dark, each a list in the order above."""
    return {
        theme: {
            "categories": [pair[i] for pair in CATEGORY_COLOURS.values()],
            "states": [pair[i] for pair in STATE_COLOURS.values()],
        }
        for i, theme in enumerate(("light", "dark"))
    }


def dark_figures(scope: str) -> str:
    """A style sheet that turns white figures dark in Jupyter's dark theme: light for dark, the hues as they were.

    The figures themselves stay as they are on paper, in files and in saved notebooks. ``scope`` is the selector
    of what they stand in.
    """
    return (
        f"[data-jp-theme-light='false'] {scope} .jp-RenderedImage img"
        "{filter:invert(.93) hue-rotate(180deg)}"
    )
