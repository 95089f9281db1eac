"""Plans in and out: JSON."""

from memopt.export.plan_json import load_json, plan_from_dict, plan_to_dict, save_json

__all__ = ["load_json", "plan_from_dict", "plan_to_dict", "save_json"]
