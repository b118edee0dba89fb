"""As much of GraphQL as the W&B client speaks: reads a document and answers it from nodes.

A node is a dict from a field's name to its value, or to a function of the field's arguments. Types are not checked and
fragments apply to whatever they stand in; a field that a node does not have is an error, as with a real server.

https://spec.graphql.org/October2021/
"""

import re
from collections.abc import Mapping, Sequence
from typing import Any, NamedTuple

Node = Mapping[str, Any]

_TOKEN = re.compile(
    r'[\s,]+|#[^\n]*|(\.\.\.|[_A-Za-z]\w*|-?\d+(?:\.\d+)?(?:[eE][+-]?\d+)?|"(?:[^"\\]|\\.)*"|[{}()\[\]:!=$@])'
)
_LITERALS = {"true": True, "false": False, "null": None}


class GraphQLError(Exception):
    """Sent to the client instead of data, with the status of the HTTP answer."""

    def __init__(self, message: str, status: int = 200) -> None:
        super().__init__(message)
        self.status = status


class Variable(NamedTuple):
    name: str


class Selected(NamedTuple):
    """A field that is asked for, or a fragment: its own `fields`, or those of its name."""

    name: str
    answer_name: str | None
    arguments: dict[str, Any]
    include: Any
    fields: "list[Selected] | None"


class Document:
    """An operation, with the fragments it uses."""

    def __init__(self, text: str) -> None:
        self._tokens = [token for token in _TOKEN.findall(text) if token][::-1]
        self.name, self._defaults = "", {}
        self._operation: list[Selected] = []
        self._fragments: dict[str, list[Selected]] = {}
        while self._tokens:
            if self._accept("fragment"):
                name = self._take()
                self._skip(2)  # on TYPE
                self._fragments[name] = self._fields()
            else:
                if self._tokens[-1] != "{":
                    self._skip(1)  # query, mutation
                self.name = "" if self._tokens[-1] in ("{", "(") else self._take()
                self._defaults, self._operation = self._variables(), self._fields()

    def execute(self, root: Node, variables: Mapping[str, Any]) -> dict[str, Any]:
        """The data that is asked of `root`; a GraphQLError for a field that a node does not have."""
        answer: dict[str, Any] = {}
        self._select(self._operation, root, {**self._defaults, **variables}, answer)
        return answer

    def _select(self, fields: list[Selected], node: Node, given: Mapping[str, Any], answer: dict[str, Any]) -> None:
        for selected in fields:
            if not _value(selected.include, given):
                continue
            if selected.answer_name is None:
                self._select(selected.fields or self._fragments[selected.name], node, given, answer)
                continue
            if selected.name not in node:
                raise GraphQLError(f"Cannot query field {selected.name!r} on type {node.get('__typename')!r}", 400)
            value = node[selected.name]
            if callable(value):
                value = value(**_value(selected.arguments, given))
            before = answer.get(selected.answer_name)  # two fragments may ask for parts of a field
            answer[selected.answer_name] = self._answer(value, selected, given, before)

    def _answer(self, value: Any, selected: Selected, given: Mapping[str, Any], before: Any) -> Any:
        if value is None or selected.fields is None:
            return value
        if isinstance(value, list):
            return [self._answer(item, selected, given, None) for item in value]
        inner: dict[str, Any] = before or {}
        self._select(selected.fields, value, given, inner)
        return inner

    def _variables(self) -> dict[str, Any]:
        """The values of variables that may be left out, from `($name: Type = default)`."""
        defaults: dict[str, Any] = {}
        if self._accept("("):
            while not self._accept(")"):
                self._skip(1)  # $
                name = self._take()
                while self._tokens[-1] not in ("$", ")", "="):
                    self._skip(1)
                if self._accept("="):
                    defaults[name] = self._argument()
        return defaults

    def _fields(self) -> list[Selected]:
        fields: list[Selected] = []
        self._skip(1)  # {
        while not self._accept("}"):
            is_fragment = self._accept("...")
            if is_fragment:
                self._accept("on")
            answer_name = name = self._take()
            if self._accept(":"):
                name = self._take()
            arguments = self._pairs(")") if self._accept("(") else {}
            include = self._include()
            inner = self._fields() if self._tokens[-1] == "{" else None
            fields.append(Selected(name, None if is_fragment else answer_name, arguments, include, inner))
        return fields

    def _include(self) -> Any:
        if not self._accept("@"):
            return True
        assert self._take() == "include", "no other directive is used"
        self._skip(1)  # (
        return self._pairs(")")["if"]

    def _pairs(self, end: str) -> dict[str, Any]:
        pairs = {}
        while not self._accept(end):
            name = self._take()
            self._skip(1)  # :
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

    def _take(self) -> str:
        return self._tokens.pop()

    def _skip(self, number: int) -> None:
        for _ in range(number):
            self._take()

    def _accept(self, token: str) -> bool:
        return self._tokens[-1:] == [token] and bool(self._tokens.pop())


def _value(given: Any, variables: Mapping[str, Any]) -> Any:
    """`given` with its variables filled in; an argument whose variable is not given is left out."""
    if isinstance(given, Variable):
        return variables.get(given.name)
    if isinstance(given, list):
        return [_value(item, variables) for item in given]
    if isinstance(given, dict):
        there = {k: v for k, v in given.items() if not (isinstance(v, Variable) and v.name not in variables)}
        return {key: _value(item, variables) for key, item in there.items()}
    return given


def connection(nodes: Sequence[Node], after: str | None = None, first: int | None = None) -> Node:
    """A page of `nodes`: the `first` that follow the cursor `after`, which counts them."""
    begin = int(after or 0)
    end = len(nodes) if first is None else min(begin + first, len(nodes))
    return {
        "__typename": "Connection",
        "totalCount": len(nodes),
        "edges": [{"node": nodes[index], "cursor": str(index + 1)} for index in range(begin, end)],
        "pageInfo": {"__typename": "PageInfo", "endCursor": str(end), "hasNextPage": end < len(nodes)},
    }
