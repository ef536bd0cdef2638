"""From content to one HTML file: everything inlined, every text escaped, nothing from the network.

Texts of a run reach the page in two ways only: through Jinja with autoescape, and as JSON in elements that no
browser executes, with every character that HTML or JavaScript could take for its own written as an escape.
A content security policy allows the page's two scripts by their hashes and nothing else, so that a mistake in
either would still run nothing, and nothing could be sent anywhere.
"""

from __future__ import annotations

import base64
import hashlib
import json
from functools import cache
from importlib.resources import files
from typing import TYPE_CHECKING, Any

from ccbench.errors import MissingDependency
from ccbench.report.page.content import PageContent

if TYPE_CHECKING:
    from jinja2 import Environment

_ESCAPES = {ord(one): f"\\u{ord(one):04x}" for one in "<>&'\u2028\u2029"}


def render_page(content: PageContent) -> str:
    """The page as text, to be stored as UTF-8. Raises MissingDependency without jinja2 or plotly."""
    from markupsafe import Markup

    drawing, own = _plotly(), _part("page.js")
    policy = (
        "default-src 'none'; style-src 'unsafe-inline'; img-src data: blob:; "
        f"script-src {_hashed(drawing)} {_hashed(own)}; base-uri 'none'; form-action 'none'"
    )
    return (
        _environment()
        .get_template("page.html.jinja")
        .render(
            page=content,
            policy=policy,
            style=Markup(_part("page.css")),
            plotly=Markup(drawing),
            script=Markup(own),
            plots=Markup(json_for_html(content.plots)),
            table=Markup(json_for_html(content.table)),
        )
    )


def json_for_html(value: Any) -> str:
    """``value`` as JSON that neither ends a script element nor breaks a line of JavaScript."""
    text = json.dumps(value, allow_nan=False, ensure_ascii=False, separators=(",", ":"))
    return text.translate(_ESCAPES)


@cache
def _part(name: str) -> str:
    return files("ccbench.report.page").joinpath(name).read_text(encoding="utf-8")


@cache
def _plotly() -> str:
    """plotly.js as the plotly package ships it."""
    try:
        from plotly.offline import get_plotlyjs  # type: ignore[import-untyped]  # ships no types
    except ImportError:
        raise MissingDependency("report: the page needs plotly; pip install plotly") from None
    script: str = get_plotlyjs()
    # The parser of HTML ends a script at this word, wherever it stands; in JavaScript the two are the same.
    return script.replace("</script", "<\\/script").replace("<!--", "<\\!--")


def _hashed(script: str) -> str:
    digest = hashlib.sha256(script.encode()).digest()
    return f"'sha256-{base64.b64encode(digest).decode()}'"


@cache
def _environment() -> Environment:
    try:
        from jinja2 import Environment, PackageLoader, StrictUndefined
    except ImportError:
        raise MissingDependency("report: the page needs jinja2; pip install jinja2") from None
    return Environment(
        loader=PackageLoader("ccbench.report", "page"),
        autoescape=True,
        undefined=StrictUndefined,
        trim_blocks=True,
        lstrip_blocks=True,
    )
