"""Run the notebooks in docs/examples/ and write them with their outputs.

usage: scripts/run_notebooks.py [NOTEBOOK…]

Run it after a change to one (``make notebooks``).  Needs nbclient and ipykernel, which the extra
docs brings.
"""

from __future__ import annotations

import sys
import tempfile
from pathlib import Path

import nbformat
from nbclient import NotebookClient

EXAMPLES = Path(__file__).resolve().parent.parent / "docs" / "examples"


def run(path: Path) -> str:
    """Return a notebook's text with the outputs of a run in an empty folder."""
    notebook = nbformat.read(path, as_version=4)
    # As in Jupyter, the folder of the notebook is on the path of its kernel.
    first = nbformat.v4.new_code_cell(f"import sys; sys.path.insert(0, {str(path.parent)!r})")
    notebook.cells.insert(0, first)
    with tempfile.TemporaryDirectory() as folder:
        options = {"record_timing": False, "timeout": 600, "kernel_name": "python3"}
        NotebookClient(notebook, resources={"metadata": {"path": folder}}, **options).execute()
    del notebook.cells[0]
    for cell in notebook.cells:
        if cell.cell_type == "code":
            # The cell above is not there for the reader.
            cell.execution_count -= 1
            # Warnings are about this machine, not about the notebook.
            cell.outputs = [output for output in cell.outputs if output.get("name") != "stderr"]
            for output in cell.outputs:
                if "execution_count" in output:
                    output.execution_count -= 1
    # The machine's own Python says nothing about the notebook.
    notebook.metadata["language_info"] = {"name": "python"}
    return nbformat.writes(notebook) + "\n"


if __name__ == "__main__":
    for path in map(Path, sys.argv[1:] or sorted(EXAMPLES.glob("*.ipynb"))):
        print(path)
        path.write_text(run(path.resolve()))
