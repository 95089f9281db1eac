"""The command line: `memopt COMMAND ...`. One file a command; each has `add_parser(subparsers)`, which sets `func`.

Exit status: 0 success, 1 where the answer is "no" (an invalid plan, a model that does not fit), 2 for bad usage or bad
input, 130 when interrupted. What memopt raises on purpose is one line on standard error, never a traceback.
"""

from __future__ import annotations

import argparse
import importlib
import importlib.util
import os
import sys
from collections.abc import Sequence

from memopt.cli.options import HelpFormatter
from memopt.errors import CapacityError, ConflictError, DonationError, InfeasibleError, InvalidPlanError, MemoptError

__all__ = ["build_parser", "main"]

_COMMANDS = ("compare", "plan", "run", "explain", "validate", "pack", "order", "models")
_NO = (CapacityError, ConflictError, DonationError, InfeasibleError, InvalidPlanError)
_INTERRUPTED = 130
_BROKEN_PIPE = 141
_DESCRIPTION = """\
Compile a tensor graph into a checked memory plan, and run it: how little memory
does a model need, which pass earned which byte, and is the answer still right
when tensors move between devices?"""
_EPILOG = """\
Start with:
  memopt compare            ResNet-50 on a host and a gpu
  memopt explain resnet18   what lies in memory at the peak, and why
  memopt run model.onnx     plan, validate and run it

Exit status: 0 success, 1 the answer is no, 2 bad usage or bad input."""


def build_parser() -> argparse.ArgumentParser:
    """The parser of all commands."""
    parser = argparse.ArgumentParser(
        prog="memopt", description=_DESCRIPTION, epilog=_EPILOG, formatter_class=HelpFormatter
    )
    parser.add_argument("--version", action="version", version=f"memopt {_version()}")
    subparsers = parser.add_subparsers(title="commands", metavar="COMMAND", required=True)
    for name in _COMMANDS:
        if importlib.util.find_spec(f"memopt.cli.{name}") is not None:
            importlib.import_module(f"memopt.cli.{name}").add_parser(subparsers)
    return parser


def main(argv: Sequence[str] | None = None) -> int:
    """Run one command and return its exit status."""
    for stream in (sys.stdout, sys.stderr):
        if hasattr(stream, "reconfigure"):
            stream.reconfigure(errors="backslashreplace")
    try:
        args = build_parser().parse_args(argv)
        status = int(args.func(args) or 0)
        sys.stdout.flush()
        return status
    except SystemExit as stop:  # argparse: 0 after --help, 2 on bad usage
        return stop.code if isinstance(stop.code, int) else 2
    except KeyboardInterrupt:
        return _INTERRUPTED
    except BrokenPipeError:
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())  # so that the flush at exit has somewhere to go
        return _BROKEN_PIPE
    except MemoptError as error:
        return _fail(str(error), 1 if isinstance(error, _NO) else 2)
    except MemoryError:
        return _fail("this needs more memory than the machine has", 1)
    except OSError as error:
        name = f" {error.filename!r}" if error.filename else ""
        return _fail(f"cannot access{name}: {error.strerror or error}", 2)


def _fail(message: str, status: int) -> int:
    print("memopt: error:", " ".join(message.split()), file=sys.stderr)
    return status


def _version() -> str:
    from importlib.metadata import PackageNotFoundError, version

    try:
        return version("memopt")
    except PackageNotFoundError:
        return "(not installed)"
