"""Imports go downwards only: `python tests/project/test_folders.py` prints the graph of folders.

A folder's graph has the folders next to each other in it; in the package itself its modules, too.
All imports count, in functions and for types as well.  A module that another folder's file names as
text, to be imported when a user asks for it, does not.
"""

from __future__ import annotations

import ast
import re
from collections import defaultdict
from collections.abc import Iterator
from graphlib import CycleError, TopologicalSorter
from itertools import pairwise
from pathlib import Path

import pytest

PACKAGE = Path(__file__).parents[2] / "pycaffe_dist"
# What everything may import, and what imports nothing else.
GROUND_FLOOR = {
    *("atomic", "caffe_modules", "config", "device", "errors", "hdf5", "limits", "log"),
    *("precision", "profiling", "registry", "storage", "threads"),
}

Graph = dict[str, dict[str, list[str]]]  # by importer and imported: "file:line imports module"


def imported(tree: ast.AST, modules: set[str]) -> Iterator[tuple[int, str]]:
    """Return the line and the module of every import of ``modules``."""
    for node in ast.walk(tree):
        names = []
        if isinstance(node, ast.Import):
            names = [alias.name for alias in node.names]
        elif isinstance(node, ast.ImportFrom):
            assert node.level == 0, "relative imports are not followed"
            full = [f"{node.module}.{alias.name}" for alias in node.names]
            names = [name if name in modules else str(node.module) for name in full]
        yield from ((node.lineno, name) for name in names if name in modules)


def neighbours(package: Path, importer: list[str], target: list[str]) -> tuple[str, str] | None:
    """Return the folders that an import joins, or None when one contains the other's file."""
    for depth, (ours, theirs) in enumerate(zip(importer, target)):
        if ours != theirs:
            places = [*importer[:depth], ours], [*target[:depth], theirs]
            if depth and not all(package.joinpath(*place).is_dir() for place in places):
                return None
            return ".".join(places[0]), ".".join(places[1])
    return None


def folder_graph(package: Path) -> Graph:
    """Return which folders import which, and where."""
    parts = {
        path: [p for p in path.relative_to(package).with_suffix("").parts if p != "__init__"]
        for path in sorted(package.rglob("*.py"))
    }
    modules = {".".join([package.name, *place]) for place in parts.values()}
    graph: Graph = defaultdict(lambda: defaultdict(list))
    for path, place in parts.items():
        for line, name in imported(ast.parse(path.read_text()), modules):
            if joined := neighbours(package, place, name.split(".")[1:]):
                where = f"{path.relative_to(package)}:{line} imports {name}"
                graph[joined[0]][joined[1]].append(where)
    return graph


def circle(graph: Graph) -> str:
    """Return the imports of a circle, one a line; empty without one."""
    try:
        TopologicalSorter(graph).prepare()
    except CycleError as error:
        edges = [(above, below) for below, above in pairwise(error.args[1])]
        return "\n".join(line for above, below in edges for line in graph[above][below])
    return ""


def drawn(graph: Graph) -> str:
    """Return a line for each folder, from the top down, with the folders that it imports."""
    order = [*TopologicalSorter(graph).static_order()]
    lines = []
    for folder in reversed(order):
        below = sorted(graph.get(folder, ()), key=order.index, reverse=True)
        lines.append(" ".join([f"{folder:20}", *below]).rstrip())
    return "\n".join(lines)


@pytest.fixture(scope="module")
def graph() -> Graph:
    return folder_graph(PACKAGE)


def test_mpis_first_ranks_are_named_only_where_ranks_start():
    """After losses, MPI_COMM_WORLD still has the lost ranks, and not the new ones."""
    found = {
        path.name: len(uses)
        for path in PACKAGE.rglob("*.py")
        if (uses := re.findall(r"(?<![A-Z0-9]_)COMM_WORLD", path.read_text()))
    }
    assert found == {"mpi.py": 1}


def test_folders_import_downwards_only(graph):
    found = circle(graph)
    assert not found, f"these imports make a circle:\n{found}"


def test_the_ground_floor_imports_nothing_from_above(graph):
    upwards = {
        name: above
        for name in GROUND_FLOOR
        if (above := {below: at for below, at in graph[name].items() if below not in GROUND_FLOOR})
    }
    assert not upwards


@pytest.mark.parametrize(
    "text",
    [
        "import house.upper.room",
        "from house.upper import room",
        "def late():\n    from house.upper.room import door",
        "if TYPE_CHECKING:\n    from house import upper",
    ],
)
def test_a_circle_is_found_and_its_imports_are_named(tmp_path, text):
    house = tmp_path / "house"
    for name, content in [
        ("upper/__init__", ""),
        ("upper/room", "from house.lower.cellar import shelf\nfrom house.upper import room"),
        ("lower/cellar", ""),
        ("lower/deep/well", "import house.lower.cellar"),
    ]:
        path = house / f"{name}.py"
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(content)
    assert drawn(folder_graph(house)).split() == ["upper", "lower", "lower"]
    (house / "lower/cellar.py").write_text(text)
    lines = circle(folder_graph(house)).splitlines()
    assert sorted(line.split(":")[0] for line in lines) == ["lower/cellar.py", "upper/room.py"]


if __name__ == "__main__":
    print(drawn(folder_graph(PACKAGE)))
