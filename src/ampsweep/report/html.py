"""A document as one self-contained HTML file, which fetches nothing."""

import base64
import hashlib
import json
from collections.abc import Iterable, Iterator
from dataclasses import dataclass, field
from html import escape
from importlib.resources import files
from itertools import groupby
from typing import Any, Final

from plotly.offline import get_plotlyjs

from ampsweep.report.document import Block, Code, Document, Item, Items, Prose, Section
from ampsweep.report.figure import Figure
from ampsweep.report.palette import ArmStyle
from ampsweep.report.tables import Cell, Column, Table, Tone

_SIGNS: Final[dict[Tone, str]] = {"good": "▲", "bad": "▼", "even": "=", "open": "?"}
_LONG: Final = 32  # longer texts get a wide column


class Markup(str):
    """HTML source; every other string is text, and escaped."""

    __slots__ = ()


Child = str | None


def tag(name: str, /, *children: Child, **attributes: str | bool | None) -> Markup:
    """An element. Attributes that are None or False are left out; a trailing underscore of a name is dropped, other
    underscores become hyphens."""
    written = "".join(_attribute(key.rstrip("_").replace("_", "-"), value) for key, value in attributes.items())
    if name == "meta":
        return Markup(f"<{name}{written}>")
    return Markup(f"<{name}{written}>{join(*children)}</{name}>")


def join(*children: Child) -> Markup:
    return Markup("".join(child if isinstance(child, Markup) else escape(child or "") for child in children))


def name(text: str) -> Markup:
    """A user's name, isolated so that right-to-left characters in it do not reverse adjacent text."""
    return tag("bdi", text)


def json_in_script(value: Any) -> str:
    """`value` as JSON within a script element, which nothing in it can end."""
    text = json.dumps(value, allow_nan=False, separators=(",", ":"))  # in ASCII
    return text.replace("<", r"\u003c").replace(">", r"\u003e").replace("&", r"\u0026")


def _attribute(key: str, value: str | bool | None) -> str:
    if value is None or value is False:
        return ""
    return f" {key}" if value is True else f' {key}="{escape(value)}"'


def html(document: Document) -> str:
    """The page: links, a button for each arm, and the sections, whose figures Plotly draws when they come into view."""
    page = _Page(document)
    sections = [page.section(section, 2) for section in document.sections]
    first = next((section.key for section in document.sections if section.key), None)
    scripts = [Markup(get_plotlyjs())] if page.figures else []
    scripts.append(Markup(_asset("page.js")))
    theme = Markup(_asset("theme.js"))
    head = tag(
        "head",
        tag("meta", charset="utf-8"),
        tag("meta", http_equiv="Content-Security-Policy", content=_policy([theme, *scripts])),
        tag("meta", name="viewport", content="width=device-width, initial-scale=1"),
        tag("meta", name="color-scheme", content="light dark"),
        tag("title", document.title),
        tag("style", Markup(_asset("page.css"))),
        tag("script", theme),
    )
    # Joined once: the page of a large comparison has many megabytes.
    parts = (
        *('<!DOCTYPE html>\n<html lang="en">', head, "<body>"),
        "" if first is None else tag("a", "Skip to the content", class_="skip", href=f"#{first}"),
        page.header(),
        *("<main>", *sections, "</main>"),
        *('<script type="application/json" id="figures">[', ",".join(page.figures), "]</script>"),
        *(tag("script", script) for script in scripts),
        "</body></html>\n",
    )
    return "".join(parts)


@dataclass
class _Page:
    """Converts a document's parts to HTML, and collects its figures, which the page's script finds by number."""

    document: Document
    figures: list[str] = field(default_factory=list)  # as JSON

    def header(self) -> Markup:
        linked = [section for section in self.document.sections if section.key and section.title]
        links = [tag("a", section.title, href=f"#{section.key}") for section in linked]
        return tag(
            "header",
            tag(
                "div",
                tag("h1", name(self.document.title)),
                tag("p", self.document.subtitle, class_="counts"),
                tag("nav", *links, aria_label="On this page"),
                tag("button", "Theme", type="button", id="theme"),
                class_="title",
            ),
            self._form(),
            tag("noscript", tag("p", "The pictures and the buttons need JavaScript; all figures are in the tables.")),
        )

    def section(self, section: Section, level: int) -> Markup:
        title = self._arm(section.title)
        if section.badge is not None:
            title = join(title, " ", _word(*section.badge))
        heading = tag(f"h{min(level, 6)}", title) if section.title else None
        content = list(self._blocks(section.blocks, level + bool(section.title)))
        about = {"id": section.key or None, "data_arm": section.arm}
        if section.folded:
            summary = tag("summary", heading or "Details")
            return tag("details", summary, *content, class_=f"part {section.kind}", **about)
        is_card = section.kind == "card"
        return tag("article" if is_card else "section", heading, *content, class_="card" if is_card else None, **about)

    def _blocks(self, blocks: Iterable[Block], level: int) -> Iterator[Markup]:
        for is_figure, group in groupby(blocks, lambda block: isinstance(block, Figure)):
            if is_figure:
                figures = [self._figure(block) for block in group if isinstance(block, Figure)]
                yield tag("div", *figures, class_="panels")
            else:
                yield from (self._block(block, level) for block in group)

    def _block(self, block: Block, level: int) -> Markup:
        match block:
            case Section():
                return self.section(block, level)
            case Prose():
                look = self.document.arms.get(block.arm or "")
                style = None if look is None else f"--arm:{look.colour}"
                return tag("p", name(block.text), class_=block.kind if block.kind != "body" else None, style=style)
            case Items():
                title = tag("p", block.title, class_="of-list") if block.title else None
                return tag("div", title, tag("ul", *map(self._item, block.items)), class_="items")
            case Table():
                return self._table(block.shown())
            case Code():
                identifier = f"code-{hashlib.sha256(block.text.encode()).hexdigest()[:12]}"
                code = tag("pre", tag("code", block.text, id=identifier))
                return tag("div", code, tag("button", "Copy", type="button", data_copy=identifier), class_="code")
        raise AssertionError(block)

    def _item(self, item: Item) -> Markup:
        label = join(tag("strong", item.label), " ") if item.label else None
        arm = join(self._arm(item.arm), ": ") if item.arm is not None else None
        text = name(item.text) if item.tone is None else join(_word("", item.tone), " ", name(item.text))
        return tag("li", label, arm, text, data_arm=item.arm if item.arm in self.document.arms else None)

    def _table(self, table: Table) -> Markup:
        head = [tag("th", of.title, scope="col", class_="number" if of.numeric else None) for of in table.columns]
        body = [
            tag("tr", *map(self._cell, row.cells, table.columns, range(len(row.cells))), data_arm=row.arm)
            for row in table.rows
        ]
        drawn = tag(
            "table",
            tag("caption", table.title) if table.title else None,
            tag("thead", tag("tr", *head)) if table.kind == "plain" else None,
            tag("tbody", *body),
        )
        label = table.title or table.key
        box = tag("div", drawn, class_=f"scroll of-{table.key}", role="region", aria_label=label, tabindex="0")
        return join(box, tag("p", table.more, class_="note") if table.more else None)

    def _cell(self, cell: Cell, column: Column, place: int) -> Markup:
        if cell.tone is not None:
            shown = _word(cell.text, cell.tone)
        elif cell.link is not None:
            shown = tag("a", name(cell.text), href=cell.link)
        else:
            shown = tag("span", cell.text) if column.numeric else self._arm(cell.text)
        content = join(shown, *(tag("small", part) for part in cell.detail.split("; ") if part))
        kind = "number" if column.numeric else "long" if len(cell.text) > _LONG else None
        return tag("td", content, class_=kind) if place else tag("th", content, scope="row", class_=kind)

    def _figure(self, figure: Figure) -> Markup:
        drawn = figure.plotly()
        self.figures.append(json_in_script({"traces": drawn["data"], "layout": drawn["layout"]}))
        identifier = f"figure-{len(self.figures)}"
        table = None
        if figure.table is not None:
            table = tag("details", tag("summary", "Figures as a table"), self._table(figure.table.shown()))
        caption = tag(
            "figcaption",
            tag("strong", figure.title, id=f"{identifier}-title"),
            tag("span", figure.question, class_="question") if figure.question else None,
        )
        plot = tag(
            "div",
            class_="plot",
            role="img",
            aria_label=f"{figure.title}, drawn" + ("; its figures are in the table below" if table else ""),
            data_figure=str(len(self.figures) - 1),
            style=f"height:{drawn['layout']['height']}px",
        )
        return tag(
            "figure",
            *(caption, plot),
            *(tag("p", name(text), class_="note") for text in (figure.note, *figure.remarks) if text),
            table,
            class_="panel wide" if figure.wide else "panel",
            id=identifier,
            data_key=figure.key,
            role="group",
            aria_labelledby=f"{identifier}-title",
        )

    def _form(self) -> Markup | None:
        arms = [
            tag("button", _swatch(style), name(arm), type="button", class_="arm", data_arm=arm, aria_pressed="true")
            for arm, style in self.document.arms.items()
        ]
        if len(arms) < 2:
            return None
        return tag(
            "form",
            tag("fieldset", tag("legend", "Arms"), *arms),
            tag("button", "Show all", type="reset", id="show-all", hidden=True),
            tag("output", "", id="filter-state", aria_live="polite"),
            class_="filters",
            id="filters",
            aria_label="Filters",
        )

    def _arm(self, text: str) -> Markup:
        """A text; an arm's name after its colour, so that colour is never the only distinction."""
        style = self.document.arms.get(text)
        return name(text) if style is None else tag("span", _swatch(style), name(text), class_="arm-name")


def _word(text: str, tone: Tone) -> Markup:
    return tag("span", tag("span", _SIGNS[tone], aria_hidden="true"), f" {text}" if text else "", class_=f"word {tone}")


def _swatch(style: ArmStyle) -> Markup:
    return tag("span", class_="swatch", style=f"--arm:{style.colour}", aria_hidden="true")


def _policy(scripts: Iterable[str]) -> str:
    """The page's content security policy: a browser runs only the page's own scripts, and fetches nothing."""
    digests = [base64.b64encode(hashlib.sha256(script.encode()).digest()).decode() for script in scripts]
    allowed = " ".join(f"'sha256-{digest}'" for digest in digests)
    return f"default-src 'none'; script-src {allowed}; style-src 'unsafe-inline'; img-src data: blob:"


def _asset(file_name: str) -> str:
    return (files("ampsweep.report") / "assets" / file_name).read_text(encoding="utf-8")
