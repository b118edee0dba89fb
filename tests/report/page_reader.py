"""An HTML document as a tree, without a browser or package."""

import json
from dataclasses import dataclass, field
from html.parser import HTMLParser

INLINE = frozenset({"a", "bdi", "code", "strong"})
VOID = frozenset({"br", "col", "hr", "input", "link", "meta"})


@dataclass
class Element:
    name: str
    attributes: dict
    children: list = field(default_factory=list)

    @property
    def text(self):
        """All text in it, spaces collapsed."""
        return " ".join("".join(self._texts()).split())

    def all(self, name=None, /, **attributes):
        """Descendants of this name with these attributes; `class_` is one of several."""
        return [found for found in self._below() if name in (None, found.name) and found._has(attributes)]

    def one(self, name=None, /, **attributes):
        found = self.all(name, **attributes)
        assert len(found) == 1, (name, attributes, len(found))
        return found[0]

    def rows(self):
        """A table's rows by header."""
        headers = [cell.text for cell in self.one("thead").all("th")]
        body = [[cell.text for cell in row.elements()] for row in self.one("tbody").all("tr")]
        return [dict(zip(headers, row, strict=True)) for row in body]

    def elements(self):
        return [child for child in self.children if isinstance(child, Element)]

    def _has(self, attributes):
        for key, value in attributes.items():
            own = self.attributes.get(key.rstrip("_").replace("_", "-"))
            if own is None or (value not in own.split() if key == "class_" else own != value):
                return False
        return True

    def _below(self):
        return [found for child in self.elements() for found in (child, *child._below())]

    def _texts(self):
        for child in self.children:
            if isinstance(child, str):
                yield child
            else:
                yield from child._texts() if child.name in INLINE else (" ", *child._texts(), " ")


class _Builder(HTMLParser):
    def __init__(self):
        super().__init__()
        self.root = Element("document", {})
        self.open = [self.root]

    def handle_starttag(self, tag, attrs):
        element = Element(tag, {key: value or "" for key, value in attrs})
        self.open[-1].children.append(element)
        if tag not in VOID:
            self.open.append(element)

    def handle_endtag(self, tag):
        assert self.open[-1].name == tag, f"</{tag}> closes <{self.open[-1].name}>"
        self.open.pop()

    def handle_data(self, data):
        self.open[-1].children.append(data)


def read_page(text):
    """The document; fails if an end tag does not match."""
    builder = _Builder()
    builder.feed(text)
    builder.close()
    assert builder.open == [builder.root], "an element is never closed"
    return builder.root


def figures(page):
    """The figures that the page's script draws."""
    return json.loads("".join(page.one("script", id="figures").children))


def panel(page, key, place=0):
    """The panel of this key, by default the first of several, and its figure."""
    element = page.all("figure", data_key=key)[place]
    (plot,) = [div for div in element.all("div") if "data-figure" in div.attributes]
    return element, figures(page)[int(plot.attributes["data-figure"])]


def drawn(element, figure):
    """A panel as text: its title, axes, a line for each trace, shapes, remarks and table."""
    layout = figure["layout"]
    lines = [f"# {element.one('figcaption').text}"]
    for name in ("xaxis", "yaxis"):
        axis = layout[name]
        shown = [axis["title"]["text"], axis.get("type", ""), _short(axis.get("ticktext", axis.get("range", ())))]
        lines.append(f"{name}: {', '.join(filter(None, shown))}")
    lines += ["- " + "; ".join(filter(None, _facts(trace))) for trace in figure["traces"]]
    lines += [f"shape: {_short(shape[end] for end in ('x0', 'x1', 'y0', 'y1'))}" for shape in layout["shapes"]]
    lines += [paragraph.text for paragraph in element.all("p")]
    return "\n".join([*lines, *(" | ".join(row.values()) for table in element.all("table") for row in table.rows())])


def _facts(trace):
    line, marker = trace.get("line", {}), trace.get("marker", {})
    yield from (trace.get("mode", trace["type"]), trace.get("name"), (marker or line).get("color"))
    yield from (marker.get("symbol"), None if marker else line.get("dash"), trace.get("visible"))
    yield from (f"({_short(values)})" for values in (trace["x"], trace["y"], *trace.get("z", ())))
    for error in (trace[key] for key in ("error_x", "error_y") if key in trace):
        yield f"-{_short(error['arrayminus'])} +{_short(error['array'])}"
    yield from (text for text in trace.get("text", ()) if isinstance(text, str))
    yield from (*trace.get("hovertext", ()), trace.get("hovertemplate"))


def _short(values):
    return " ".join(f"{value:.4g}" if isinstance(value, int | float) else value or "-" for value in values)
