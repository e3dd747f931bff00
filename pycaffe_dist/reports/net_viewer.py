"""A net's drawing as one HTML page: zoom, search, and a layer's prototxt beside it."""

from __future__ import annotations

import html
import json
from collections.abc import Sequence

from pycaffe_dist.draw import Graph, svg_element
from pycaffe_dist.net_graph import Node, prototxt

_STYLE = """
body { margin: 0; display: flex; height: 100vh; font: 14px system-ui, sans-serif }
#view { flex: 1; overflow: hidden; cursor: grab; background: #fafafa }
#side { width: 26em; border-left: 1px solid #ccc; padding: .8em; overflow: auto }
#side input { width: 100%; box-sizing: border-box; font-size: 1em; padding: .3em }
#found { color: #666; min-height: 1.4em } pre { white-space: pre-wrap }
g.node { cursor: pointer } g.node.hit path, g.node.hit polygon { stroke: #d00; stroke-width: 3 }
g.node.dim, .dimming g.edge { opacity: .25 }
"""
_SCRIPT = """
const view = document.getElementById('view'), svg = view.querySelector('svg');
const words = document.getElementById('words'), found = document.getElementById('found');
const nodes = [...svg.querySelectorAll('g.node')], whole = svg.viewBox.baseVal;
const full = {x: whole.x, y: whole.y, width: whole.width, height: whole.height};
svg.removeAttribute('width'); svg.removeAttribute('height');
svg.style.width = svg.style.height = '100%';
function look(x, y, width) {
  const height = width * view.clientHeight / view.clientWidth;
  svg.setAttribute('viewBox', `${x} ${y} ${width} ${height}`);
}
function box() { return svg.viewBox.baseVal; }
function start() {
  const width = Math.max(full.width * 1.05, 700);
  look(full.x + (full.width - width) / 2, full.y, width);
}
function zoom(factor, px, py) {
  const b = box(), x = b.x + b.width * px, y = b.y + b.height * py;
  look(x - b.width * factor * px, y - b.height * factor * py, b.width * factor);
}
view.addEventListener('wheel', e => {
  e.preventDefault();
  const r = view.getBoundingClientRect();
  zoom(e.deltaY > 0 ? 1.2 : 1 / 1.2, (e.clientX - r.x) / r.width, (e.clientY - r.y) / r.height);
}, {passive: false});
let from = null;
view.addEventListener('mousedown', e => { from = {x: e.clientX, y: e.clientY, b: {...{
  x: box().x, y: box().y}}}; });
window.addEventListener('mouseup', () => { from = null; });
window.addEventListener('mousemove', e => {
  if (!from) return;
  const scale = box().width / view.clientWidth;
  look(from.b.x - (e.clientX - from.x) * scale, from.b.y - (e.clientY - from.y) * scale,
    box().width);
});
function show(node) {
  document.getElementById('text').textContent = TEXTS[node.id] || '';
  for (const n of nodes) n.classList.toggle('hit', n === node);
}
function go(node) {
  const b = node.getBBox(), now = box(), width = Math.min(now.width, 900);
  const at = svg.querySelector('g.graph').transform.baseVal.consolidate().matrix;
  look(b.x + b.width / 2 + at.e - width / 2, b.y + at.f - 100, width);
  show(node);
}
for (const n of nodes) n.addEventListener('click', () => show(n));
words.addEventListener('input', () => {
  const w = words.value.toLowerCase();
  const hits = nodes.filter(n => w && (TEXTS[n.id] || '').toLowerCase().includes(w));
  for (const n of nodes) n.classList.toggle('dim', w && !hits.includes(n));
  svg.classList.toggle('dimming', !!w);
  found.textContent = w ? `${hits.length} found; Enter goes to the next` : '';
  words.hits = hits; words.next = 0;
});
words.addEventListener('keydown', e => {
  if (e.key === 'Enter' && words.hits && words.hits.length)
    go(words.hits[words.next++ % words.hits.length]);
});
start();
if (location.hash) { words.value = decodeURIComponent(location.hash.slice(1));
  words.dispatchEvent(new Event('input')); if (words.hits[0]) go(words.hits[0]); }
"""


def viewer(title: str, graph: Graph, nodes: Sequence[Node]) -> str:
    """Return the page; raises UsageError without Graphviz.

    The page's address may end in ``#`` and words to search for.
    """
    svg = svg_element(graph.create(format="svg"))
    texts = {f"layer{node.number}": prototxt(node) for node in nodes}
    data = json.dumps(texts).replace("</", "<\\/")
    name = html.escape(title)
    return f"""<!doctype html><html lang="en"><meta charset="utf-8"><title>{name}</title>
<style>{_STYLE}</style><div id="view">{svg}</div>
<div id="side"><input id="words" placeholder="search names, types, settings" autofocus>
<p id="found"></p><p>Wheel: zoom. Drag: move. Click on a layer: its definition.</p>
<pre id="text"></pre></div>
<script>const TEXTS = {data};{_SCRIPT}</script></html>
"""
