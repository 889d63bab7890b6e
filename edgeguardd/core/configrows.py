"""What a row and a section of the configuration table are.

Must not: hold any of them (configtable and configpolicy do). Upstream: configkinds.
Downstream: configtable, configpolicy, configreader, configtext, cli.reference.
"""

import msgspec
from msgspec import Struct

from edgeguardd.core.configkinds import Kind


class Row(Struct, frozen=True):
    """One key: its name in the file, the field it fills, its kind, and one sentence for the reference."""

    key: str
    field: str
    kind: Kind
    doc: str


class Section(Struct, frozen=True):
    """One table of the file: its header, the value it fills, one sentence, its rows. `many`: written as [[header]]."""

    header: str
    fills: type[Struct]
    doc: str
    rows: tuple[Row, ...]
    many: bool = False

    @property
    def title(self) -> str:
        """The header as it is written."""
        return f"[[{self.header}]]" if self.many else f"[{self.header}]"

    def default(self, row: Row) -> object:
        """The default of a row's field; None also for a field that must be given."""
        for field in msgspec.structs.fields(self.fills):
            if field.name == row.field:
                return None if field.default is msgspec.NODEFAULT else field.default
        raise KeyError(row.field)
