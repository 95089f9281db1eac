"""`python -m memopt`."""

from __future__ import annotations

import sys

from memopt.cli import main

if __name__ == "__main__":
    sys.exit(main())
