"""The bar chart of cpu.py, as an SVG text."""

from __future__ import annotations

from statistics import median
from xml.sax.saxutils import escape

COLOURS = {"pcaffe": "#1b6ca8", "PyTorch": "#d9822b", "Caffe": "#7a7a7a"}
BAR, GAP, LEFT, WIDTH = 18, 22, 130, 420


def chart(nets: dict[str, dict[str, list[float]]]) -> str:
    """Return bars of each framework's time over ours, net by net; ``nets`` holds their seconds."""
    rows = [
        (net, who, median(times), median(times) / median(wall["pcaffe"]))
        for net, wall in nets.items()
        for who, times in wall.items()
    ]
    longest = max((ratio for *_, ratio in rows), default=1.0)
    parts, y, last = [], 40, ""
    for net, who, seconds, ratio in rows:
        if net != last:
            y, last = y + GAP, net
            parts.append(f'<text x="8" y="{y + 13}" font-weight="bold">{escape(net)}</text>')
        length = WIDTH * ratio / longest
        label = f"{who} {1e3 * seconds:.1f} ms" + (f" ({ratio:.2f}×)" if who != "pcaffe" else "")
        parts.append(
            f'<rect x="{LEFT}" y="{y}" width="{length:.1f}" height="{BAR - 4}" '
            f'fill="{COLOURS[who]}"/>'
            f'<text x="{LEFT + length + 6:.1f}" y="{y + 12}">{label}</text>'
        )
        y += BAR
    title = "Time of a training iteration, relative to pcaffe (less is better)"
    return (
        f'<svg xmlns="http://www.w3.org/2000/svg" width="{LEFT + WIDTH + 190}" height="{y + 20}" '
        f'font-family="sans-serif" font-size="12"><rect width="100%" height="100%" fill="white"/>'
        f'<text x="8" y="24" font-size="15">{title}</text>{"".join(parts)}</svg>\n'
    )
