"""One kernel call in a thread of its own, because it may take long: reclaim runs in whoever writes the file.

Must not: touch the event loop; whoever waits looks at `ended`. Upstream: threading. Downstream: relief, lastresort.
"""

import threading
from collections.abc import Callable
from typing import Generic, TypeVar

T = TypeVar("T")

# The work is one loop around one system call. With all memory locked (mlockall) a thread's whole stack counts, and the
# usual 8 MiB would be a quarter of the daemon's budget.
STACK_BYTES = 256 * 1024


class Aside(Generic[T]):
    """Work that has begun. It outlives nobody: the thread ends with the process."""

    def __init__(self, work: Callable[[], T]) -> None:
        """Begin. Where no thread can be had the work is done here and now: late is better than never."""
        self._work = work
        self._value: T | None = None
        self._error: BaseException | None = None
        self._finished = False
        self._thread = threading.Thread(target=self._run, name="edgeguardd-aside", daemon=True)
        before = threading.stack_size(STACK_BYTES)
        try:
            self._thread.start()
        except RuntimeError:
            self._run()
        finally:
            threading.stack_size(before)

    @property
    def ended(self) -> bool:
        """Whether there is a result."""
        return self._finished

    def result(self) -> T:
        """What the work returned; what it raised is raised here. Only when it has ended."""
        if self._error is not None:
            raise self._error
        assert self._finished  # noqa: S101  whoever asks has looked
        return self._value  # type: ignore[return-value]

    def _run(self) -> None:
        try:
            self._value = self._work()
        except BaseException as error:  # it belongs to whoever asks for the result
            self._error = error
        self._finished = True
