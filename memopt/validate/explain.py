"""Why do bytes not hold what they should? From the pieces that were found to one finding.

The order of the questions is the contract: never written · not computed yet · the right value in another form · an
older value of the same variable (a lost update) · was here and was overwritten · anything else is stale. Of a view that
was reported to be none, no reading is reported again.
"""

from __future__ import annotations

from memopt.ir import Value
from memopt.validate.findings import Finding
from memopt.validate.spaces import Content, Image, Piece, Pieces, Place
from memopt.validate.state import State

__all__ = ["check_holds"]


def check_holds(state: State, place: Place, value: Value, pieces: Pieces, end: str = "") -> bool:
    """Whether the place holds `pieces`, those of `value`; else reports why not, once.

    `end` is the kind to report at the end of the program ("lost-output", …); "" while it runs.
    """
    return all(
        _piece_holds(state, place._replace(lo=lo, hi=hi), value, piece, end)
        for lo, hi, piece in pieces
    )


def _piece_holds(state: State, place: Place, value: Value, image: Image, end: str) -> bool:
    wanted = place.lo, place.hi, image
    if state.holds(place, [wanted]):
        return True
    pieces = place.space.read(place.lo, place.hi)
    bad = next(piece for piece in pieces if not state.is_of(piece, wanted))
    some = any(state.is_of(piece, wanted) for piece in pieces)
    kind = _kind(state, value, image, place, bad)
    if kind == "clobbered" and some:
        kind = "partial-overwrite"
    message = _message(state, value, image, place, (kind, bad))
    if end and not (end == "lost-output" and kind == "lost-update"):
        kind = end
    culprit = bad.content.writer if bad.content is not None else None
    node = str(getattr(state.program.instructions[state.index], "node", "")) if state.index is not None else ""
    finding = Finding(kind, state.index, value.name, message, node, place.space.device, culprit, bad.lo, bad.hi)
    never = ("false-view", value)
    state.report.add(finding, never if state.report.knows(never) else (kind, value, culprit, bool(end)))
    return False


def _kind(state: State, value: Value, image: Image, place: Place, bad: Piece) -> str:
    held = bad.content
    was_here = _was_here(state, image, place, bad) is not None
    if held is None or held.root is None:
        return "clobbered" if was_here else "read-before-write"
    if image.root not in state.writes and image.root not in state.views:
        return "read-before-write"
    if held.root is image.root and (held.fault or (held.dtype, held.layout) != (image.dtype, image.layout)):
        return "wrong-form"
    if _older(state, value, held.root):
        return "lost-update"
    return "clobbered" if was_here else "stale-read"


def _was_here(state: State, image: Image, place: Place, bad: Piece) -> Content | None:
    """The last content of the wanted value that was written to the bad bytes through the same buffer."""
    for content in reversed(state.writes.get(image.root, ())):
        here = content.place.buffer == place.buffer and content.place.lo < bad.hi and bad.lo < content.place.hi
        if here and content.at - content.place.lo == image.at - place.lo and content.layout == image.layout:
            return content
    return None


def _older(state: State, value: Value, held: Value) -> bool:
    """Whether `held` is an older value of the variable of `value`, by the graph's storage or by its updates."""
    storage = state.graph.storage
    if value not in storage:
        return False
    variable = storage.variable(value)
    for other in state.images.same_content(held):
        if (
            other is not value
            and other in storage
            and storage.variable(other) is variable
            and _precedes(state, other, value)
        ):
            return True
    return False


def _precedes(state: State, first: Value, second: Value) -> bool:
    """Whether `first` is defined before `second`, in the order in which the program ran their nodes."""
    if first.producer is None:
        return second.producer is not None
    if second.producer is None or first.producer is second.producer:
        return False
    called = state.called
    return called.get(first.producer, -1) < called.get(second.producer, -1)


def _message(state: State, value: Value, image: Image, place: Place, what: tuple[str, Piece]) -> str:
    kind, bad = what
    words = state.words
    reader = "at the end" if state.index is None else state.here
    text = f"{reader} wants {words.value(value, image.root)} as {words.form(image)} in {words.place(place)}"
    span = "they hold" if (bad.lo, bad.hi) == (place.lo, place.hi) else f"bytes [{bad.lo}, {bad.hi}) hold"
    text += f"; {span} {words.held(bad.content)}"
    if bad.content is not None and bad.content.place.buffer != place.buffer:
        text += f" through {words.buffer(bad.content.place.buffer)}"
    was = _was_here(state, image, place, bad)
    if kind in ("clobbered", "partial-overwrite") and was is not None:
        return f"{text}; %{image.root.name} was here, {words.written(was)}, and has been overwritten"
    return text + _whereabouts(state, value, image)


def _whereabouts(state: State, value: Value, image: Image) -> str:
    """Where the wanted value went, and which rebind hid it."""
    written = [content for content in state.writes.get(image.root, ()) if not content.fault]
    if not written and image.root in state.views:
        return f"; %{image.root.name} is a view there, and was never written in this order"
    if not written:
        return f"; %{image.root.name} has not been computed yet"
    first = written[0]
    text = f"; %{image.root.name} was {'' if first.writer is not None else 'there at the start, in '}"
    text += f"written by {state.words.instruction(first.writer)} to " if first.writer is not None else ""
    text += state.words.place(first.place)
    hidden = _hidden_by(state, value, first)
    if hidden is not None:
        index, target = hidden
        text += f", and lost when {state.words.instruction(index)} made the variable mean {target}"
    return text


def _hidden_by(state: State, value: Value, lost: Content) -> tuple[int, str] | None:
    """The first rebind of the value's variable after it was written, to bytes elsewhere."""
    if value not in state.graph.storage or lost.writer is None:
        return None
    for index, rebind in state.rebinds.get(state.graph.storage.variable(value).name, ()):
        if index > lost.writer:
            return index, state.words.buffer(rebind.target.buffer)
    return None
