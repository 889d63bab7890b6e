"""Part of a test as a user who may do nothing: root reads what it likes, so permissions have to be tested as another.

Must not: use the code under test. Upstream: unit and kernel tests.
"""

import os
import sys
import traceback
from collections.abc import Callable

NOBODY = 65534


def as_nobody(scene: Callable[[], None], meanwhile: Callable[[], None] = lambda: None) -> None:
    """Run `scene` in a process of its own, as nobody if we are root; it fails as the scene does.

    `meanwhile` runs here at the same time, with the rights that we have. A forked process can do without files that
    nobody may read: Python is loaded already.
    """

    def drop_and_play() -> None:
        if os.geteuid() == 0:
            os.setgroups([])
            os.setresgid(NOBODY, NOBODY, NOBODY)
            os.setresuid(NOBODY, NOBODY, NOBODY)
        scene()

    forked(drop_and_play, meanwhile)


def forked(scene: Callable[[], None], meanwhile: Callable[[], None] = lambda: None) -> None:
    """As as_nobody, with the rights that we have: for what must not change this process."""
    child = os.fork()
    if child == 0:
        _play_and_exit(scene)
    try:
        meanwhile()
    finally:
        _, status = os.waitpid(child, 0)
    assert os.waitstatus_to_exitcode(status) == 0, "the scene failed: its traceback is on standard error"


def _play_and_exit(scene: Callable[[], None]) -> None:
    status = 1
    try:
        scene()
        status = 0
    except BaseException:  # the edge: a forked pytest must not go on, whatever it was
        traceback.print_exc()
        sys.stderr.flush()
    os._exit(status)
