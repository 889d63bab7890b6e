"""What goes into the guest beside the tests: the build before the present one, and a program on sd-event.

Must not: change the package it is given. Upstream: __main__. Downstream: dpkg-deb, cc.
"""

import os
import shutil

from tests.support import sdevent
from tests.system import image
from tests.system.image import ImageError

PREVIOUS = "0.0.9"
PROGRAM = "usr/lib/edgeguardd/edgeguardd/__init__.py"


def previous(package: str, directory: str) -> str:
    """A directory with the same package under a lower version, its program's own version with it. Raises ImageError."""
    root, out = os.path.join(directory, "root"), os.path.join(directory, "previous")
    os.makedirs(out)
    image.command(["dpkg-deb", "--raw-extract", package, root])
    version = image.command(["dpkg-deb", "--field", package, "Version"]).strip()
    own = version.replace("~dev", ".dev")
    for name, old, new in (
        ("DEBIAN/control", f"Version: {version}\n", f"Version: {PREVIOUS}\n"),
        (PROGRAM, f'__version__ = "{own}"', f'__version__ = "{PREVIOUS}"'),
    ):
        path = os.path.join(root, name)
        with open(path) as file:
            text = file.read()
        if old not in text:
            raise ImageError(f"cannot make a previous build: no {old.strip()} in {name} of {package}")
        with open(path, "w") as file:
            file.write(text.replace(old, new))
    image.command(["dpkg-deb", "--root-owner-group", "--build", root, out])
    shutil.rmtree(root)
    return out


def watcher(directory: str) -> str | None:
    """A directory with the program of tests/support/sdevent and the library it is linked to; None: there is none."""
    library = sdevent.library()
    if library is None:
        print(f"without the sd-event program: {sdevent.MISSING}", flush=True)
        return None
    out = os.path.join(directory, "sdevent")
    os.makedirs(out)
    sdevent.built(out)
    shutil.copy(os.path.join(library, "libsystemd.so.0"), out)
    return out
