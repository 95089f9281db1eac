"""Graphs that broke real systems, as ONNX files, and the values that they must give.

S09, S11, S19, S30 B, S35, S39, S40, S41, S42, and S51, which is refused by name as all control flow is.
"""

from __future__ import annotations

import numpy as np
import onnx
import pytest
from onnx import ModelProto, TensorProto, helper

from memopt import Plan, compile, load
from memopt.errors import FeedError, LoadError, UnsupportedOpError
from tests.frontends.onnx_models import info, model, node
from tests.hazards.line import STRATEGIES, give, right_everywhere


def every(proto: ModelProto, **dims: int) -> list[tuple[str, Plan]]:
    """A plan of each strategy."""
    return [(name, compile(load(proto, dims=dims), strategy)) for name, strategy in STRATEGIES.items()]


def three_runs(plan: Plan, feeds: dict[str, np.ndarray], label: str) -> dict[str, np.ndarray]:
    """The results, which are the same bits three times, whatever is done to them in between."""
    first = {name: array.copy() for name, array in plan.run(feeds).items()}
    for _ in range(2):
        again = plan.run(feeds)
        assert {name: array.tobytes() for name, array in again.items()} == {
            name: array.tobytes() for name, array in first.items()
        }, label
        for array in again.values():
            array[...] = 0
    return first


# -- outputs and weights ----------------------------------------------------------------------------------------------


def test_s09_a_name_that_is_listed_twice():
    """A valid file has each output once; one that has y twice is read as one that has it once."""
    proto = model([node("Mul", ["x", "two"])], {"x": (2,)}, ("y", "y"), {"two": np.float32([2, 2])})
    for label, plan in every(proto):
        assert list(plan.run(give(x=[1, 2]))) == ["y"], label
        assert plan.run(give(x=[1, 2]))["y"].tolist() == [2, 4], label


def test_s11_weights_that_are_outputs_and_equal_scalars():
    weights = {"w": np.float32([1, 2]), "c1": np.float32(3), "c2": np.float32(3)}
    proto = model([node("Add", ["x", "c2"])], {"x": (2,)}, ("w", "c1", "y"), weights)
    for label, plan in every(proto):
        got = three_runs(plan, give(x=[1, 2]), label)
        assert [array.tolist() for array in got.values()] == [[1, 2], 3, [4, 5]], label
        out = {"w": np.zeros(2, np.float32), "c1": np.zeros((), np.float32)}
        plan.run(give(x=[1, 2]), out=out)
        assert (out["w"].tolist(), float(out["c1"])) == ([1, 2], 3), label


@pytest.mark.parametrize("weights_too", [False, True])
def test_s19_a_folded_reshape_of_a_weight_that_goes(weights_too):
    """k = reshape(w) is folded, and w is dropped (or an output as well): k owns its bytes."""
    proto = model(
        [node("Reshape", ["w", "to"], ["k"]), node("Add", ["x", "k"])],
        {"x": (2, 2)},
        ("y", "k", "w") if weights_too else ("y",),
        {"w": np.float32([1, 2, 3, 4]), "to": np.int64([2, 2])},
    )
    graph = load(proto)
    assert [param.name for param in graph.params] == (["k", "w"] if weights_too else ["k"])
    kept = graph.param_data("k")
    assert kept is not None
    proto.graph.initializer[0].raw_data = bytes(16)  # the file's weight is gone
    assert kept.tolist() == [[1, 2], [3, 4]]
    if weights_too:
        assert not np.shares_memory(kept, graph.param_data("w"))
    right_everywhere(graph, give(x=[[1, 1], [1, 1]]), lambda x: {"y": x + kept}, lacks="Add")


# -- shapes -----------------------------------------------------------------------------------------------------------


def test_s30_b_an_unknown_dim_is_never_compared():
    """Nothing is planned while a dim is open; once it is known, three elements are not 3072."""
    nodes = [node("Relu", ["one"], ["i"]), node("Div", ["i", "x"])]
    proto = model(nodes, {"one": ("n", 3, 1, 1), "x": ("m", 3, "h", "w")})
    with pytest.raises(LoadError, match="dims=") as raised:
        load(proto)
    assert all(f'"{name}": 1' in str(raised.value) for name in "nmhw")
    graph = load(proto, dims={"n": 1, "m": 1, "h": 32, "w": 32})
    feeds = {
        "one": np.ones((1, 3, 1, 1), np.float32),
        "x": np.linspace(1, 2, 3072, dtype=np.float32).reshape(1, 3, 32, 32),
    }
    right_everywhere(graph, feeds, lambda one, x: {"y": one / x}, lacks="Div")
    (decision,) = [d for d in compile(graph, "share").decisions if d.subject == ("y", "i")]
    assert not decision.accepted


def test_s35_a_scalar_is_no_unknown_shape():
    nodes = [node("ReduceSum", ["x"], ["s"], keepdims=0), node("Mul", ["x", "s"])]
    proto = model(nodes, {"x": (3,)}, ("y", "s"))
    proto.graph.value_info.append(info("s", ()))
    graph = load(proto)
    assert (graph.value("s").shape, graph.value("s").nbytes) == ((), 4)
    right_everywhere(graph, give(x=[1, 2, 3]), lambda x: {"y": x * x.sum(), "s": x.sum()}, lacks="ReduceSum")
    for label, plan in every(proto):
        planned = {operand.value for call in plan.program.instructions for operand in getattr(call, "outputs", ())}
        assert planned == {"s", "y"}, label


def test_s39_a_dim_without_a_bound_is_not_planned():
    proto = model([node("Neg", ["x"])], {"x": ("n", 3, 4, 4)})
    with pytest.raises(LoadError, match="n") as raised:
        load(proto)
    assert "dims" in str(raised.value)
    x = np.linspace(-1, 1, 96, dtype=np.float32).reshape(2, 3, 4, 4)
    for label, plan in every(proto, n=2):
        np.testing.assert_array_equal(plan.run({"x": x})["y"], -x, err_msg=label)
        with pytest.raises(FeedError, match="x"):
            plan.run({"x": x[:1]})


def test_s39_the_most_that_a_dim_can_be_is_reserved():
    """A plan is for one shape: that of the bound takes 640 B, and a larger feed is refused."""
    proto = model([node("Neg", ["t"])], {"t": ("m", 8)})
    for label, plan in every(proto, m=20):
        assert [buffer.size_bytes for buffer in plan.program.buffers if buffer.name == "t"] == [640], label
        with pytest.raises(FeedError, match=r"'t' is f(loat)?32\[20, ?8\], not float32\[21, ?8\]"):
            plan.run({"t": np.zeros((21, 8), np.float32)})


@pytest.mark.parametrize(
    ("to", "allowzero", "shape"),
    [((0, 0, -1), 0, (2, 3, 20)), ((2, -1), 0, (2, 60)), ((-1, 0), 0, (40, 3)), ((0, 3, 4, 5), 0, (2, 3, 4, 5))],
)
def test_s40_a_reshape_by_symbols(to, allowzero, shape):
    nodes = [node("Reshape", ["x", "s"], allowzero=allowzero)]
    proto = model(nodes, {"x": ("a", "b", 4, 5)}, weights={"s": np.int64(to)})
    x = np.arange(120, dtype=np.float32).reshape(2, 3, 4, 5)
    graph = load(proto, dims={"a": 2, "b": 3})
    assert graph.outputs[0].shape == shape
    right_everywhere(graph, {"x": x}, lambda x: {"y": x.reshape(shape)}, lacks="Reshape")


def test_s40_a_rest_beside_nothing():
    """-1 together with a literal 0 means nothing, and is refused; a literal 0 alone is a size."""
    for to, good in (((-1, 0), False), ((0, 5), True)):
        proto = model([node("Reshape", ["x", "s"], allowzero=1)], {"x": (0, 3)}, weights={"s": np.int64(to)}, opset=18)
        if good:
            assert load(proto).outputs[0].shape == to
        else:
            with pytest.raises(LoadError, match="Reshape"):
                load(proto)


# -- what has no bytes here -------------------------------------------------------------------------------------------


def branch(name: str, *nodes: onnx.NodeProto) -> onnx.GraphProto:
    return helper.make_graph(list(nodes), name, [], [info("b", None)])


@pytest.mark.parametrize("depth", [1, 2])
def test_s40_and_s51_branches_are_refused_by_name(depth):
    """Branches of [1, 3] and [3], and a branch that reshapes there and back: no plan, and the message says where."""
    there = branch("there", node("Unsqueeze", ["x", "zero"], ["b"]))
    back = branch("back", node("Reshape", ["x", "flat"], ["r"]), node("Reshape", ["r", "three"], ["b"]))
    for _ in range(depth - 1):
        there = branch("outer", node("If", ["c"], ["b"], then_branch=there, else_branch=back, name="inner"))
    nodes = [node("If", ["c"], ["f"], then_branch=there, else_branch=back, name="choice"), node("Neg", ["f"])]
    weights = {"zero": np.int64([0]), "flat": np.int64([-1]), "three": np.int64([3])}
    proto = model(nodes, {"x": (3,), "c": np.array(True)}, weights=weights)
    where = "once: choice" if depth == 1 else "2 times: choice, inner"
    with pytest.raises(UnsupportedOpError, match=rf"If \({where}\): it holds a subgraph"):
        load(proto)


def test_s41_strings_and_sequences_are_refused_by_name():
    proto = model([node("SplitToSequence", ["t"], ["q"], axis=0), node("SequenceAt", ["q", "i"])], {"i": np.array(0)})
    proto.graph.input.append(helper.make_tensor_value_info("t", TensorProto.STRING, [2]))
    with pytest.raises(UnsupportedOpError) as raised:
        load(proto)
    assert "t): its element type is STRING" in str(raised.value)
    assert "SplitToSequence" in str(raised.value)
    assert "SequenceAt" in str(raised.value)


def test_s42_an_optional_input_that_is_skipped():
    """Clip(x, "", 1) has a maximum and no minimum; a mask that nobody asked for has no buffer."""
    nodes = [
        node("Clip", ["x", "", "one"], ["c"]),
        node("Dropout", ["c", "", "no"], ["y"]),
        node("Dropout", ["c"], ["z", "mask"]),
    ]
    proto = model(nodes, {"x": (2,)}, ("y", "z", "mask"), {"one": np.float32(1), "no": np.array(False)})
    proto.graph.output[2].type.tensor_type.elem_type = TensorProto.BOOL
    graph = load(proto)
    for label, plan in every(proto):
        got = three_runs(plan, give(x=[-5, 5]), label)
        assert [array.tolist() for array in got.values()] == [[-5, 1], [-5, 1], [True, True]], label
        assert got["mask"].dtype == np.bool_
    assert [len(node.outputs) for node in graph.nodes if node.op == "Dropout"] == [1, 2]
