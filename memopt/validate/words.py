"""How instructions, bytes and contents are called in messages. Nothing here decides anything."""

from __future__ import annotations

from memopt.ir import Value
from memopt.lowering.program import Call, Free, Operand, Program, Rebind, Transfer
from memopt.strides import MOST_RUNS
from memopt.validate.spaces import Content, Image, Place

__all__ = ["Words"]


class Words:
    """The words for one program."""

    def __init__(self, program: Program) -> None:
        self._program = program

    def instruction(self, index: int | None) -> str:
        """`instruction 17 (call conv2 on gpu)`."""
        if index is None:
            return "the start"
        return f"instruction {index} ({self._what(self._program.instructions[index])})"

    def buffer(self, buffer: int) -> str:
        """`buffer #3 (conv2)`."""
        buffers = self._program.buffers
        return f"buffer #{buffer} ({buffers[buffer].name})" if 0 <= buffer < len(buffers) else f"buffer #{buffer}"

    def place(self, place: Place) -> str:
        """`bytes [0, 64) of gpu arena, buffer #3 (conv2)`."""
        return f"{place}, {self.buffer(place.buffer)}"

    def written(self, content: Content) -> str:
        """Where a content comes from: `written by instruction 3 (call relu on host)`, copies traced back."""
        if content.writer is None:
            return "there at the start"
        if content.source is None:
            return f"written by {self.instruction(content.writer)}"
        return f"copied by {self.instruction(content.writer)} from what was {self.written(content.source)}"

    def held(self, content: Content | None) -> str:
        """What bytes hold."""
        if content is None:
            return "nothing that was ever written"
        if content.value is None:
            return f"no value since {self.instruction(content.writer)}"
        fault = f", spoilt: {content.fault}" if content.fault else ""
        name = self.value(content.value, content.root)
        return f"{name} as {self.form(content)} ({self.written(content)}{fault})"

    @staticmethod
    def value(value: Value, root: Value | None) -> str:
        """`%c`, `%v (bytes of %c)`."""
        return f"%{value.name}" if root is value or root is None else f"%{value.name} (bytes of %{root.name})"

    @staticmethod
    def no_view(value: Value, operand: Operand) -> str:
        """`read in strides (1, 4), in which no view of %v lies, nor was it written`."""
        return f"read in strides {operand.strides}, in which no view of %{value.name} lies, nor was it written"

    @staticmethod
    def no_strides(operand: Operand) -> str:
        """`written in strides (1, 1), in which elements share bytes or are in more than 1024 runs`."""
        why = f"elements share bytes or are in more than {MOST_RUNS} runs"
        return f"written in strides {operand.strides}, in which {why}"

    @staticmethod
    def form(image: Image | Content) -> str:
        """`float32`, `float32/NHWC`."""
        return f"{image.dtype}{'/NHWC' if image.layout else ''}"

    @staticmethod
    def _what(instruction: object) -> str:
        match instruction:
            case Call(node=node, device=device):
                return f"call {node} on {device}"
            case Transfer(node=node, kind=kind, source=source, target=target):
                value = getattr(source, "value", "?")
                where = getattr(getattr(target, "placement", None), "device", "?")
                return f"{kind} transfer of %{value} for {node} on {where}"
            case Rebind(node=node, variable=variable, policy=policy):
                return f"rebind of variable {variable} after {node}, {policy}"
            case Free(buffer=buffer):
                return f"free buffer #{buffer}"
        return f"a {type(instruction).__name__}"
