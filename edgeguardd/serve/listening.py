"""A TCP port to listen on, by address: all of them where "::" says so, as an operator means it.

Must not: know what is served. Upstream: asyncio. Downstream: http, agent.
"""

import asyncio
import socket
from collections.abc import Callable

EVERYWHERE = "::"


async def listen(protocol: Callable[[], asyncio.Protocol], address: str, port: int, backlog: int) -> asyncio.Server:
    """Listen. Raises OSError, OverflowError.

    asyncio would have "::" take no IPv4 (IPV6_V6ONLY, ipv6(7)): a second address would be needed, and none can be set.
    """
    loop = asyncio.get_running_loop()
    if address != EVERYWHERE:
        return await loop.create_server(protocol, address, port, backlog=backlog)
    listener = socket.socket(socket.AF_INET6, socket.SOCK_STREAM)
    try:
        listener.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        listener.setsockopt(socket.IPPROTO_IPV6, socket.IPV6_V6ONLY, 0)
        listener.bind((address, port))
        return await loop.create_server(protocol, sock=listener, backlog=backlog)
    except BaseException:  # raised again: a start that is cancelled leaves no descriptor either
        listener.close()
        raise
