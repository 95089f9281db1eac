"""How commands speak: tables and JSON on standard output, progress on standard error when that is a terminal."""

from __future__ import annotations

import contextlib
import itertools
import json
import math
import sys
from collections.abc import Callable, Iterator, Mapping
from typing import Any

from memopt.report import Table

__all__ = ["progress_bar", "show", "show_json"]


def show(*items: Table | str) -> None:
    """Print tables and text, an empty line between them; coloured in a terminal, plain 80 columns elsewhere."""
    if sys.stdout.isatty():
        from rich.console import Console

        console = Console(highlight=False, soft_wrap=False)
        for i, item in enumerate(items):
            if i:
                console.print()
            console.print(item, markup=False)
    else:
        print("\n\n".join(str(item) for item in items))


def show_json(payload: Mapping[str, Any]) -> None:
    """Print one JSON object; numbers that JSON lacks (nan, inf) become null."""
    print(json.dumps(_finite(payload), indent=2, allow_nan=False))


def _finite(value: Any) -> Any:
    if isinstance(value, float):
        return value if math.isfinite(value) else None
    if isinstance(value, Mapping):
        return {str(key): _finite(item) for key, item in value.items()}
    if isinstance(value, (list, tuple)):
        return [_finite(item) for item in value]
    return value


@contextlib.contextmanager
def progress_bar(total: int) -> Iterator[Callable[[str], None]]:
    """Yields `advance(label)`, to be called before each of `total` pieces of work; silent where stderr is no tty."""
    if not sys.stderr.isatty():
        yield lambda label: None
        return
    from rich.console import Console
    from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeElapsedColumn

    columns = (BarColumn(24), MofNCompleteColumn(), TimeElapsedColumn(), TextColumn("{task.description}"))
    with Progress(*columns, console=Console(stderr=True), transient=True) as progress:
        task = progress.add_task("", total=total)
        begun = itertools.count()

        def advance(label: str) -> None:
            progress.update(task, completed=next(begun), description=label)

        yield advance
