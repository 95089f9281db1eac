"""What the package promises as a whole: what it imports, and the picture."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest

from memopt.errors import OptionError, PackingInputError
from memopt.packing import PackingBuffer, PackingProblem, pack, plot_packing

SMALL = PackingProblem(
    tuple(PackingBuffer(f"b{i}", 100 + i, i, i + 3, gaps=((i + 1, i + 2),) if i == 2 else ()) for i in range(6))
)


def test_neither_the_import_nor_a_small_plan_at_the_bound_loads_numba() -> None:
    code = (
        "import sys\n"
        "from memopt.packing import PackingBuffer, PackingProblem, pack\n"
        "rows = tuple(PackingBuffer(str(i), 8, i, i + 3) for i in range(40))\n"
        "assert pack(PackingProblem(rows), effort='prove').status == 'optimal'\n"
        "print(sorted({'numba', 'matplotlib', 'rich', 'scipy'} & set(sys.modules)))\n"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True, timeout=120)
    assert done.stdout.strip() == "[]"


def test_the_sources_import_errors_and_types_only() -> None:
    import memopt.packing

    for path in Path(memopt.packing.__file__).parent.glob("*.py"):
        for line in path.read_text().splitlines():
            words = line.split()
            if words[:1] in (["from"], ["import"]) and words[1].startswith("memopt"):
                assert words[1].startswith(("memopt.packing", "memopt.errors", "memopt.types")), f"{path.name}: {line}"


def test_the_picture(tmp_path: Path) -> None:
    pytest.importorskip("matplotlib")
    path = tmp_path / "plan.png"
    plot_packing(pack(SMALL), path)
    assert path.read_bytes().startswith(b"\x89PNG")
    plot_packing(pack(PackingProblem(())), path)
    with pytest.raises(OptionError, match="the ending is not one of"):
        plot_packing(pack(SMALL), tmp_path / "plan.txt")
    clash = PackingProblem((PackingBuffer("a", 4, 0, 2, offset=0), PackingBuffer("b", 4, 0, 2, offset=2)))
    with pytest.raises(PackingInputError, match="nothing to draw"):
        plot_packing(pack(clash), path)


def test_without_matplotlib_the_error_says_what_to_install(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "matplotlib.figure", None)
    with pytest.raises(OptionError, match=r"pip install 'memopt\[plot\]'"):
        plot_packing(pack(SMALL), tmp_path / "plan.png")
