"""The keys of [[oom_score]] and [delays]: scores that are kept in force, and what processes wait for memory.

Must not: parse anything itself. Upstream: configrows, configkinds, confignames, config. Downstream: configtable.
"""

from edgeguardd.core.config import DelaysConfig, OomScoreRule
from edgeguardd.core.configkinds import boolean, duration, integer, text
from edgeguardd.core.confignames import check_cgroup_path, check_comm, check_executable, check_name, check_unit
from edgeguardd.core.configrows import Row, Section

HOUR_S = 3600.0
# include/uapi/linux/oom.h
UNKILLABLE, MOST_KILLABLE = -1000, 1000

OOM_SCORE = Section(
    "oom_score",
    OomScoreRule,
    "One [[oom_score]] each: a value of oom_score_adj, kept in force for every process that meets all of its "
    "conditions (unit, cgroup, exe, comm; at least one). The first rule that fits a process decides.",
    (
        Row(
            "name",
            "name",
            text("letters, digits and _ . : @ -, at most 64", check_name),
            "What log, status and metrics call the rule.",
        ),
        Row(
            "value",
            "value",
            integer(UNKILLABLE, MOST_KILLABLE),
            "oom_score_adj of these processes: the higher, the sooner the kernel kills them; -1000: never.",
        ),
        Row(
            "unit",
            "unit",
            text("a .service, .slice or .scope", check_unit),
            "Processes in this systemd unit, and below it.",
        ),
        Row(
            "cgroup",
            "cgroup",
            text("an absolute path below the cgroup root; *, ? and [ within its parts", check_cgroup_path),
            "Processes in this cgroup, and below it; as a pattern, part by part.",
        ),
        Row(
            "exe",
            "exe",
            text("an absolute path", check_executable),
            "Processes that run this program, as `readlink /proc/PID/exe` shows it: behind symbolic links, and of a "
            "container in its own file system.",
        ),
        Row(
            "comm",
            "comm",
            text("1 to 15 bytes", check_comm),
            "Processes of this name, as /proc/PID/comm shows it. A process chooses its name itself.",
        ),
        Row(
            "allow_unkillable",
            "allow_unkillable",
            boolean(),
            "Consent to the value -1000, with which a leak in the process takes the whole machine.",
        ),
    ),
    many=True,
)

DELAYS = Section(
    "delays",
    DelaysConfig,
    "How long the targets' main processes wait for memory (taskstats), as metrics; needs kernel.task_delayacct=1.",
    (
        Row("enabled", "enabled", boolean(), "Whether it is asked at all; takes 13 MB more of memory."),
        Row("interval", "interval_s", duration(HOUR_S, 1.0), "How often."),
    ),
)
