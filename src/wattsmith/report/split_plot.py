"""A cut step as a picture: the data side on the left, training on the right, what crosses between them."""

from dataclasses import dataclass
from html import escape
from pathlib import Path

from wattsmith.terms.cut import DATA, TRAINING, Cut, Place
from wattsmith.terms.errors import BadInput, ExtraNeeded, NotWritten
from wattsmith.terms.quantity import format_quantity

FORMATS = (".svg", ".png", ".html")
WIDTH, HEIGHT, COLUMN, ROW, MARGIN = 132, 34, 168, 46, 24  # of a box, of the grid that boxes stand in, and around it
_TRAINING_SHOWN = 24  # nodes of the training half, after those that the data side feeds
_COLOURS = {DATA: ("#dcebfa", "#2b6cb0"), TRAINING: ("#fbe3d6", "#c05621")}
_CROSSING = "#b83280"


@dataclass(frozen=True, slots=True, kw_only=True)
class Box:
    """One node in the picture; its upper left corner."""

    place: Place
    column: int
    row: int

    @property
    def x(self) -> int:
        return MARGIN + self.column * COLUMN

    @property
    def y(self) -> int:
        return 2 * MARGIN + self.row * ROW


def plot_cut(cut: Cut, path: Path) -> None:
    """Draw CUT into PATH: .svg, .png (with matplotlib) or .html, a page that needs nothing else."""
    if path.suffix not in FORMATS:
        raise BadInput(f"a cut is drawn into {', '.join(FORMATS)}, not into {path.name!r}")
    boxes = laid_out(cut)
    try:
        if path.suffix == ".png":
            _draw_png(cut, boxes, path)
        else:
            svg = _svg(cut, boxes)
            path.write_text(svg if path.suffix == ".svg" else _page(cut, svg))
    except OSError as refused:
        raise NotWritten(f"the picture {path} cannot be written: {refused}") from refused


def laid_out(cut: Cut) -> dict[str, Box]:
    """Where each node stands: after all that it takes, and training to the right of all data."""
    shown = _shown(cut)
    names = {one.name for one in shown}
    columns: dict[str, int] = {}
    for side in (DATA, TRAINING):
        first = 0 if side == DATA else 1 + max(columns.values(), default=-1)
        for one in shown:
            if one.side == side:
                before = [columns[name] + 1 for name in one.takes if name in names and name in columns]
                columns[one.name] = max([first, *before])
    rows: dict[str, float] = {}
    boxes: dict[str, Box] = {}
    for column in range(1 + max(columns.values(), default=0)):
        here = [one for one in shown if columns[one.name] == column]
        # A node stands level with what it takes, so that lines cross little.
        wanted = {one.name: _level(one, rows) for one in here}
        for row, one in enumerate(sorted(here, key=lambda place: wanted[place.name])):
            rows[one.name] = row
            boxes[one.name] = Box(place=one, column=column, row=row)
    return boxes


def _shown(cut: Cut) -> list[Place]:
    data = {one.name for one in cut.places if one.side == DATA}
    fed = {one.name for one in cut.places if one.side == TRAINING and (one.could_move or data & set(one.takes))}
    rest = [one.name for one in cut.places if one.side == TRAINING and one.name not in fed][:_TRAINING_SHOWN]
    return [one for one in cut.places if one.name in data or one.name in fed or one.name in rest]


def _level(one: Place, rows: dict[str, float]) -> float:
    known = [rows[name] for name in one.takes if name in rows]
    return sum(known) / len(known) if known else float(len(rows))


def _edges(cut: Cut, boxes: dict[str, Box]) -> list[tuple[Box, Box, int | None]]:
    """Lines from box to box; for those that cross, how many bytes do."""
    sent = {one.name: one.size_bytes for one in cut.crossing}
    found = []
    for end in boxes.values():
        for name in end.place.takes:
            if name in boxes:
                crosses = boxes[name].place.side == DATA and end.place.side == TRAINING
                found.append((boxes[name], end, sent.get(name) if crosses else None))
    return found


def _title(cut: Cut) -> str:
    crossing = format_quantity(cut.bytes_per_step, "memory", 3)
    return f"{cut.data_nodes} nodes on the data side, {cut.training_nodes} with training; {crossing} cross per step"


def _size(boxes: dict[str, Box]) -> tuple[int, int]:
    return (
        max((one.x for one in boxes.values()), default=0) + WIDTH + MARGIN,
        max((one.y for one in boxes.values()), default=0) + HEIGHT + MARGIN,
    )


def _svg(cut: Cut, boxes: dict[str, Box]) -> str:
    width, height = _size(boxes)
    parts = [
        f'<svg xmlns="http://www.w3.org/2000/svg" width="{width}" height="{height}" viewBox="0 0 {width} {height}" '
        'font-family="sans-serif" font-size="11">',
        f'<rect width="{width}" height="{height}" fill="white"/>',
        f'<text x="{MARGIN}" y="{MARGIN}" font-size="14">{escape(_title(cut))}</text>',
    ]
    for start, end, sent in _edges(cut, boxes):
        x1, y1, x2, y2 = start.x + WIDTH, start.y + HEIGHT // 2, end.x, end.y + HEIGHT // 2
        look = 'stroke="#a0aec0"' if sent is None else f'stroke="{_CROSSING}" stroke-width="2.5"'
        bend = max(20, (x2 - x1) // 2)
        parts.append(f'<path d="M{x1},{y1} C{x1 + bend},{y1} {x2 - bend},{y2} {x2},{y2}" fill="none" {look}/>')
        if sent is not None:
            text = format_quantity(sent, "memory", 3)
            parts.append(f'<text x="{x1 + 4}" y="{y1 - 4}" fill="{_CROSSING}">{escape(text)}</text>')
    for one in boxes.values():
        fill, edge = _COLOURS[one.place.side]
        gives = "" if one.place.output_bytes is None else format_quantity(one.place.output_bytes, "memory", 3)
        operator, name = escape(_short(one.place.operator)), escape(_short(one.place.name))
        told = f"{one.place.name}: {one.place.why}" + (f"\n{one.place.line}" if one.place.line else "")
        parts.append(
            f'<g><title>{escape(told)}</title><rect x="{one.x}" y="{one.y}" width="{WIDTH}" height="{HEIGHT}" rx="5" '
            f'fill="{fill}" stroke="{edge}"/><text x="{one.x + 6}" y="{one.y + 14}">{operator}'
            f'</text><text x="{one.x + 6}" y="{one.y + 28}" fill="#4a5568" font-size="9">'
            f"{name} {gives}</text></g>"
        )
    return "\n".join([*parts, "</svg>"])


def _short(text: str) -> str:
    return text if len(text) <= 20 else text[:18] + "…"


def _page(cut: Cut, svg: str) -> str:
    rows = "\n".join(
        f"<tr><td>{escape(one.name)}</td><td>{escape(one.operator)}</td><td>{one.side}</td>"
        f"<td>{'' if one.output_bytes is None else one.output_bytes}</td><td>{escape(one.why)}</td>"
        f"<td>{escape(one.line or '')}</td></tr>"
        for one in cut.places
    )
    notes = "".join(f"<li>{escape(note)}</li>" for note in cut.notes)
    return (
        "<!doctype html><html lang='en'><head><meta charset='utf-8'><title>A step, cut in two</title><style>"
        "body{font-family:sans-serif;margin:1.5em}table{border-collapse:collapse;font-size:13px}"
        "td,th{padding:2px 10px;border-bottom:1px solid #e2e8f0;text-align:left}div{overflow:auto}</style></head><body>"
        f"<h1>A step, cut in two</h1><p>{escape(_title(cut))}.</p><ul>{notes}</ul><div>{svg}</div>"
        "<h2>Nodes</h2><table><tr><th>node</th><th>operator</th><th>runs on</th><th>bytes</th><th>why</th>"
        f"<th>line</th></tr>{rows}</table></body></html>\n"
    )


def _draw_png(cut: Cut, boxes: dict[str, Box], path: Path) -> None:
    try:
        from matplotlib.figure import Figure
        from matplotlib.patches import FancyBboxPatch
    except ImportError as missing:
        raise ExtraNeeded(
            "a .png needs matplotlib: `pip install 'wattsmith[report]'`; .svg and .html do not"
        ) from missing
    width, height = _size(boxes)
    figure = Figure(figsize=(min(width / 96, 200), min(height / 96, 200)))
    axes = figure.add_axes((0, 0, 1, 1))
    axes.set(xlim=(0, width), ylim=(height, 0))
    axes.axis("off")
    axes.text(MARGIN, MARGIN, _title(cut), fontsize=10)
    for start, end, sent in _edges(cut, boxes):
        ends = (start.x + WIDTH, end.x), (start.y + HEIGHT / 2, end.y + HEIGHT / 2)
        axes.plot(*ends, color="#a0aec0" if sent is None else _CROSSING, linewidth=0.8 if sent is None else 2, zorder=0)
        if sent is not None:
            axes.text(ends[0][0] + 4, ends[1][0] - 4, format_quantity(sent, "memory", 3), fontsize=7, color=_CROSSING)
    for one in boxes.values():
        fill, edge = _COLOURS[one.place.side]
        axes.add_patch(FancyBboxPatch((one.x, one.y), WIDTH, HEIGHT, boxstyle="round,pad=0", fc=fill, ec=edge))
        axes.text(one.x + 6, one.y + 14, _short(one.place.operator), fontsize=8)
        axes.text(one.x + 6, one.y + 28, _short(one.place.name), fontsize=6, color="#4a5568")
    figure.savefig(path, dpi=96)
