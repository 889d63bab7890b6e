"""What is promised, as data: one row a figure. A part says what it measured, and this says whether that is enough.

Must not: measure. Upstream: nothing. Downstream: the parts, report.
"""

from typing import NamedTuple


class Budget(NamedTuple):
    """At most `most`, in `unit`."""

    what: str
    most: float
    unit: str


BUDGETS = {
    "reaction_p50": Budget("count in the kernel to command readable at the subscriber, median", 1.0, "ms"),
    "reaction_p99": Budget("the same, 99th percentile", 5.0, "ms"),
    "reaction_ratio": Budget("median against the C loop's", 3.0, "times"),
    "idle_wakeups": Budget("wake-ups with one target far from its marks", 1.0, "a second"),
    "idle_cpu": Budget("processor time with one target far from its marks", 0.1, "%"),
    "storm_lost": Budget("counts not seen, 100 targets at the kernel's full rate", 0.0, "counts"),
    "storm_cpu": Budget("processor time, 100 targets at the kernel's full rate", 100.0, "%"),
    "storm_p99": Budget("count to command in that storm, 99th percentile", 50.0, "ms"),
    "subscribers_all": Budget("one change of level to the last of 1,000 subscribers", 100.0, "ms"),
    "subscribers_stalled": Budget("the same with one that does not read", 100.0, "ms"),
    "metrics_page": Budget("/metrics with 100 targets, median", 20.0, "ms"),
    "ready": Budget("start to READY=1, median", 1.0, "s"),
    "restart_gap": Budget("gap in service with 10 subscribers at critical, restart or kill -9, the longest", 1.5, "s"),
    "restart_wrong": Budget("commands lost or carried out twice, levels forgotten in that", 0.0, "times"),
    "survival_kills": Budget("kills under edgeguardd, in a cgroup", 0.0, "kills"),
    "survival_restarts": Budget("restarts needed under edgeguardd, in a cgroup", 0.0, "restarts"),
    "survival_timeouts": Budget("time-outs under edgeguardd, in a cgroup", 0.0, "requests"),
    "survival_served": Budget("requests that the best of the others served beyond edgeguardd's", -1.0, "requests"),
    "resident": Budget("resident memory after the soak", 32.0, "MiB"),
    "resident_slope": Budget("its growth, fitted over the last three quarters", 0.5, "MiB an hour"),
    "descriptors_left": Budget("descriptors at rest after the soak, more than before it", 0.0, "descriptors"),
}
