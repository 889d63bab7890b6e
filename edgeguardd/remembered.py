"""Records that can be written again when their directory was removed under the daemon: a handful of small ones.

Must not: know what they mean, look after the directory (keeper does). Upstream: state. Downstream: daemon.
"""

from collections.abc import Callable

from msgspec import Struct

from edgeguardd.errors import EdgeguardError
from edgeguardd.state import StateDirectory


class RememberedRecords(StateDirectory):
    """A state directory that knows what was saved in it and not removed."""

    def __init__(self, path: str, on_fault: Callable[[str], None], require: Callable[[], None]) -> None:
        super().__init__(path, on_fault, require=require)
        self._on_unsaved = on_fault
        self._standing: dict[tuple[str, str], Struct] = {}

    def save(self, kind: str, key: str, record: Struct, *, durable: bool = True) -> None:
        """As StateDirectory."""
        super().save(kind, key, record, durable=durable)
        self._standing[kind, key] = record

    def remove(self, kind: str, key: str) -> None:
        """As StateDirectory."""
        self._standing.pop((kind, key), None)
        super().remove(kind, key)

    def save_again(self) -> None:
        """All that stands now. What is in the way is told."""
        for (kind, key), record in self._standing.items():
            try:
                super().save(kind, key, record, durable=False)
            except EdgeguardError as error:
                self._on_unsaved(str(error))
