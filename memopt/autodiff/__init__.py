"""Automatic differentiation: reverse mode on the graph, from the gradient rules of the ops."""

from memopt.autodiff.reverse import GradientBuilder, grad

__all__ = ["GradientBuilder", "grad"]
