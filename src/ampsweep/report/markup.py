"""Safe HTML: strings are escaped unless they are `Markup`."""

import html
import json
from typing import Any, Final

_VOID: Final = frozenset({"br", "col", "hr", "input", "link", "meta"})


class Markup(str):
    """HTML source; every other string is text."""

    __slots__ = ()


Child = str | None


def tag(name: str, /, *children: Child, **attributes: str | bool | None) -> Markup:
    """An element. Attributes that are None or False are left out; a trailing underscore of a name is dropped, other
    underscores become hyphens.

    >>> tag("a", "1 < 2", class_="x", href="?a=1&b=2", hidden=False)
    '<a class="x" href="?a=1&amp;b=2">1 &lt; 2</a>'
    """
    written = "".join(_attribute(key.rstrip("_").replace("_", "-"), value) for key, value in attributes.items())
    if name in _VOID:
        assert not children, name
        return Markup(f"<{name}{written}>")
    return Markup(f"<{name}{written}>{join(*children)}</{name}>")


def join(*children: Child) -> Markup:
    return Markup("".join(child if isinstance(child, Markup) else html.escape(child or "") for child in children))


def name(text: str) -> Markup:
    """A user's name, isolated so that right-to-left characters in it do not reverse adjacent text."""
    return tag("bdi", text)


def json_in_script(value: Any) -> str:
    """`value` as JSON within a script element, which nothing in it can end."""
    text = json.dumps(value, allow_nan=False, separators=(",", ":"))
    for character in "<>&\u2028\u2029":
        text = text.replace(character, f"\\u{ord(character):04x}")
    return text


def _attribute(key: str, value: str | bool | None) -> str:
    if value is None or value is False:
        return ""
    return f" {key}" if value is True else f' {key}="{html.escape(value)}"'
