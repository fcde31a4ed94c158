"""The picture of the README: speed and accuracy of what people use on one popular model, out of the committed table.

``python -m benchmarks.front`` writes ``docs/front.svg``.
"""

from __future__ import annotations

import re
from html import escape
from pathlib import Path

ROOT = Path(__file__).resolve().parents[1]
TABLE = ROOT / "benchmarks" / "results" / "popular.md"
PICTURE = ROOT / "docs" / "front.svg"
MODEL, TITLE, MEASURE = "minilm_l6", "MiniLM-L6, 90 MB, on one thread of an Intel Xeon", "retrieval@1 of unseen verses"
LOST = 0.01
"""Of the measure, which the run may lose."""
WIDTH, HEIGHT, LEFT, RIGHT, TOP, BOTTOM = 720, 380, 70, 30, 56, 60
FASTEST, LEAST, MOST = 5.5, 0.74, 1.0
"""The ends of the axes."""
_ROW = re.compile(r"^\| (\w+) \| ([^|]+) \| ([\d.]+)x \[([\d.]+), ([\d.]+)\] \| [^|]* \| ([\d.]+) \|", re.MULTILINE)


def rows() -> list[tuple[str, float, float, float, float]]:
    """Of each file of the model: its maker, its speed-up with the ends of the interval, and its measure."""
    found = _ROW.findall(TABLE.read_text(encoding="utf8"))
    return [(file, *map(float, numbers)) for model, file, *numbers in found if model == MODEL]


def picture() -> str:
    """The picture as SVG, readable on a light and on a dark page."""
    points = rows()
    bound = next(measure for file, _, _, _, measure in points if file == "float") - LOST
    parts = [
        f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {WIDTH} {HEIGHT}" role="img" '
        'font-family="Helvetica, Arial, sans-serif" font-size="13" fill="#1f2933">',
        f"<title>{escape(TITLE)}: speed-up over float, and {escape(MEASURE)}</title>",
        f'<rect width="{WIDTH}" height="{HEIGHT}" rx="8" fill="#ffffff"/>',
        f'<text x="{LEFT}" y="24" font-size="15" font-weight="bold">{escape(TITLE)}</text>',
        f'<text x="{LEFT}" y="43">{escape(MEASURE)}, upwards; speed-up over float, to the right</text>',
        f'<rect x="{LEFT}" y="{_y(MOST):.1f}" width="{_x(FASTEST) - LEFT:.1f}" height="{_y(bound) - _y(MOST):.1f}" '
        'fill="#e3f4e8"/>',
        f'<text x="{_x(FASTEST) - 6:.1f}" y="{_y(MOST) - 6:.1f}" text-anchor="end" fill="#2f6b41">'
        "within the bound</text>",
    ]
    for tick in range(1, 6):
        parts.append(_line(_x(tick), _y(LEAST), _x(tick), _y(LEAST) + 5))
        parts.append(f'<text x="{_x(tick):.1f}" y="{_y(LEAST) + 21:.1f}" text-anchor="middle">{tick}x</text>')
    for percent in range(75, 101, 5):
        parts.append(_line(LEFT - 5, _y(percent / 100), LEFT, _y(percent / 100)))
        parts.append(f'<text x="{LEFT - 9}" y="{_y(percent / 100) + 4:.1f}" text-anchor="end">{percent} %</text>')
    parts += [_line(LEFT, _y(MOST), LEFT, _y(LEAST)), _line(LEFT, _y(LEAST), _x(FASTEST), _y(LEAST))]
    for file, speed, low, high, measure in points:
        own = file == "Inlay"
        colour, x, y = "#c2410c" if own else "#486581", _x(speed), _y(measure)
        below = own or file.endswith("Gemm")  # where the labels leave each other room
        parts.append(f'<line x1="{_x(low):.1f}" y1="{y:.1f}" x2="{_x(high):.1f}" y2="{y:.1f}" stroke="{colour}"/>')
        parts.append(f'<circle cx="{x:.1f}" cy="{y:.1f}" r="{7 if own else 5}" fill="{colour}"/>')
        parts.append(
            f'<text x="{x:.1f}" y="{y + (24 if below else -12):.1f}" text-anchor="middle" fill="{colour}"'
            f"{' font-weight=' + chr(34) + 'bold' + chr(34) if own else ''}>{escape(file)}</text>"
        )
    return "\n".join([*parts, "</svg>", ""])


def _x(speed: float) -> float:
    return LEFT + (speed - 0.5) / (FASTEST - 0.5) * (WIDTH - LEFT - RIGHT)


def _y(measure: float) -> float:
    return TOP + (MOST - measure) / (MOST - LEAST) * (HEIGHT - TOP - BOTTOM)


def _line(x: float, y: float, to_x: float, to_y: float) -> str:
    return f'<line x1="{x:.1f}" y1="{y:.1f}" x2="{to_x:.1f}" y2="{to_y:.1f}" stroke="#9aa5b1"/>'


if __name__ == "__main__":
    PICTURE.write_text(picture(), encoding="utf8")
