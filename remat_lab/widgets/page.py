"""Self-contained HTML: a view as a page, or as a piece of one, that needs no kernel and fetches nothing."""

from __future__ import annotations

import base64
import json
import zlib
from functools import cache
from html import escape
from pathlib import Path
from typing import TYPE_CHECKING, Any
from uuid import uuid4

from .base import View, script, style

if TYPE_CHECKING:
    from ..plan import Plan
    from ..schedule import Schedule
    from ..simulate import Trace

#: A notebook output larger than this keeps the still picture instead of a second, embedded player.
LARGEST_FRAGMENT = 3_000_000

#: Ties a view's module to the state beside it: a model with values and listeners, but no kernel.
_START = """
(async () => {
  const place = document.getElementById("%(id)s");
  const inflate = async (text) => {
    const packed = Uint8Array.from(atob(text), (c) => c.charCodeAt(0));
    const stream = new Blob([packed]).stream().pipeThrough(new DecompressionStream("deflate"));
    return new DataView(await new Response(stream).arrayBuffer());
  };
  const values = JSON.parse(document.getElementById("%(id)s-state").textContent);
  const decode = (value) => {
    if (Array.isArray(value)) return Promise.all(value.map(decode));
    return value?.$bytes === undefined ? value : inflate(value.$bytes);
  };
  for (const name of Object.keys(values)) values[name] = await decode(values[name]);
  const listeners = {};
  const model = {
    standalone: true,
    get: (name) => values[name],
    set(name, value) { values[name] = value; for (const fn of listeners[`change:${name}`] ?? []) fn(); },
    save_changes() {},
    send() {},
    on(event, fn) { (listeners[event] ??= []).push(fn); },
    off(event, fn) { listeners[event] = (listeners[event] ?? []).filter((other) => other !== fn); },
  };
  place.replaceChildren();
  %(widget)s.render({ model, el: place });
})();
"""

#: How a notebook's output gets at its module: packed to a third, since every output carries one.
_PACKED = """(await (async () => {
    const code = new Blob([await inflate("%s")], { type: "text/javascript" });
    const url = URL.createObjectURL(code);
    try { return (await import(url)).default; } finally { URL.revokeObjectURL(url); }
  })())"""

_PAGE_STYLE = """
:root { color-scheme: light dark; }
body { margin: 0; padding: 20px; background: #ffffff; }
main { max-width: 1280px; margin: 0 auto; }
@media (prefers-color-scheme: dark) {
  body {
    background: #111417;
    --jp-layout-color0: #111417; --jp-layout-color1: #1b1f24; --jp-layout-color2: #262b31;
    --jp-content-font-color1: #e6e9ed; --jp-content-font-color2: #a9b1bb; --jp-border-color2: #363c44;
  }
}
"""


def fragment(view: View, *, packed: bool = True) -> str:
    """The view as HTML that can stand in a larger page.

    Where scripts are not allowed the picture and the summary stay; where they are, the player replaces them.
    """
    place = f"rl-{uuid4().hex[:12]}"
    picture = base64.b64encode(view.svg().encode()).decode()
    still = (
        f'<figure style="margin:0"><img alt="{escape(view.summary())}" style="max-width:100%" '
        f'src="data:image/svg+xml;base64,{picture}"><figcaption>{escape(view.summary())}</figcaption></figure>'
    )
    state = json.dumps({name: _encode(value) for name, value in view.state().items()})
    module = "" if packed else _inside_script(script(view._part))
    start = _START % {"id": place, "widget": _packed_script(view._part) if packed else "widget"}
    live = (
        f"<style>{style(view._part)}</style>"
        f'<script type="application/json" id="{place}-state">{_inside_script(state)}</script>'
        f'<script type="module">{module}{start}</script>'
    )
    if len(live) > LARGEST_FRAGMENT and packed:
        live = ""
    return f'<div id="{place}" class="rl-embedded">{still}</div>{live}'


@cache
def _packed_script(part: str) -> str:
    return _PACKED % base64.b64encode(zlib.compress(script(part).encode(), 9)).decode()


def page(view: View) -> str:
    """The view as a whole page."""
    title = escape(view.summary().partition(":")[0])
    return (
        '<!doctype html>\n<html lang="en">\n<head><meta charset="utf-8">'
        '<meta name="viewport" content="width=device-width, initial-scale=1">'
        f"<title>{title}</title><style>{_PAGE_STYLE}</style></head>\n"
        f"<body><main>{fragment(view, packed=False)}</main></body>\n</html>\n"
    )


def save_html(shown: View | Trace | Plan | Schedule | list[Any] | dict[str, Any], path: str | Path) -> Path:
    """Write a self-contained page that plays: for a blog, a slide, a colleague without Python.

    Parameters
    ----------
    shown : Trace, Plan or Schedule, played; a list or dict of them, raced; or any view
    path : where to write; the page fetches nothing and opens from a file

    Returns
    -------
    Path

    Raises
    ------
    TypeError
        If ``shown`` is none of these.
    """
    own = not isinstance(shown, View)
    if isinstance(shown, View):
        view: View = shown
    elif isinstance(shown, (list, tuple, dict)):
        from .race import race

        view = race(shown)
    else:
        from .play import play

        view = play(shown)
    path = Path(path)
    path.write_text(page(view), encoding="utf-8")
    if own:
        view.close()
    return path


def _encode(value: Any) -> Any:
    if isinstance(value, bytes):
        return {"$bytes": base64.b64encode(zlib.compress(value, 9)).decode()}
    if isinstance(value, (list, tuple)):
        return [_encode(item) for item in value]
    return value


def _inside_script(text: str) -> str:
    """Text that cannot end the script element it stands in."""
    return text.replace("</", "<\\/")
