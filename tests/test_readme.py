"""README's example prints what README shows (errors apart, which depend on the machine's BLAS)."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

from memopt.cli import main

README = Path(__file__).parent.parent / "README.md"


def blocks(language: str) -> list[str]:
    return re.findall(rf"```{language}\n(.*?)```", README.read_text(encoding="utf-8"), re.S)


def figures(text: str) -> list[list[str]]:
    """The table's lines up to the column of errors, as words."""
    lines = [line.split() for line in text.splitlines()]
    start = next(i for i, words in enumerate(lines) if words[:1] == ["strategy"])
    stop = next(i for i, words in enumerate(lines) if words[:1] == ["Sizes"])
    return [words[:-1] if len(words) > 7 else words for words in lines[start + 2 : stop]]


def test_example_is_ten_lines_and_prints_what_is_shown(capsys):
    code = blocks("python")[0]
    assert len([line for line in code.splitlines() if line.strip()]) == 10
    exec(compile(code, "README.md", "exec"), {"__name__": "readme"})
    assert figures(capsys.readouterr().out) == figures(blocks("text")[0])


def test_lines_of_output_fit_80_columns():
    assert all(len(line) <= 80 for text in blocks("text") for line in text.splitlines())


@pytest.mark.slow
def test_the_training_command_prints_what_is_shown(capsys):
    line = next(line for line in "".join(blocks("sh")).splitlines() if "--train" in line)
    assert main(line.split()[1:]) == 0
    printed = capsys.readouterr().out
    shown = next(text for text in blocks("text") if "statistics" in text).splitlines()
    lines = [text.split()[:-1] for text in printed.splitlines()]  # how far off depends on the machine's BLAS
    assert all(text.split()[:-1] in lines for text in shown)
