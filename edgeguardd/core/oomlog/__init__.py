"""Kernel OOM reports out of any log: bytes of lines in, one incident per OOM out. Pure, streaming, bounded.

    sources.Sources  a raw line -> the lines of the log in it (JSON, journal export, plain)
    dress            what a log style puts around a message: times, host, program, priority, caller
    halves           lines that were cut in two -> whole ones
    kernelmessages   a kernel message -> what it says; othermessages: the same for systemd, oomd, lmkd, earlyoom
    tasktable        the rows of the task dump, by the names in its header
    collector        what was said -> reports, kept apart, joined, closed
    verdict          a report -> whose limit, why this victim, what to change
    asjson           a report -> the keys of `edgeguardctl oom --json`

Kernel texts are those of mm/oom_kill.c, mm/memcontrol.c and mm/memcontrol-v1.c, Linux 3.10 to 6.18, and of vendor
kernels as public logs show them.
"""
