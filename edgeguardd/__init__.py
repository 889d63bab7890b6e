"""edgeguardd: asks inference servers to give memory back before the kernel takes it.

The path of one event, in order:
    kernel.wakeups      the kernel says that memory.events of a cgroup changed
    kernel.targets      reads the target's files into a Sample and counter deltas
    core.engine         handle(event, now): policy makes it a level, ledger makes the level commands
    daemon              carries the effects out, in order
    serve.subscribers   writes the command to the subscriber's socket; reads the ack
    core.engine         the ack ends the command, or the next rung is asked
    metrics, logs       what happened, with the figures
"""

__version__ = "0.1.0"
