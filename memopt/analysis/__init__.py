"""What passes, orders and reports ask of a graph: liveness, aliases, occupancy, and who may share with whom."""

from memopt.analysis.alias import (
    Aliases,
    Run,
    analyze_aliases,
    joined_at,
    joined_in,
    view_in,
    view_source,
)
from memopt.analysis.floor import needed_bytes
from memopt.analysis.inplace import walk_inplace
from memopt.analysis.joining import JoinPart, walk_joins
from memopt.analysis.levels import Fusion, Levels
from memopt.analysis.liveness import (
    Interval,
    Kept,
    Liveness,
    analyze_liveness,
    buffer_interval,
    buffer_size,
    live_profile,
    peak_bytes,
    profile_of,
    updated_value,
)
from memopt.analysis.occupancy import Body, Occupancy, Tenant
from memopt.analysis.order import Order
from memopt.analysis.paths import AddedEdge, ExecutionOrder, WantedEdge, add_edges, check_order, order_tenants
from memopt.analysis.reuse import ReuseRecord, borrower_refusal, walk_reuse
from memopt.analysis.sharing import (
    Candidate,
    Reason,
    Verdict,
    candidates_of,
    judge,
    op_refusal,
    param_variables,
    pinned_variables,
    where_read,
)
from memopt.analysis.stepping import ViewCandidate, walk_views

__all__ = [
    "AddedEdge",
    "Aliases",
    "Body",
    "Candidate",
    "ExecutionOrder",
    "Fusion",
    "Interval",
    "JoinPart",
    "Kept",
    "Levels",
    "Liveness",
    "Occupancy",
    "Order",
    "Reason",
    "ReuseRecord",
    "Run",
    "Tenant",
    "Verdict",
    "ViewCandidate",
    "WantedEdge",
    "add_edges",
    "analyze_aliases",
    "analyze_liveness",
    "borrower_refusal",
    "buffer_interval",
    "buffer_size",
    "candidates_of",
    "check_order",
    "joined_at",
    "joined_in",
    "judge",
    "live_profile",
    "needed_bytes",
    "op_refusal",
    "order_tenants",
    "param_variables",
    "peak_bytes",
    "pinned_variables",
    "profile_of",
    "updated_value",
    "view_in",
    "view_source",
    "walk_inplace",
    "walk_joins",
    "walk_reuse",
    "walk_views",
    "where_read",
]
