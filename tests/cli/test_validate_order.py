"""`memopt validate --order any`: right as listed is not right in every order, unless the plan was made for that."""

from __future__ import annotations

import pytest

from memopt.cli import main


@pytest.mark.parametrize(
    ("made", "asked", "status"), [("listed", "listed", 0), ("listed", "any", 1), ("any", "any", 0)]
)
def test_order(made, asked, status, tmp_path, capsys):
    path = str(tmp_path / "plan.json")
    assert main(["plan", "resnet18", "--image", "32", "--order", made, "-o", path]) == 0
    assert main(["validate", path, "--order", asked]) == status
    out = capsys.readouterr().out
    assert ("WRONG" in out) == bool(status)
    assert ("unordered" in out) == bool(status)
    assert ("every order" in out) == (asked == "any" and not status)
