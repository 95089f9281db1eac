"""The virtual machine: one compiled loop over a table of (entry address, frame address)."""

from __future__ import annotations

from numba import njit

from memopt.runtime.abi import call_entry

__all__ = ["run_rows"]


@njit("int64(int64[:, ::1], int64, int64, int64[::1])", nogil=True, cache=True)
def run_rows(table, start, stop, status):  # type: ignore[no-untyped-def]
    """Run rows [start, stop) and return the row at which it stopped.

    That is `stop` when all went well; else the row is a host call (its address is 0), to be done by the caller, or
    its kernel failed, with the code in `status[0]`.
    """
    for row in range(start, stop):
        address = table[row, 0]
        if address == 0:
            return row
        code = call_entry(address, table[row, 1])
        if code != 0:
            status[0] = code
            return row
    return stop
