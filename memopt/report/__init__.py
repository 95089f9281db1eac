"""What people see of a plan: tables, timelines, pictures. rich and matplotlib are imported on use."""

from __future__ import annotations

from memopt.report.decisions import decision_dict, decisions_list, decisions_table, filter_decisions
from memopt.report.explain import Explanation, explain_plan, signed_bytes
from memopt.report.explain_moves import Move, Moves, WhatIf, needed_bytes
from memopt.report.explain_value import ValueExplanation, explain_value
from memopt.report.inplace import InplaceOutcome, inplace_outcomes, inplace_table
from memopt.report.plot import Curve, arena_figure, check_picture_path, memory_figure, save_figure
from memopt.report.table import WIDTH, Table
from memopt.report.tables import DEVICE_FIELDS, describe_plan, device_dict, plan_table
from memopt.report.timeline import LiveBuffer, at_peak, instruction_steps, live_bytes, step_bytes

__all__ = [
    "DEVICE_FIELDS",
    "WIDTH",
    "Curve",
    "Explanation",
    "InplaceOutcome",
    "LiveBuffer",
    "Move",
    "Moves",
    "Table",
    "ValueExplanation",
    "WhatIf",
    "arena_figure",
    "at_peak",
    "check_picture_path",
    "decision_dict",
    "decisions_list",
    "decisions_table",
    "describe_plan",
    "device_dict",
    "explain_plan",
    "explain_value",
    "filter_decisions",
    "inplace_outcomes",
    "inplace_table",
    "instruction_steps",
    "live_bytes",
    "memory_figure",
    "needed_bytes",
    "plan_table",
    "save_figure",
    "signed_bytes",
    "step_bytes",
]
