"""The stand-in for llama-server on a port: `python3 -m tests.system.guest.fakellama PORT`.

Must not: do anything of its own. Upstream: tests.support.standins. Downstream: the test of the bridge's unit.
"""

import asyncio
import sys

from tests.support.standins.llama import FakeLlama


async def main(port: int) -> None:
    """Until it is ended."""
    server = FakeLlama()
    server.port = port
    async with server:
        await asyncio.Event().wait()


if __name__ == "__main__":
    asyncio.run(main(int(sys.argv[1])))
