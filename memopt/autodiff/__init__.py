"""Automatic differentiation: reverse mode on the graph, from the gradient rules of the ops."""

from memopt.autodiff.reverse import GradientBuilder, grad
from memopt.autodiff.strict import check_saved

__all__ = ["GradientBuilder", "check_saved", "grad"]
