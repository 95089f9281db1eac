"""Lowering: where nodes meet devices. Graph + machine -> program.

For each node in order: choose device and kernel (`placement`), bring each data input to where and how the kernel
wants it (`transfers`), place the outputs under the transfer policy (`outputs`); then say when bytes are free
(`frees`). Each step is readable alone, over one program.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

from memopt.devices import Machine, Placement
from memopt.errors import OptionError
from memopt.ir import Graph, Node, Value, Variable
from memopt.lowering.caller import give_to_caller
from memopt.lowering.frees import finish_buffers, insert_frees
from memopt.lowering.gaps import split_at_gaps
from memopt.lowering.outputs import Outputs
from memopt.lowering.placement import Choice, choose, kernel_query
from memopt.lowering.program import Call, Instruction, Operand, Program, Result, TransferPolicy
from memopt.lowering.scope import Draft, Location, Scope
from memopt.lowering.transfers import Transfers
from memopt.ops import DEFAULT_LAYOUT, choose_calls, scratch_bytes, scratch_limit
from memopt.pipeline import Decision

__all__ = ["TRANSFER_POLICIES", "LoweringOptions", "lower"]

TRANSFER_POLICIES: tuple[TransferPolicy, ...] = ("fluid-1.5", "publish", "outer")


@dataclass(frozen=True, slots=True)
class LoweringOptions:
    """transfer           the policy for outputs whose variable is also a transformed input
    free               "eager", or "never" to see what eager freeing earns
    transfer_lifetime  "last-read", or "step": copies live until the end of the step (Fluid)
    share_transfers    whether one transferred copy serves several readers (Fluid: no)
    scratch_bytes      the most scratch that one kernel call may plan for
    outputs            "arena", or "caller": written into arrays of the caller's where that can be
    """

    transfer: TransferPolicy = "publish"
    free: Literal["eager", "never"] = "eager"
    transfer_lifetime: Literal["last-read", "step"] = "last-read"
    share_transfers: bool = False
    scratch_bytes: int = scratch_limit()
    outputs: Literal["arena", "caller"] = "arena"

    def __post_init__(self) -> None:
        for name, choices in (
            ("transfer", TRANSFER_POLICIES),
            ("free", ("eager", "never")),
            ("transfer_lifetime", ("last-read", "step")),
            ("outputs", ("arena", "caller")),
        ):
            if getattr(self, name) not in choices:
                raise OptionError(f"{name}={getattr(self, name)!r} is not one of {', '.join(choices)}")
        if self.scratch_bytes < 0:
            raise OptionError(f"scratch_bytes={self.scratch_bytes} is negative")


def lower(graph: Graph, machine: Machine, options: LoweringOptions) -> tuple[Program, list[Decision]]:
    """The program of `graph` on `machine`, and what lowering decided: shares that dissolved, or followed their lender.

    Raises `PlanError` for a node that is pinned to a device that there is not, or a layout that no kernel has.
    """
    return _Lowering(graph, machine, options).run()


class _Lowering:
    """One lowering in progress."""

    def __init__(self, graph: Graph, machine: Machine, options: LoweringOptions) -> None:
        self.graph, self.machine, self.options = graph, machine, options
        self.instructions: list[Instruction] = []
        self.decisions: list[Decision] = []
        self.scope = Scope(graph)
        self.transfers = Transfers(self.scope, self.instructions, options.share_transfers)
        self.outputs = Outputs(self.scope, options.transfer)

    def run(self) -> tuple[Program, list[Decision]]:
        graph, options = self.graph, self.options
        feeds = tuple(self._enter(value, self.machine.host.name, "feed") for value in graph.inputs)
        lives = graph.param_devices
        params = tuple(
            self._enter(value, lives.get(value.name, self.machine.default), "param") for value in graph.params
        )
        for step, node in enumerate(graph.nodes):
            self._node(step, node)
        finals = tuple(self._last_value(param) for param in params)
        results = tuple(Result(v.name, self.scope.locate(v).operand(self._variable(v), v.name)) for v in graph.outputs)
        copies_to_end = options.transfer_lifetime == "step"
        drafts, instructions = self.scope.drafts, self.instructions
        if options.free == "eager":
            shapes = {value.name: value.shape for value in graph.values}
            whole = frozenset(id for id, draft in enumerate(drafts) if copies_to_end and draft.transfer)
            instructions, moved = split_at_gaps(instructions, drafts, results, shapes, whole)
            results = tuple(moved)
        if options.outputs == "caller":
            self.decisions += give_to_caller(graph, self.machine.host.name, drafts, results)
        instructions = insert_frees(instructions, drafts, (*results, *finals), options.free, copies_to_end)
        program = Program(
            self.machine, tuple(instructions), finish_buffers(instructions, drafts), feeds, params, results, finals,
            options.transfer, options.free, options.scratch_bytes,
        )  # fmt: skip
        return program, self.decisions

    def _enter(self, value: Value, device: str, space: Literal["feed", "param"]) -> Result:
        """A feed or parameter, in an allocation of its own."""
        if space == "feed":
            pinned = self.graph.is_pinned(value)
        else:
            pinned = len(self.graph.storage.values_of(self.graph.storage.variable(value))) == 1
        place = Placement(device, value.dtype, DEFAULT_LAYOUT)
        draft = Draft(
            value.name,
            device,
            space,
            value.nbytes,
            value.nbytes,
            pinned=pinned,
            home=place if space == "param" else None,
        )
        location = Location(self.scope.new_buffer(draft), 0, place)
        self.scope.bind(self.graph.storage.variable(value), location, value.nbytes)
        return Result(value.name, location.operand(self._variable(value), value.name))

    def _node(self, step: int, node: Node) -> None:
        choice = choose(node, self.machine, lambda value: self.scope.locate(value).placement)
        inputs, copies = self._bring(node, choice)
        operands, rebinds = self.outputs.place(node, choice, inputs, copies)
        for copy in self.outputs.taken:
            self.transfers.forget(copy)
        self.outputs.taken.clear()
        strides = tuple(tuple(None if o is None else o.strides for o in side) for side in (inputs, operands))
        device, most = self.machine.device(choice.device), self.options.scratch_bytes
        query = kernel_query(node, device, choice.layout, most, (strides[0], strides[1]))
        calls = None if self.outputs.viewed else choose_calls(node.spec, query)
        host_call = calls is None and not self.outputs.viewed
        scratch = 0 if calls is None else scratch_bytes(node.spec, query)
        self.instructions.append(
            Call(
                node.name, node.op, choice.device, choice.layout, inputs, operands, scratch, host_call, choice.fallback
            )
        )
        self.instructions.extend(rebinds)
        for turn in self.outputs.turns:
            self.decisions.append(
                Decision(
                    "lowering", node.name, (turn.value.name,), turn.kept, turn.reason, turn.num_bytes, step, turn.rule
                )
            )
        self.outputs.turns.clear()

    def _bring(self, node: Node, choice: Choice) -> tuple[tuple[Operand | None, ...], dict[Variable, Location]]:
        """The input operands, and the locations of those that were transformed, by variable."""
        operands: list[Operand | None] = [None] * len(node.inputs)
        copies: dict[Variable, Location] = {}
        done: dict[tuple[Variable, Placement], Location] = {}
        for index, value in node.data_inputs:
            want = choice.inputs[index]
            assert want is not None, "a data input has a placement"
            variable = self.graph.storage.variable(value)
            outer = self.scope.locations[variable]
            place = done.get((variable, want)) or self.transfers.bring(node, value, want)
            done[variable, want] = place
            if place != outer:
                copies.setdefault(variable, place)
            operands[index] = place.operand(variable.name, value.name)
        return tuple(operands), copies

    def _last_value(self, param: Result) -> Result:
        """Bring a parameter's variable home, if it has moved, and say which value it must hold there."""
        value = self.graph.value(param.name)
        last = value
        for other in self.graph.storage.values_of(self.graph.storage.variable(value)):
            if other.producer is not None:
                last = other
        home = param.operand
        self.transfers.bring_home(last, Location(home.buffer, home.offset, home.placement))
        return Result(param.name, Location(home.buffer, home.offset, home.placement).operand(home.variable, last.name))

    def _variable(self, value: Value) -> str:
        return self.graph.storage.variable(value).name
