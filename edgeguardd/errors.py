"""The errors edgeguardd raises on purpose.

Every message is one sentence that names the thing and the remedy: "cannot …: …; do …". The command line prints the
message alone; the daemon logs it. Everything else that is raised is a defect and keeps its traceback.
"""


class EdgeguardError(Exception):
    """Base of all errors that are reported to people as one sentence."""


class ConfigError(EdgeguardError):
    """The configuration cannot be used. `problems` holds every fault found, one sentence each."""

    def __init__(self, problems: list[str]) -> None:
        super().__init__("\n".join(problems))
        self.problems = problems


class KernelError(EdgeguardError):
    """This kernel or its set-up cannot be used: cgroup v1, no memory controller, no permission."""


class TargetError(EdgeguardError):
    """A target cannot be guarded: the root cgroup, no such name, not the peer's."""


class ServeError(EdgeguardError):
    """A socket or an HTTP address cannot be served: taken, no directory, no permission."""


class FormatError(EdgeguardError):
    """A kernel file does not hold what its kind promises (empty, cut, not a number)."""


class ProtocolError(EdgeguardError):
    """A line breaks the protocol. `code` is the stable word of docs/reference/protocol.md."""

    def __init__(self, code: str, message: str) -> None:
        super().__init__(message)
        self.code = code
