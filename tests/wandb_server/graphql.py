"""As much of GraphQL as the W&B client speaks: reads a document and answers it from nodes.

A node is a dict from a field's name to its value, or to a function of the field's arguments. Values that are nodes, or
lists of them, are looked into only where the document asks for their fields. Types are not checked and fragments apply
to whatever they stand in; a field that a node does not have is an error, as with a real server.

https://spec.graphql.org/October2021/
"""

import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

Node = Mapping[str, Any]

_TOKEN = re.compile(
    r'[\s,]+|#[^\n]*|(?P<token>\.\.\.|[_A-Za-z]\w*|-?\d+(?:\.\d+)?(?:[eE][+-]?\d+)?|"(?:[^"\\]|\\.)*"|[{}()\[\]:!=$@])'
)
_LITERALS = {"true": True, "false": False, "null": None}


class GraphQLError(Exception):
    """What the client is told instead of data, with the status of the HTTP answer."""

    def __init__(self, message: str, status: int = 200) -> None:
        super().__init__(message)
        self.status = status


@dataclass(frozen=True)
class Variable:
    """A `$name` in place of a value."""

    name: str


@dataclass(frozen=True)
class Selected:
    """A field that is asked for; or, where `fragment` is given, those of that fragment."""

    name: str
    answer_name: str = ""
    fragment: str | None = None
    arguments: dict[str, Any] = field(default_factory=dict)
    include: Any = True
    fields: "tuple[Selected, ...] | None" = None


@dataclass(frozen=True)
class Document:
    """One operation, with the fragments it uses."""

    kind: str
    name: str
    defaults: dict[str, Any]
    fields: tuple[Selected, ...]
    fragments: dict[str, tuple[Selected, ...]]


def parse(text: str) -> Document:
    """The document in ``text``.

    Raises:
        GraphQLError: it is none, or uses more of GraphQL than is known here.
    """
    return _Parser(text).document()


def execute(document: Document, root: Node, variables: Mapping[str, Any]) -> dict[str, Any]:
    """The data that ``document`` asks ``root`` for.

    Raises:
        GraphQLError: a field that its node does not have, or whatever a node's function raises.
    """
    given = document.defaults | dict(variables)
    answer: dict[str, Any] = {}
    _select(document.fields, root, given, document.fragments, answer)
    return answer


def _select(
    fields: tuple[Selected, ...],
    node: Node,
    variables: Mapping[str, Any],
    fragments: Mapping[str, tuple[Selected, ...]],
    answer: dict[str, Any],
) -> None:
    for selected in fields:
        if not _value(selected.include, variables):
            continue
        if selected.fragment is not None:
            _select(selected.fields or fragments[selected.fragment], node, variables, fragments, answer)
            continue
        if selected.name not in node:
            raise GraphQLError(f"Cannot query field {selected.name!r} on type {node.get('__typename')!r}", 400)
        value = node[selected.name]
        if callable(value):
            value = value(**_value(selected.arguments, variables))
        answer[selected.answer_name] = _answer(value, selected, variables, fragments, answer.get(selected.answer_name))


def _answer(
    value: Any,
    selected: Selected,
    variables: Mapping[str, Any],
    fragments: Mapping[str, tuple[Selected, ...]],
    before: Any,
) -> Any:
    if value is None or selected.fields is None:
        return value
    if isinstance(value, list):
        return [_answer(item, selected, variables, fragments, None) for item in value]
    inner: dict[str, Any] = before or {}  # two fragments may ask for parts of one field
    _select(selected.fields, value, variables, fragments, inner)
    return inner


def _value(given: Any, variables: Mapping[str, Any]) -> Any:
    """``given`` with its variables filled in; an argument whose variable is not given is left out."""
    if isinstance(given, Variable):
        return variables.get(given.name)
    if isinstance(given, list):
        return [_value(item, variables) for item in given]
    if isinstance(given, dict):
        return {
            key: _value(item, variables)
            for key, item in given.items()
            if not (isinstance(item, Variable) and item.name not in variables)
        }
    return given


class _Parser:
    def __init__(self, text: str) -> None:
        self._tokens: list[str] = []
        position = 0
        while position < len(text):
            match = _TOKEN.match(text, position)
            if match is None:
                raise GraphQLError(f"Syntax Error: {text[position : position + 20]!r}", 400)
            position = match.end()
            if match["token"]:
                self._tokens.append(match["token"])
        self._next = 0

    def document(self) -> Document:
        operation: tuple[str, str, dict[str, Any], tuple[Selected, ...]] | None = None
        fragments: dict[str, tuple[Selected, ...]] = {}
        while self._peek() is not None:
            if self._accept("fragment"):
                name = self._take()
                self._take()  # on
                self._take()  # its type
                fragments[name] = self._fields()
            else:
                kind = "query" if self._peek() == "{" else self._take()
                name = "" if self._peek() in ("{", "(") else self._take()
                operation = kind, name, self._defaults(), self._fields()
        if operation is None:
            raise GraphQLError("Must provide query string.", 400)
        return Document(*operation, fragments)

    def _defaults(self) -> dict[str, Any]:
        """The values of variables that may be left out, from `($name: Type = default)`."""
        defaults: dict[str, Any] = {}
        if self._accept("("):
            while not self._accept(")"):
                self._take()  # $
                name = self._take()
                self._take()  # :
                while self._peek() not in ("$", ")", "="):
                    self._take()
                if self._accept("="):
                    defaults[name] = self._argument()
        return defaults

    def _fields(self) -> tuple[Selected, ...]:
        fields: list[Selected] = []
        self._take()  # {
        while not self._accept("}"):
            fields.append(self._fragment() if self._accept("...") else self._field())
        return tuple(fields)

    def _fragment(self) -> Selected:
        if self._accept("on"):
            name = self._take()
            return Selected(name, fragment=name, include=self._include(), fields=self._fields())
        name = self._take()
        return Selected(name, fragment=name, include=self._include())

    def _field(self) -> Selected:
        answer_name = name = self._take()
        if self._accept(":"):
            name = self._take()
        arguments = {}
        if self._accept("("):
            arguments = self._pairs(")")
        include = self._include()
        return Selected(name, answer_name, None, arguments, include, self._fields() if self._peek() == "{" else None)

    def _include(self) -> Any:
        if not self._accept("@"):
            return True
        assert self._take() == "include", "no other directive is used"
        self._take()  # (
        return self._pairs(")")["if"]

    def _pairs(self, end: str) -> dict[str, Any]:
        pairs = {}
        while not self._accept(end):
            name = self._take()
            self._take()  # :
            pairs[name] = self._argument()
        return pairs

    def _argument(self) -> Any:
        token = self._take()
        if token == "$":
            return Variable(self._take())
        if token == "[":
            items = []
            while not self._accept("]"):
                items.append(self._argument())
            return items
        if token == "{":
            return self._pairs("}")
        if token.startswith('"'):
            return token[1:-1].replace('\\"', '"')
        if token[0] in "-0123456789":
            return float(token) if set(token) & set(".eE") else int(token)
        return _LITERALS.get(token, token)  # the name of an enum's value stands for itself

    def _peek(self) -> str | None:
        return self._tokens[self._next] if self._next < len(self._tokens) else None

    def _take(self) -> str:
        token = self._peek()
        if token is None:
            raise GraphQLError("Syntax Error: unexpected end", 400)
        self._next += 1
        return token

    def _accept(self, token: str) -> bool:
        if self._peek() != token:
            return False
        self._next += 1
        return True


def connection(nodes: Sequence[Node], after: str | None = None, first: int | None = None) -> Node:
    """A page of ``nodes``: the ``first`` that follow the cursor ``after``, which counts them."""
    begin = int(after or 0)
    end = len(nodes) if first is None else min(begin + first, len(nodes))
    return {
        "__typename": "Connection",
        "totalCount": len(nodes),
        "edges": [{"node": nodes[index], "cursor": str(index + 1)} for index in range(begin, end)],
        "pageInfo": {"__typename": "PageInfo", "endCursor": str(end), "hasNextPage": end < len(nodes)},
    }
