"""Room for a crowd of connections in the test's own process.

Must not: lower what others may open. Upstream: resource. Downstream: component tests.
"""

import contextlib
import os
import resource
from collections.abc import Iterator

# For what the test has open besides.
SPARE = 500
# `make torture` sets 10000.
CROWD = int(os.environ.get("EDGEGUARDD_CROWD", "2000"))


@contextlib.contextmanager
def room_for(wanted: int = CROWD) -> Iterator[int]:
    """How many descriptors may be opened, at most `wanted`; the soft limit is raised meanwhile, the hard one stays."""
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    needed = wanted + SPARE
    limit = needed if hard == resource.RLIM_INFINITY else min(hard, needed)
    if soft != resource.RLIM_INFINITY and soft < limit:
        resource.setrlimit(resource.RLIMIT_NOFILE, (limit, hard))
    try:
        yield min(wanted, limit - SPARE)
    finally:
        resource.setrlimit(resource.RLIMIT_NOFILE, (soft, hard))
