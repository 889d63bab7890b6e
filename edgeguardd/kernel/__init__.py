"""The only code that touches cgroupfs, epoll, inotify and /proc.

Must not: judge what it reads, know subscribers. Upstream: core. Downstream: daemon.

    wakeups (epoll)   treewatch (inotify)   pressure (PSI, an epoll a trigger)
        └── nodes ──┐     └── tree ── resolve   │
                    └── sampler ──┴── targets   ├── emit(Event) ──▶ daemon
    devices (NVML, NvMap, files) ──── machine ──┘
"""
