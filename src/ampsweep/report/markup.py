"""Safe HTML: text is escaped unless it is markup already."""

import html
import json
from typing import Any, Final

_VOID: Final = frozenset({"br", "col", "hr", "input", "link", "meta"})


class Markup(str):
    """HTML source, to be written as it is; every other string is text."""

    __slots__ = ()


Child = str | None
"""Text, markup, or nothing."""


def tag(name: str, /, *children: Child, **attributes: str | bool | None) -> Markup:
    """An element. An attribute that is None or False is left out; a trailing underscore of its name is dropped, and
    underscores within are hyphens.

    >>> tag("a", "1 < 2", class_="x", href="?a=1&b=2", hidden=False)
    '<a class="x" href="?a=1&amp;b=2">1 &lt; 2</a>'
    """
    written = "".join(_attribute(key.rstrip("_").replace("_", "-"), value) for key, value in attributes.items())
    if name in _VOID:
        assert not children, name
        return Markup(f"<{name}{written}>")
    return Markup(f"<{name}{written}>{join(*children)}</{name}>")


def join(*children: Child) -> Markup:
    """Children one after another, text among them escaped."""
    return Markup("".join(child if isinstance(child, Markup) else html.escape(child or "") for child in children))


def name(text: str) -> Markup:
    """A name from outside, isolated so that right-to-left characters in it do not turn what stands beside it."""
    return tag("bdi", text)


def json_in_script(value: Any) -> str:
    """`value` as JSON that a script of the page reads; nothing in it can end the script's element."""
    text = json.dumps(value, allow_nan=False, separators=(",", ":"))
    for character in "<>&\u2028\u2029":
        text = text.replace(character, f"\\u{ord(character):04x}")
    return text


def _attribute(key: str, value: str | bool | None) -> str:
    if value is None or value is False:
        return ""
    return f" {key}" if value is True else f' {key}="{html.escape(value)}"'
