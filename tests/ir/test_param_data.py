"""S15: the graph's parameter data is its own; what a caller does to the array later changes nothing."""

from __future__ import annotations

import numpy as np

from memopt import GraphBuilder, compile


def test_later_writes_to_the_callers_array_change_nothing():
    for size in (4, 100_000):
        data = np.zeros(size, np.float32)
        b = GraphBuilder("s15")
        b.output(b.neg(b.param("w", data), name="y"))
        graph = b.build()
        plan = compile(graph, ())
        data[0] = 5
        assert plan.run({})["y"][0] == 0
        other = np.ones(size, np.float32)
        graph.set_param("w", other)
        other[0] = 7
        assert compile(graph, ()).run({})["y"][0] == -1
