"""The validator: a symbolic run of a plan that trusts nobody and asks of every byte which value it holds.

Holds true: of an instruction it believes only which bytes it touches (buffer, slot, offset, number of bytes) and in
which form the kernel takes them; names are for messages. It shares data types with the planner, and no code. A plan
without findings computes what its graph says, whoever made it; with `order="any"` it does so under every legal order.
"""

from memopt.validate.any_order import dependencies
from memopt.validate.findings import FINDING_KINDS, Finding
from memopt.validate.walk import validate

__all__ = ["FINDING_KINDS", "Finding", "dependencies", "validate"]
