"""A document as one self-contained HTML file, which fetches nothing."""

import base64
import hashlib
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from importlib.resources import files
from itertools import groupby
from typing import Final

from plotly.offline import get_plotlyjs

from ampsweep.report.document import Block, Code, Document, Item, Items, Prose, Section
from ampsweep.report.figure import Figure
from ampsweep.report.markup import Markup, join, json_in_script, name, tag
from ampsweep.report.palette import ArmStyle
from ampsweep.report.tables import Cell, Column, Table, Tone

_SIGNS: Final[dict[Tone, str]] = {"good": "▲", "bad": "▼", "even": "=", "open": "?"}
_LONG: Final = 32
"""Characters of a text that has room in its column."""


def html(document: Document) -> str:
    """The page: links, a button for each arm, then the sections, their figures drawn by Plotly when they are seen."""
    page = _Page(document)
    sections = [page.section(one, 2) for one in document.sections]
    first = next((one.key for one in document.sections if one.key), None)
    scripts = [Markup(get_plotlyjs())] if page.figures else []
    scripts.append(Markup(_asset("page.js")))
    # Joined once: the page of a large comparison has many megabytes.
    parts = (
        '<!DOCTYPE html>\n<html lang="en">',
        _head(document.title, scripts),
        "<body>",
        "" if first is None else tag("a", "Skip to the content", class_="skip", href=f"#{first}"),
        page.header(),
        *("<main>", *sections, "</main>"),
        '<script type="application/json" id="figures">[',
        ",".join(page.figures),
        "]</script>",
        *(tag("script", one) for one in scripts),
        "</body></html>\n",
    )
    return "".join(parts)


@dataclass
class _Page:
    """A document on its way to HTML: collects the figures, which the page's script knows by number."""

    document: Document
    figures: list[str] = field(default_factory=list)
    """As JSON."""

    def header(self) -> Markup:
        sections = [one for one in self.document.sections if one.key and one.title]
        return tag(
            "header",
            tag(
                "div",
                tag("h1", name(self.document.title)),
                tag("p", self.document.subtitle, class_="counts"),
                tag("nav", *(tag("a", one.title, href=f"#{one.key}") for one in sections), aria_label="On this page"),
                tag("button", "Theme", type="button", id="theme"),
                class_="title",
            ),
            self._form(),
            tag("noscript", tag("p", "The pictures and the buttons need JavaScript; all figures are in the tables.")),
        )

    def section(self, one: Section, level: int) -> Markup:
        badge = None if one.badge is None else _word(*one.badge)
        title = join(self._arm(one.title), " ", badge) if badge is not None else self._arm(one.title)
        heading = tag(f"h{min(level, 6)}", title) if one.title else None
        content = list(self._blocks(one.blocks, level + bool(one.title)))
        about = {"id": one.key or None, "data_arm": one.arm}
        if one.folded:
            return tag("details", tag("summary", heading or "Details"), *content, class_=f"part {one.kind}", **about)
        kind = "article" if one.kind == "card" else "section"
        return tag(kind, heading, *content, class_=one.kind if one.kind == "card" else None, **about)

    def _blocks(self, blocks: Iterable[Block], level: int) -> Iterator[Markup]:
        for is_figure, group in groupby(blocks, lambda block: isinstance(block, Figure)):
            if is_figure:
                yield tag("div", *(self._figure(one) for one in group if isinstance(one, Figure)), class_="panels")
            else:
                yield from (self._block(one, level) for one in group)

    def _block(self, block: Block, level: int) -> Markup:
        match block:
            case Section():
                return self.section(block, level)
            case Prose(kind="headline"):
                look = self._arms.get(block.arm or "")
                style = None if look is None else f"--arm:{look.colour}"
                return tag("p", name(block.text), class_="headline", style=style)
            case Prose():
                return tag("p", name(block.text), class_="note" if block.kind == "note" else None)
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
        return tag("li", label, arm, text, data_arm=item.arm if item.arm in self._arms else None)

    def _table(self, table: Table) -> Markup:
        columns = table.columns
        head = [tag("th", one.title, scope="col", class_="number" if one.numeric else None) for one in columns]
        body = [
            tag(
                "tr",
                *(self._cell(cell, of, is_first=of is columns[0]) for cell, of in zip(row.cells, columns, strict=True)),
                data_arm=row.arm,
            )
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

    def _cell(self, cell: Cell, column: Column, *, is_first: bool) -> Markup:
        if cell.tone is not None:
            shown = _word(cell.text, cell.tone)
        elif cell.link is not None:
            shown = tag("a", name(cell.text), href=cell.link)
        else:
            shown = tag("span", cell.text) if column.numeric else self._arm(cell.text)
        content = join(shown, *(tag("small", part) for part in cell.detail.split("; ") if part))
        kind = "number" if column.numeric else "long" if len(cell.text) > _LONG else None
        return tag("th", content, scope="row", class_=kind) if is_first else tag("td", content, class_=kind)

    def _figure(self, figure: Figure) -> Markup:
        drawn = figure.plotly()
        self.figures.append(json_in_script({"traces": drawn["data"], "layout": drawn["layout"]}))
        identifier = f"figure-{len(self.figures)}"
        table = None
        if figure.table is not None:
            table = tag("details", tag("summary", "Figures as a table"), self._table(figure.table.shown()))
        return tag(
            "figure",
            tag(
                "figcaption",
                tag("strong", figure.title, id=f"{identifier}-title"),
                tag("span", figure.question, class_="question") if figure.question else None,
            ),
            tag(
                "div",
                class_="plot",
                role="img",
                aria_label=f"{figure.title}, drawn" + ("; its figures are in the table below" if table else ""),
                data_figure=str(len(self.figures) - 1),
                style=f"height:{drawn['layout']['height']}px",
            ),
            *(tag("p", name(text), class_="note") for text in (figure.note, *figure.remarks) if text),
            table,
            class_="panel wide" if figure.wide else "panel",
            id=identifier,
            data_key=figure.key,
            role="group",
            aria_labelledby=f"{identifier}-title",
        )

    def _form(self) -> Markup | None:
        """A button for each arm; none for a single one."""
        arms = [
            tag("button", _swatch(style), name(arm), type="button", class_="arm", data_arm=arm, aria_pressed="true")
            for arm, style in self._arms.items()
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
        """A text; the name of an arm after its colour, so that arms are never told apart by colour alone."""
        style = self._arms.get(text)
        return name(text) if style is None else tag("span", _swatch(style), name(text), class_="arm-name")

    @property
    def _arms(self) -> Mapping[str, ArmStyle]:
        return self.document.arms


def _word(text: str, tone: Tone) -> Markup:
    return tag("span", tag("span", _SIGNS[tone], aria_hidden="true"), f" {text}" if text else "", class_=f"word {tone}")


def _swatch(style: ArmStyle) -> Markup:
    return tag("span", class_="swatch", style=f"--arm:{style.colour}", aria_hidden="true")


def _head(title: str, scripts: Sequence[str]) -> Markup:
    theme = Markup(_asset("theme.js"))
    return tag(
        "head",
        tag("meta", charset="utf-8"),
        tag("meta", http_equiv="Content-Security-Policy", content=_policy([theme, *scripts])),
        tag("meta", name="viewport", content="width=device-width, initial-scale=1"),
        tag("meta", name="color-scheme", content="light dark"),
        tag("title", title),
        tag("style", Markup(_asset("page.css"))),
        tag("script", theme),
    )


def _policy(scripts: Iterable[str]) -> str:
    """The page's content security policy: a browser runs only the page's own scripts, and fetches nothing."""
    digests = [base64.b64encode(hashlib.sha256(script.encode()).digest()).decode() for script in scripts]
    allowed = " ".join(f"'sha256-{digest}'" for digest in digests)
    return f"default-src 'none'; script-src {allowed}; style-src 'unsafe-inline'; img-src data: blob:"


def _asset(file_name: str) -> str:
    return (files("ampsweep.report") / "assets" / file_name).read_text(encoding="utf-8")
