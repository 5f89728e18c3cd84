"""Markdown and executed notebooks to HTML that fetches nothing: formulas as MathML, code coloured by classes."""

from __future__ import annotations

import re
from functools import cache
from html import escape

from latex2mathml.converter import convert
from markdown_it import MarkdownIt
from mdit_py_plugins.anchors import anchors_plugin
from mdit_py_plugins.dollarmath import dollarmath_plugin
from nbformat import NotebookNode
from pygments import highlight
from pygments.formatters import HtmlFormatter
from pygments.lexers import get_lexer_by_name
from pygments.util import ClassNotFound

#: What a widget's output carries; such an output's own HTML is the same player without a kernel.
WIDGET = "application/vnd.jupyter.widget-view+json"


def coloured(code: str, language: str, _attributes: str = "") -> str:
    """Code as HTML with Pygments' classes; unknown languages as plain text."""
    try:
        lexer = get_lexer_by_name(language or "text")
    except ClassNotFound:
        lexer = get_lexer_by_name("text")
    return f'<pre class="code">{highlight(code, lexer, HtmlFormatter(nowrap=True))}</pre>\n'


def formula(latex: str, options: dict) -> str:
    mathml = convert(latex, display="block" if options.get("display_mode") else "inline")
    return mathml.replace("<mi>&#x029F5;</mi>", "<mo>\\</mo>")  # few fonts have a set minus of its own


@cache
def _parser() -> MarkdownIt:
    parser = MarkdownIt("commonmark", {"html": True}).enable(["table", "strikethrough"])
    parser.use(dollarmath_plugin, renderer=formula, double_inline=True, allow_digits=False)
    parser.use(anchors_plugin, max_level=3, slug_func=slug)
    parser.add_render_rule(
        "fence", lambda self, tokens, i, options, env: coloured(tokens[i].content, tokens[i].info)
    )
    return parser


def slug(title: str) -> str:
    return re.sub(r"[^\w]+", "-", title.lower()).strip("-")


def markdown(text: str, links: dict[str, str] | None = None) -> str:
    """Markdown as HTML. ``links`` maps targets as written to targets on the site."""
    html = _parser().render(text)
    for written, target in (links or {}).items():
        html = re.sub(rf'((?:href|src)=")(?:\./)?{re.escape(written)}(?=["#])', rf"\g<1>{target}", html)
    return re.sub(r"(<table>.*?</table>)", r'<div class="wide">\1</div>', html, flags=re.DOTALL)


def heading(text: str) -> str:
    """The first heading of a Markdown text, as plain words."""
    found = re.search(r"^# +(.+)$", text, flags=re.MULTILINE)
    return re.sub(r"[`*]", "", found[1]) if found else ""


def notebook(node: NotebookNode, links: dict[str, str] | None = None) -> str:
    """An executed notebook as the inside of a page."""
    return "\n".join(_cell(cell, links) for cell in node.cells)


def _cell(cell: NotebookNode, links: dict[str, str] | None) -> str:
    if cell.cell_type == "markdown":
        return markdown(cell.source, links)
    if cell.cell_type != "code":
        return ""
    tags = cell.metadata.get("tags", [])
    source = coloured(cell.source, "python")
    if cell.metadata.get("jupyter", {}).get("source_hidden"):
        name = "the check" if "check" in tags else "code"
        source = f'<details class="folded"><summary>{name}</summary>{source}</details>'
    kind = " exercise" if "exercise" in tags else ""
    outputs = "".join(map(_output, cell.outputs))
    outputs = f'<div class="out">{outputs}</div>' if outputs else ""
    return f'<div class="cell{kind}">{source}{outputs}</div>'


def _output(output: NotebookNode) -> str:
    if output.output_type == "stream":
        return f"<pre>{escape(output.text)}</pre>"
    data = output.get("data", {})
    if "text/html" in data:
        kind = "player" if WIDGET in data else "rich"
        return f'<div class="{kind}">{data["text/html"]}</div>'
    if "image/svg+xml" in data:
        return f'<div class="picture">{data["image/svg+xml"]}</div>'
    if "image/png" in data:
        words = escape(data.get("text/plain", "figure"), quote=True)
        return f'<img class="picture" alt="{words}" src="data:image/png;base64,{data["image/png"].strip()}">'
    return f"<pre>{escape(data.get('text/plain', ''))}</pre>"
