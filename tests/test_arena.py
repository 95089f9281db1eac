"""The packing problem of an arena: pairs that are kept apart conflict, and nothing else does."""

from __future__ import annotations

import itertools

from hypothesis import given, settings
from hypothesis import strategies as st

from memopt import GraphBuilder, Machine, compile
from memopt.arena import packing_problem
from memopt.packing import lower_bound, pack, validate_packing
from tests.strategies import graphs


def conflicts(problem):
    """Pairs of ids that are live at one time, by the definition."""
    found = set()
    for a, b in itertools.combinations([buffer for buffer in problem.buffers if buffer.size], 2):
        if any(p[0] < q[1] and q[0] < p[1] for p in a.pieces for q in b.pieces):
            found.add((a.id, b.id))
    return found


@given(graphs(max_nodes=12), st.data())
@settings(max_examples=60)
def test_pairs_apart_conflict_and_nothing_else_does(graph, data):
    program = compile(graph, (), pack_seconds=0).program
    plain = packing_problem(program, "host")
    numbers = [int(buffer.id) for buffer in plain.buffers]
    every = list(itertools.combinations(numbers, 2))
    pairs = data.draw(st.lists(st.sampled_from(every), max_size=8)) if every else []
    apart = packing_problem(program, "host", apart=pairs)
    size = {buffer.id: buffer.size for buffer in plain.buffers}
    wanted = {(str(a), str(b)) for a, b in pairs if size[str(a)] and size[str(b)]}
    assert conflicts(apart) == conflicts(plain) | wanted
    assert lower_bound(apart) >= max([size[a] + size[b] for a, b in wanted], default=0)
    assert validate_packing(apart, pack(apart).offsets) == []
    for one, other in zip(plain.buffers, apart.buffers, strict=True):
        assert other.pieces[: len(one.pieces)] == one.pieces or other.pieces[0][0] == one.start


def test_what_is_apart_in_pairs_counts_together():
    b = GraphBuilder()
    value = b.input("x", (4,))
    for _ in range(6):
        value = b.neg(value)
    b.output(value)
    program = compile(b.build(), (), Machine.host_only(alignment=4)).program
    one, two, three = (str(number) for number in (1, 3, 5))
    pairs = [(int(a), int(b)) for a, b in itertools.combinations((one, two, three), 2)]
    assert lower_bound(packing_problem(program, "host", 4)) == 32
    assert lower_bound(packing_problem(program, "host", 4, pairs)) == 48
    assert packing_problem(program, "host", 4, [(90, 91)]) == packing_problem(program, "host", 4)
