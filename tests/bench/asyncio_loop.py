"""The C loop's job in the barest asyncio: what Python itself takes of a reaction, before anything is judged.

    python -I -S asyncio_loop.py SOCKET FILE KEY

Must not: grow. Upstream: crossings. Downstream: nested epoll in an event loop, as edgeguardd's own wake-ups.
"""

import asyncio
import contextlib
import json
import os
import select
import sys


def counter(file: int, key: str) -> int:
    """One number of the file."""
    pairs = (line.split() for line in os.pread(file, 1024, 0).decode().splitlines())
    return next(int(value) for name, value in pairs if name == key)


async def main(path: str, events: str, key: str) -> None:
    """Until the one subscriber hangs up."""
    file = os.open(events, os.O_RDONLY)
    watch = select.epoll()
    watch.register(file, select.EPOLLPRI)
    seen = counter(file, key)
    gone = asyncio.Event()

    def connected(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        seq = 0

        def woken() -> None:
            nonlocal seen, seq
            watch.poll(0)
            now = counter(file, key)
            if now > seen:
                seq += 1
                command = {
                    "type": "command",
                    "v": 1,
                    "seq": seq,
                    "target": "llm",
                    "action": "trim_kv_cache",
                    "parameters": {"release_bytes": 8388608, "needed_target_bytes": 33554432},
                    "level": "high",
                    "reason": f"{key} counted up by {now - seen}",
                    "deadline_s": 5.0,
                }
                writer.write(json.dumps(command).encode() + b"\n")
            seen = now

        async def follow() -> None:
            # Lines that the other side has not read when it hangs up make its end an error.
            with contextlib.suppress(ConnectionError):
                await reader.read()
            gone.set()

        asyncio.get_running_loop().add_reader(watch.fileno(), woken)
        tasks.append(asyncio.create_task(follow()))

    tasks: list[asyncio.Task[None]] = []
    server = await asyncio.start_unix_server(connected, path)
    await gone.wait()
    server.close()


if __name__ == "__main__":
    asyncio.run(main(*sys.argv[1:]))
