"""Notebooks run from top to bottom, use public names only, and are committed executed, without errors."""

from __future__ import annotations

import os
import re
from pathlib import Path

import nbformat
import pytest

NOTEBOOKS = sorted((Path(__file__).parent.parent / "notebooks").glob("*.ipynb"))
PUBLIC = {"memopt", "passes", "memopt.models", "memopt.report"}
PUBLIC |= {"numpy", "IPython.display", "matplotlib.figure", "pathlib", "tempfile"}

pytestmark = pytest.mark.parametrize("path", NOTEBOOKS, ids=lambda path: path.stem)


def code_cells(notebook):
    return [cell for cell in notebook.cells if cell.cell_type == "code"]


def test_imports_public_names_only(path):
    for cell in code_cells(nbformat.read(path, 4)):
        for line in cell.source.splitlines():
            match = re.match(r"\s*(?:from (\S+) import (.+)|import (\S+))", line)
            if match:
                assert (match[1] or match[3]) in PUBLIC, line
                assert not re.search(r"\b_\w", match[2] or ""), line


def test_is_committed_executed_and_small(path):
    notebook = nbformat.read(path, 4)
    counts = [cell.execution_count for cell in code_cells(notebook)]
    assert counts == list(range(1, len(counts) + 1))
    assert path.stat().st_size < 400_000
    text = path.read_text(encoding="utf-8")
    assert '"output_type": "error"' not in text
    assert "/home/" not in text
    assert "/root/" not in text


@pytest.mark.slow
def test_runs_from_top_to_bottom(path, tmp_path, monkeypatch):
    from nbclient import NotebookClient

    monkeypatch.setenv("IPYTHONDIR", str(tmp_path))
    root = str(path.parent.parent)
    monkeypatch.setenv("PYTHONPATH", os.pathsep.join(filter(None, [root, os.environ.get("PYTHONPATH")])))
    notebook = nbformat.read(path, 4)
    NotebookClient(
        notebook, timeout=120, kernel_name="python3", resources={"metadata": {"path": str(tmp_path)}}
    ).execute()
