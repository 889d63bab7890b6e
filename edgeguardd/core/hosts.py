"""Names that HTTP requests may be addressed to, as configurations and Host fields write them.

Must not: resolve anything. Upstream: nothing. Downstream: configtable, serve, daemon.
"""

import re

ANY = "*"
# RFC 9110 7.2: uri-host [":" port]. What stands in brackets is an address of IPv6's, perhaps with a zone.
_FIELD = re.compile(r"(?:\[([0-9a-f:.]+)(?:%[^\]]*)?\]|([a-z0-9._-]+))(?::[0-9]*)?")
MAX_HOST_CHARS = 255


def endpoint(address: str, port: int) -> str:
    """ADDRESS:PORT as URLs and people write it: an IPv6 address in brackets."""
    return f"[{address}]:{port}" if ":" in address else f"{address}:{port}"


def plain_host(field: str) -> str | None:
    """The name or address in a Host field, in lower case, without port, brackets and final dot; None: it is none."""
    if len(field) > MAX_HOST_CHARS:
        return None
    found = _FIELD.fullmatch(field.strip().lower())
    if found is None:
        return None
    name = found[1] or found[2].removesuffix(".")
    # A name has no empty label (RFC 1035, section 2.3.1): ".localhost" is none below localhost.
    return name if ":" in name or all(name.split(".")) else None


def check_host(host: str) -> None:
    """A name for [http] hosts. Raises ValueError with the remedy."""
    if host != ANY and plain_host(host) != host:
        raise ValueError(
            'it is no host name; write "box.example.com", in lower case and without a port, or "*" for any'
        )
