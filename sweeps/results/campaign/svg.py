"""Small figures as SVG text: bars, stacked bars and lines, with a white ground so that they are read in any theme."""

import math
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Final
from xml.sax.saxutils import escape

WIDTH: Final = 760
_LEFT: Final = 190
_RIGHT: Final = 90
_ROW: Final = 26
_TOP: Final = 40
_FONT: Final = 'font-family="system-ui, sans-serif" font-size="12"'


@dataclass(frozen=True)
class Bar:
    """A row of `bars`."""

    label: str
    value: float
    text: str
    colour: str
    mark: float | None = None
    """A line across the row: what the value is held against."""


@dataclass(frozen=True)
class Line:
    """A series of `lines`: a line from point to point, or its points as dots alone."""

    label: str
    points: Sequence[tuple[float, float]]
    colour: str
    dots: bool = False


def bars(title: str, rows: Sequence[Bar]) -> str:
    """Horizontal bars from zero, with marks where they are given."""
    most = max([row.value for row in rows] + [row.mark or 0 for row in rows])
    body = []
    for index, row in enumerate(rows):
        y = _TOP + index * _ROW
        body += [
            _text(_LEFT - 8, y + 16, row.label, anchor="end"),
            _box(_LEFT, y + 4, _at(row.value, most), 16, row.colour),
        ]
        end = row.value
        if row.mark is not None:
            body.append(_path(f"M{_LEFT + _at(row.mark, most):.1f} {y + 1}v22", "#000000", dashed=True))
            end = max(end, row.mark)
        body.append(_text(_LEFT + _at(end, most) + 6, y + 16, row.text))
    return _document(title, _TOP + len(rows) * _ROW + 12, body)


def stacked(
    title: str, rows: Mapping[str, Mapping[str, float]], colours: Mapping[str, str], texts: Mapping[str, str]
) -> str:
    """Horizontal bars made of parts: row -> part -> value; a text at the end of each, and the parts' names below."""
    most = max(sum(parts.values()) for parts in rows.values())
    body = []
    for index, (label, parts) in enumerate(rows.items()):
        y, x = _TOP + index * _ROW, float(_LEFT)
        body.append(_text(_LEFT - 8, y + 16, label, anchor="end"))
        for part, value in parts.items():
            body.append(_box(x, y + 4, _at(value, most), 16, colours[part]))
            x += _at(value, most)
        body.append(_text(x + 6, y + 16, texts[label]))
    shown = [part for part in colours if any(parts.get(part) for parts in rows.values())]
    height = _TOP + len(rows) * _ROW + 12
    body += _legend([(part.replace("_", " "), colours[part], False) for part in shown], height)
    return _document(title, height + 20 * math.ceil(len(shown) / 4) + 8, body)


def lines(title: str, series: Sequence[Line], *, x_title: str, y_text: Callable[[float], str]) -> str:
    """Lines and dots over axes in powers of two, as batch sizes and their bytes call for; `y_text` names a power."""
    points = [point for one in series for point in one.points]
    x_low, x_high = _powers([x for x, _ in points])
    y_low, y_high = _powers([y for _, y in points])
    width, height = WIDTH - 80 - 30, 280

    def place(x: float, y: float) -> tuple[float, float]:
        across = (math.log2(x) - x_low) / max(x_high - x_low, 1)
        up = (math.log2(y) - y_low) / max(y_high - y_low, 1)
        return 80 + width * across, _TOP + height * (1 - up)

    body = []
    below = _TOP + height
    for power in range(x_low, x_high + 1):
        x, _ = place(2.0**power, 2.0**y_low)
        body += [_path(f"M{x:.1f} {_TOP}v{height}", "#dddddd"), _text(x, below + 16, f"{2**power:g}", anchor="middle")]
    for power in range(y_low, y_high + 1):
        _, y = place(2.0**x_low, 2.0**power)
        body += [_path(f"M80 {y:.1f}h{width}", "#dddddd"), _text(74, y + 4, y_text(2.0**power), anchor="end")]
    for one in series:
        at = [place(x, y) for x, y in sorted(one.points)]
        if one.dots:
            body += [f'<circle cx="{x:.1f}" cy="{y:.1f}" r="4" fill="{one.colour}"/>' for x, y in at]
        else:
            body.append(_path("M" + "L".join(f"{x:.1f} {y:.1f}" for x, y in at), one.colour))
    body.append(_text(80 + width / 2, below + 36, x_title, anchor="middle"))
    body += _legend([(one.label, one.colour, not one.dots) for one in series], below + 44)
    return _document(title, below + 20 * math.ceil(len(series) / 4) + 56, body)


def _powers(values: Sequence[float]) -> tuple[int, int]:
    """The powers of two around all values."""
    return math.floor(math.log2(min(values))), math.ceil(math.log2(max(values)))


def _legend(entries: Sequence[tuple[str, str, bool]], top: float) -> Iterator[str]:
    for index, (label, colour, is_line) in enumerate(entries):
        x, y = 20 + (index % 4) * 182, top + 20 * (index // 4)
        yield _path(f"M{x} {y + 8}h22", colour) if is_line else _box(x, y, 22, 12, colour)
        yield _text(x + 28, y + 11, label)


def _at(value: float, most: float) -> float:
    return (WIDTH - _LEFT - _RIGHT) * value / most if most > 0 else 0.0


def _document(title: str, height: float, body: Sequence[str]) -> str:
    size = f'width="{WIDTH}" height="{height:.0f}" viewBox="0 0 {WIDTH} {height:.0f}"'
    head = f'<svg xmlns="http://www.w3.org/2000/svg" {size} {_FONT}>'
    ground = '<rect width="100%" height="100%" fill="#ffffff"/>'
    return (
        "\n".join([head, f"<title>{escape(title)}</title>", ground, _text(8, 20, title, bold=True), *body, "</svg>"])
        + "\n"
    )


def _text(x: float, y: float, text: str, *, anchor: str = "start", bold: bool = False) -> str:
    weight = ' font-weight="600"' if bold else ""
    return f'<text x="{x:.1f}" y="{y:.1f}" text-anchor="{anchor}" fill="#222222"{weight}>{escape(text)}</text>'


def _box(x: float, y: float, width: float, height: float, colour: str) -> str:
    return f'<rect x="{x:.1f}" y="{y:.1f}" width="{max(width, 0.5):.1f}" height="{height}" fill="{colour}"/>'


def _path(steps: str, colour: str, *, dashed: bool = False) -> str:
    dashes = ' stroke-dasharray="5 4"' if dashed else ""
    return f'<path d="{steps}" fill="none" stroke="{colour}" stroke-width="1.5"{dashes}/>'
