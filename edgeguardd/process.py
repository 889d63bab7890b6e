"""What the daemon asks of the kernel for its own process: signals and descriptors. Memory: kernel.memlock.

Must not: know what the daemon does. Upstream: daemon. Downstream: sigaction(2), setrlimit(2).
"""

import asyncio
import resource
import signal
from collections.abc import Callable


def hold_reload() -> None:
    """A SIGHUP waits until there is something to reload; by default it would end the process."""
    signal.pthread_sigmask(signal.SIG_BLOCK, {signal.SIGHUP})


def take_reload(loop: asyncio.AbstractEventLoop, reload: Callable[[], None]) -> None:
    """From now on a SIGHUP reloads; one that waited does so at once."""
    loop.add_signal_handler(signal.SIGHUP, reload)
    # No complaint on standard error when signals come faster than the loop takes them: it is awake by then anyway.
    signal.set_wakeup_fd(signal.set_wakeup_fd(-1), warn_on_full_buffer=False)
    signal.pthread_sigmask(signal.SIG_UNBLOCK, {signal.SIGHUP})


def ignore_signals(loop: asyncio.AbstractEventLoop) -> None:
    """From the loop's handlers to none at all. Between the two asyncio sets the default, which ends the process."""
    numbers = {signal.SIGHUP, signal.SIGTERM, signal.SIGINT}
    signal.pthread_sigmask(signal.SIG_BLOCK, numbers)
    for number in numbers:
        loop.remove_signal_handler(number)
        signal.signal(number, signal.SIG_IGN)
    signal.pthread_sigmask(signal.SIG_UNBLOCK, numbers)


def allow_descriptors(on_fault: Callable[[str], None]) -> None:
    """Raise the soft limit to the hard one: a target takes about 11 descriptors, and the usual soft limit is 1024."""
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    if soft == hard:
        return  # a unit's sandbox may forbid even asking for what is there
    try:
        resource.setrlimit(resource.RLIMIT_NOFILE, (hard, hard))
    except (OSError, ValueError) as error:
        on_fault(f"cannot raise the limit of open files from {soft} to {hard}: {error}; set LimitNOFILE=")
