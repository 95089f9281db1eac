"""`memopt pack`, in process."""

from __future__ import annotations

import argparse
import io
import json
from pathlib import Path

import pytest

from memopt.cli import pack as command
from memopt.errors import OptionError, PackingInputError
from memopt.packing import parse_offsets, read_csv, validate_packing, write_csv
from tests.packing.problems import guillotine

TEXT = "id,lower,upper,size\na,0,4,800\nb,2,6,1600\nc,4,8,800\n"


@pytest.fixture
def file(tmp_path: Path) -> str:
    path = tmp_path / "problem.csv"
    path.write_text(TEXT)
    return str(path)


def run(*argv: str) -> int:
    parser = argparse.ArgumentParser()
    command.add_parser(parser.add_subparsers())
    args = parser.parse_args(["pack", *argv])
    return int(args.func(args))


def test_json(file: str, capsys: pytest.CaptureFixture[str]) -> None:
    assert run(file, "--json") == 0
    plan = json.loads(capsys.readouterr().out)
    assert (plan["height"], plan["lower_bound"], plan["status"]) == (2400, 2400, "optimal")
    assert set(plan) >= {"height", "lower_bound", "status", "seconds", "offsets"}
    validate_packing(read_csv(file), plan["offsets"], capacity=2400)


def test_the_table_fits_80_columns(file: str, capsys: pytest.CaptureFixture[str]) -> None:
    assert run(file, "--capacity", "2KiB", "--effort", "prove") == 1
    out = capsys.readouterr().out
    assert "infeasible" in out
    assert "above the capacity by 352" in out
    assert "impossible because of: %a [0, 4): 800, %b [2, 6): 1,600" in out
    assert max(map(len, out.splitlines())) <= 80


def test_files_are_written(file: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    pytest.importorskip("matplotlib")
    placed, picture = tmp_path / "placed.csv", tmp_path / "plan.svg"
    assert run(file, "-o", str(placed), "--plot", str(picture), "--effort", "fast") == 0
    assert "wrote" in capsys.readouterr().out
    validate_packing(read_csv(file), parse_offsets(placed.read_text()))
    assert "<svg" in picture.read_text()


def test_pins_and_standard_input(capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch) -> None:
    text = "0,4,800,a,3200\n2,6,1600,b,\n"
    for options, height in (((), 2400), (("--pins",), 4000)):
        monkeypatch.setattr("sys.stdin", io.StringIO(text))
        assert run("-", "--columns", "lower,upper,size,id,offset", "--json", *options) == 0
        assert json.loads(capsys.readouterr().out)["height"] == height


def test_pins_that_clash_are_infeasible(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    path = tmp_path / "clash.csv"
    path.write_text("id,lower,upper,size,offset\na,0,4,8,0\nb,0,4,8,4\n")
    assert run(str(path), "--pins", "--plot", str(tmp_path / "p.png"), "-o", str(tmp_path / "o.csv")) == 1
    assert "pinned buffers %a and %b overlap" in capsys.readouterr().out
    assert not (tmp_path / "o.csv").exists()


def test_bad_input_and_bad_options_raise_what_the_main_command_turns_into_status_2(file: str, tmp_path: Path) -> None:
    path = tmp_path / "bad.csv"
    path.write_text("a,0,4,x\n")
    with pytest.raises(PackingInputError, match=r"bad.csv, line 1, column 4 \(size\): 'x' is not an integer"):
        run(str(path))
    with pytest.raises(OptionError):
        run(file, "--capacity", "much")
    with pytest.raises(SystemExit) as stop:
        run(file, "--effort", "most")
    assert stop.value.code == 2


def test_progress_is_silent_where_standard_error_is_no_terminal(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    path = tmp_path / "hard.csv"
    write_csv(path, guillotine(40, 2))
    assert run(str(path), "--json") == 0
    captured = capsys.readouterr()
    assert json.loads(captured.out)["status"] == "optimal"
    assert captured.err == ""


def test_progress_on_a_terminal(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    class Terminal(io.StringIO):
        def isatty(self) -> bool:
            return True

    path = tmp_path / "hard.csv"
    write_csv(path, guillotine(60, 4))
    screen = Terminal()
    monkeypatch.setattr("sys.stderr", screen)
    assert run(str(path), "--json", "--seed", "1") == 0
    assert "the bound" in screen.getvalue()
