"""The kernels: plain loops over arrays, one file a family of ops, compiled by the runtime on first use.

A kernel is a function `name(*arrays, *scalars) -> int` under `@register_jitable`: callable as it is (its own slow
twin) and from compiled code. It takes outputs first, allocates nothing, and returns 0 or an error status
(`memopt.kernels.abi`). This package imports numba, so only the runtime imports it.
"""
