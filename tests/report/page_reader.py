"""An HTML document as a tree, for tests: no browser, no package."""

import json
from dataclasses import dataclass, field
from html.parser import HTMLParser
from typing import Any

INLINE = frozenset({"a", "bdi", "code", "strong"})
VOID = frozenset({"br", "col", "hr", "input", "link", "meta"})


@dataclass
class Element:
    name: str
    attributes: dict[str, str]
    children: list["Element | str"] = field(default_factory=list)

    @property
    def text(self) -> str:
        """All text in it, spaces collapsed."""
        return " ".join("".join(self._texts()).split())

    def all(self, name: str | None = None, /, **attributes: str) -> list["Element"]:
        """Elements below it of this name with these attributes; of a class any of several."""
        return [one for one in self._below() if name in (None, one.name) and one._has(attributes)]

    def one(self, name: str | None = None, /, **attributes: str) -> "Element":
        found = self.all(name, **attributes)
        assert len(found) == 1, (name, attributes, len(found))
        return found[0]

    def rows(self) -> list[dict[str, str]]:
        """A table's rows by header."""
        headers = [cell.text for cell in self.one("thead").all("th")]
        body = self.one("tbody").all("tr")
        return [dict(zip(headers, (cell.text for cell in row.cells()), strict=True)) for row in body]

    def cells(self) -> list["Element"]:
        return [one for one in self.children if isinstance(one, Element)]

    def _has(self, attributes: dict[str, str]) -> bool:
        for key, value in attributes.items():
            own = self.attributes.get(key.rstrip("_").replace("_", "-"))
            if own is None or (value not in own.split() if key == "class_" else own != value):
                return False
        return True

    def _below(self) -> list["Element"]:
        found = []
        for child in self.children:
            if isinstance(child, Element):
                found += [child, *child._below()]
        return found

    def _texts(self) -> list[str]:
        texts = []
        for child in self.children:
            if isinstance(child, str):
                texts.append(child)
            else:
                texts += child._texts() if child.name in INLINE else [" ", *child._texts(), " "]
        return texts


class _Builder(HTMLParser):
    def __init__(self) -> None:
        super().__init__()
        self.root = Element("document", {})
        self._open = [self.root]

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        element = Element(tag, {key: value or "" for key, value in attrs})
        self._open[-1].children.append(element)
        if tag not in VOID:
            self._open.append(element)

    def handle_endtag(self, tag: str) -> None:
        assert self._open[-1].name == tag, f"</{tag}> closes <{self._open[-1].name}>"
        self._open.pop()

    def handle_data(self, data: str) -> None:
        self._open[-1].children.append(data)


def read_page(text: str) -> Element:
    """The document; fails where an end tag does not match."""
    builder = _Builder()
    builder.feed(text)
    builder.close()
    assert builder._open == [builder.root], "an element is never closed"
    return builder.root


def figures(page: Element) -> list[dict[str, Any]]:
    """What the page's script draws."""
    data = page.one("script", id="figures")
    found: list[dict[str, Any]] = json.loads("".join(child for child in data.children if isinstance(child, str)))
    return found


def panel(page: Element, key: str, place: int = 0) -> tuple[Element, dict[str, Any]]:
    """The panel of this key, the first of several unless said otherwise, and the figure drawn in it."""
    element = page.all("figure", data_key=key)[place]
    (plot,) = [one for one in element.all("div") if "data-figure" in one.attributes]
    return element, figures(page)[int(plot.attributes["data-figure"])]
