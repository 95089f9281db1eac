"""The generator of elementwise loops: from an expression over x0, x1, … and s0, s1, … to the text of a kernel.

The expression may be several: "t0 = exp(x0); mul(t0, t0)" names results on the way to the last one, which counts.

"flat": every operand has as many elements as the output; the scalars are the expression's s0, s1, …
"broadcast<r>_<steps>": r nested loops; `steps` says for each input how it steps along the innermost one: "1" (by one
element), "0" (not at all) or "s" (by its stride; then the two inner loops run in tiles). The scalars are the r extents,
then for each input its r strides in elements, then s0, s1, …

Holds true: an element is written after all operands of its block were read, so the output may be the same bytes as any
input that has its shape (and element width); in place and out of place give the same bits.
"""

from __future__ import annotations

import ast
import re
from collections.abc import Set
from typing import TYPE_CHECKING

from memopt.errors import OptionError

if TYPE_CHECKING:
    from memopt.ops.spec import KernelCall

__all__ = ["loop_text"]

#: Conversions that an expression may call: NumPy's scalar types (a float that does not fit an integer gives any value).
_CONVERSIONS = frozenset({
    "bool_", "float32", "float64", "int8", "int16", "int32", "int64", "uint8", "uint16", "uint32", "uint64",
})  # fmt: skip

_FLAT = """\
@register_jitable
def kernel({arguments}):
    size = y.size
    block = block_like(y)
    for start in range(0, size, BLOCK):
        stop = min(start + BLOCK, size)
{views}
        for i in range(stop - start):
{computed}
        for i in range(stop - start):
            out[i] = block[i]
    return 0"""


def loop_text(function: str, call: KernelCall, scalar_functions: Set[str]) -> str:
    """The text that defines `kernel(y, x0, x1, …, scalars)`.

    The expression may call `scalar_functions` and NumPy's scalar types. Raises `OptionError` for any other, and for
    another loop.
    """
    num_inputs = sum(array.role == "in" for array in call.arrays)
    match = re.fullmatch(r"broadcast(\d+)_([01s]+)", function)
    if function != "flat" and (match is None or len(match[2]) != num_inputs):
        loops = "flat and broadcast<rank>_<steps>"
        raise OptionError(f"there is no elementwise loop {function!r} for {num_inputs} inputs; there are {loops}")
    rank = int(match[1]) if match else 0
    num_params = len(call.scalars) - rank * (1 + num_inputs)
    pieces, names = _checked(call.expression, num_inputs, num_params, scalar_functions)
    lines = ["from memopt.kernels.abi import register_jitable", "from memopt.kernels.local import BLOCK, block_like"]
    functions = sorted(names - _CONVERSIONS)
    if functions:
        lines.append(f"from memopt.kernels.elementwise import {', '.join(functions)}")
    if names & _CONVERSIONS:
        lines.append(f"from numpy import {', '.join(sorted(names & _CONVERSIONS))}")
    params = [f"s{i}" for i in range(num_params)]
    body = _broadcast(pieces, rank, match[2], params) if match else _flat(pieces, num_inputs, params)
    return "\n".join([*lines, "", "", body])


def _checked(
    expression: str, num_inputs: int, num_params: int, scalar_functions: Set[str]
) -> tuple[list[str], set[str]]:
    """The statements of `expression`, and the functions that they call. All but the last name their results t0, t1, …
    in order. They are checked, and written anew: the text becomes code, and a graph may come from a file."""
    try:
        statements = ast.parse(expression).body
    except (SyntaxError, ValueError, RecursionError, MemoryError):
        statements = []
    if not statements:
        raise OptionError(f"elementwise expression {expression!r} is not an expression")
    operands = {f"x{i}" for i in range(num_inputs)} | {f"s{i}" for i in range(num_params)}
    functions: set[str] = set()
    pieces = []
    for number, statement in enumerate(statements):
        last = number == len(statements) - 1
        value = _value_of(statement, None if last else f"t{number}")
        if value is None:
            wanted = "an expression" if last else f"t{number} = …"
            raise OptionError(f"expression {expression!r} holds {ast.unparse(statement)!r} in the place of {wanted}")
        functions |= _calls(value, operands, expression)
        operands.add(f"t{number}")
        pieces.append(ast.unparse(statement))
    unknown = functions - scalar_functions - _CONVERSIONS
    if unknown:
        raise OptionError(f"expression {expression!r} calls {', '.join(sorted(unknown))}: not a scalar function")
    return pieces, functions


def _value_of(statement: ast.stmt, name: str | None) -> ast.expr | None:
    """The expression that `statement` gives that name (None: that it is), or None if it does something else."""
    if name is None:
        return statement.value if isinstance(statement, ast.Expr) else None
    if isinstance(statement, ast.Assign) and len(statement.targets) == 1:
        target = statement.targets[0]
        return statement.value if isinstance(target, ast.Name) and target.id == name else None
    return None


def _calls(value: ast.expr, operands: Set[str], expression: str) -> set[str]:
    """The functions that `value` calls; raises `OptionError` if it is not made of calls, operands and numbers."""
    functions: set[str] = set()
    stack: list[ast.expr] = [value]
    while stack:
        node = stack.pop()
        if isinstance(node, ast.Call) and isinstance(node.func, ast.Name) and not node.keywords:
            functions.add(node.func.id)
            stack.extend(node.args)
        elif isinstance(node, ast.Name) and node.id in operands:
            continue
        elif not (isinstance(node, ast.Constant) and type(node.value) in (int, float)):
            allowed = f"calls, {', '.join(sorted(operands))} and numbers"
            raise OptionError(f"expression {expression!r} holds {ast.unparse(node)!r}; it may hold {allowed}")
    return functions


def _computed(pieces: list[str], reads: list[str], pad: str) -> str:
    """Lines that leave the value of the last piece in `block[i]`, with `reads` for the inputs."""
    texts = [re.sub(r"\bx(\d+)\b", lambda match: reads[int(match[1])], piece) for piece in pieces]
    return "\n".join(pad + text for text in (*texts[:-1], f"block[i] = {texts[-1]}"))


def _flat(pieces: list[str], num_inputs: int, params: list[str]) -> str:
    views = ["        out = y[start:stop]"] + [f"        v{i} = x{i}[start:stop]" for i in range(num_inputs)]
    arguments = ["y", *(f"x{i}" for i in range(num_inputs)), *params]
    text = _computed(pieces, [f"v{i}[i]" for i in range(num_inputs)], " " * 12)
    return _FLAT.format(arguments=", ".join(arguments), views="\n".join(views), computed=text)


def _broadcast(pieces: list[str], rank: int, steps: str, params: list[str]) -> str:
    inputs = range(len(steps))
    extents = [f"n{d}" for d in range(rank)]
    strides = [f"t{i}_{d}" for i in inputs for d in range(rank)]
    arguments = ["y", *(f"x{i}" for i in inputs), *extents, *strides, *params]
    lines = ["@register_jitable", f"def kernel({', '.join(arguments)}):", "    block = block_like(y)"]
    lines += [f"    block{i} = block_like(x{i})" for i in inputs if steps[i] == "s"]
    lines += [f"    if {' * '.join(extents)} == 0:", "        return 0"]
    loops, body = _loops(rank, tiled="s" in steps)
    lines += ["    " * depth + loop for depth, loop in enumerate(loops, 1)]
    reads = []
    for i, step in enumerate(steps):
        body.append(f"p{i} = {' + '.join(f'i{d} * t{i}_{d}' for d in range(rank - 1))}")
        body += _BROUGHT[step].format(i=i, last=rank - 1).splitlines()
        reads.append({"0": f"c{i}", "1": f"v{i}[i]", "s": f"block{i}[i]"}[step])
    body += ["for i in range(stop - start):", *_computed(pieces, reads, "    ").splitlines()]
    body += ["for i in range(stop - start):", "    out[i] = block[i]"]
    return "\n".join([*lines, *("    " * (len(loops) + 1) + line for line in body), "    return 0"])


#: How an operand comes to the innermost loop. Strided ones are gathered first: LLVM vectorises what is computed then.
_BROUGHT = {
    "0": "c{i} = x{i}[p{i}]",
    "1": "v{i} = x{i}[p{i} + start:p{i} + stop]",
    "s": "for i in range(stop - start):\n    block{i}[i] = x{i}[p{i} + (start + i) * t{i}_{last}]",
}


def _loops(rank: int, *, tiled: bool) -> tuple[list[str], list[str]]:
    """The loops over i0, … and over runs [start, stop) of the last dimension, and the first lines within them.

    Tiles of the last two dimensions find the lines of a cache again, where an operand's columns are rows in storage.
    """
    above, last = rank - 2, rank - 1
    loops = [f"for i{d} in range(n{d}):" for d in range(above)]
    columns = f"for start in range(0, n{last}, BLOCK):"
    if tiled:
        tiles = f"for first in range(0, n{above}, BLOCK):"
        loops += [tiles, columns, f"for i{above} in range(first, min(first + BLOCK, n{above})):"]
    else:
        loops += [f"for i{above} in range(n{above}):", columns]
    row = "i0"
    for d in range(1, last):
        row = f"({row} * n{d} + i{d})"
    return loops, [f"stop = min(start + BLOCK, n{last})", f"row = {row} * n{last}", "out = y[row + start:row + stop]"]
