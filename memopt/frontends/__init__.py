"""Frontends: from a file, a model object or a name to a `Graph`. `load` is the door."""

from memopt.frontends.door import load

__all__ = ["load"]
