"""Options and profiles: `--update-golden` rewrites golden texts; hypothesis runs as `ci` (derandomized) or `dev`."""

from __future__ import annotations

import os
from collections.abc import Callable
from pathlib import Path

import pytest
from hypothesis import HealthCheck, settings

GOLDEN = Path(__file__).parent / "golden"

_SLOW_START = [HealthCheck.too_slow, HealthCheck.data_too_large]  # the first draw may compile kernels
settings.register_profile("ci", derandomize=True, deadline=None, print_blob=True, suppress_health_check=_SLOW_START)
settings.register_profile("dev", deadline=None, suppress_health_check=_SLOW_START)
settings.load_profile(os.environ.get("HYPOTHESIS_PROFILE", "ci"))


def pytest_addoption(parser: pytest.Parser) -> None:
    parser.addoption("--update-golden", action="store_true", help="write golden texts instead of comparing with them")


@pytest.fixture
def golden(request: pytest.FixtureRequest) -> Callable[[str, str], None]:
    """`golden("passes/name.txt", text)`: compare with the file under tests/golden; a missing file fails."""

    def check(name: str, text: str) -> None:
        path = GOLDEN / name
        if request.config.getoption("--update-golden"):
            path.parent.mkdir(parents=True, exist_ok=True)
            path.write_text(text, encoding="ascii")
        elif not path.exists():
            pytest.fail(f"there is no golden text {name}; run pytest with --update-golden and read what it wrote")
        assert text == path.read_text(encoding="ascii")

    return check
