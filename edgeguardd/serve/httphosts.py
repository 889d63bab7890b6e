"""Whether a request was meant for this server: its Host against the names that it goes by.

A page in a browser on the box can have its own name resolve to 127.0.0.1 (DNS rebinding); what the browser then reads
here counts as that page's own. Its requests carry the page's name as their Host, which is how they are told apart.

Must not: know routes or who asks. Upstream: core.hosts. Downstream: httpconnection.
"""

import ipaddress
from collections.abc import Collection

from edgeguardd.core.hosts import ANY, plain_host

# What it is called where it is; "edgeguardd" is the upstream or service of that name in a proxy's or container's own
# configuration. Neither can be a name of a public domain: they have no dot.
OWN_NAMES = frozenset({"localhost", "edgeguardd"})


def is_meant(field: bytes | None, local_address: str, hosts: Collection[str]) -> bool:
    """Whether a request with this Host field is for us; None: it has none, as only HTTP/1.0 may, and no browser does.

    local_address: where the connection came in. hosts: what else was configured, as plain_host makes it.
    """
    if field is None or ANY in hosts:
        return True
    host = plain_host(field.decode("latin-1"))
    if host is None:
        return False
    if host in OWN_NAMES or host.endswith(".localhost") or host in hosts:
        return True
    try:
        address = ipaddress.ip_address(host)
    except ValueError:
        return False
    return address.is_loopback or address == _plain_address(local_address)


def _plain_address(text: str) -> "ipaddress.IPv4Address | ipaddress.IPv6Address | None":
    """An address of the kernel's without its zone, and as IPv4 where it is one in IPv6's clothes."""
    try:
        address = ipaddress.ip_address(text.partition("%")[0])
    except ValueError:
        return None
    mapped = address.ipv4_mapped if isinstance(address, ipaddress.IPv6Address) else None
    return mapped or address
