"""A page of reports around its content: one self-contained HTML file, which fetches nothing."""

import base64
import hashlib
from collections.abc import Iterable
from importlib.resources import files

from plotly.offline import get_plotlyjs

from ampsweep.report.page.markup import Markup, json_script, tag
from ampsweep.report.page.panel_figures import Figures


def whole_page(title: str, body: Markup, figures: Figures) -> str:
    """The document; Plotly's script is in it only if it has figures."""
    scripts = [Markup(_asset("theme.js")), *([Markup(get_plotlyjs())] if figures.drawn else []), _page_script()]
    head = tag(
        "head",
        tag("meta", charset="utf-8"),
        tag("meta", http_equiv="Content-Security-Policy", content=_policy(scripts)),
        tag("meta", name="viewport", content="width=device-width, initial-scale=1"),
        tag("meta", name="color-scheme", content="light dark"),
        tag("title", title),
        tag("style", Markup(_asset("page.css"))),
        tag("script", scripts[0]),
    )
    end = [json_script("figures", figures.drawn), *(tag("script", script) for script in scripts[1:])]
    return f"<!DOCTYPE html>\n{tag('html', head, tag('body', body, *end), lang='en')}\n"


def page_header(heading: Markup, counts: str, links: Iterable[tuple[str, str]]) -> Markup:
    """The line on top: heading, what there is, links to the parts of the page by their ids, and the theme's button."""
    return tag(
        "div",
        tag("h1", heading),
        tag("p", counts, class_="counts"),
        tag("nav", *(tag("a", text, href=f"#{key}") for key, text in links), aria_label="On this page"),
        tag("button", "Theme", type="button", id="theme"),
        class_="title",
    )


def _page_script() -> Markup:
    return Markup(_asset("page.js"))


def _policy(scripts: list[Markup]) -> str:
    """The page's content security policy: a browser runs only the page's own scripts, and fetches nothing."""
    digests = [base64.b64encode(hashlib.sha256(script.encode()).digest()).decode() for script in scripts]
    allowed = " ".join(f"'sha256-{digest}'" for digest in digests)
    return f"default-src 'none'; script-src {allowed}; style-src 'unsafe-inline'; img-src data: blob:"


def _asset(file_name: str) -> str:
    return (files("ampsweep.report.page") / "assets" / file_name).read_text(encoding="utf-8")
