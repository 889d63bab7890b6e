"""Bridges: edgeguardd's commands carried out on inference servers that know nothing of it, through their own calls.

    edgeguardctl bridge NAME ──▶ run ──▶ Bridge ──▶ Gate, Places   who may in: 503, places, drain
                                           └──▶ Works ──▶ Server   one file a server: which calls, in which order
                                                  └─────▶ Figures  what really left the server's cgroup

The framework does what is the same everywhere: it subscribes, keeps the gate, drains, measures, times out, acks, and
never lets one command wait for another. A server's file only says what its server can do and how.

How to add a server
-------------------
1. A row in catalog.SERVERS: its word on the command line, its module, the default URL, and the options of its own.
2. A module `edgeguardd/bridges/NAME.py` with one subclass of `base.Server` named like the row says::

       class SomeServer(Server):
           harmless = frozenset({"/health", "/metrics", "/v1/models"})   # GETs that cost nothing and wake nothing

           operators = frozenset({"/sleep"})                             # calls that no client gets through the gate

           async def look(self) -> Look:          # at the start, until the server answers
               version = (await self.http.get("/version")).field("version")
               return Look(version, trims=True, releases=True, unloads=True, cannot=("cannot …: …; start it with …",))

           async def trim(self) -> None:          # while requests run: must disturb none of them. Acked `logical`
               await self.http.post("/forget")

           async def release(self) -> None:       # gate shut, nobody inside: give memory back, and be ready again
               ...

           async def unload(self) -> tuple[str, ...]:   # gate shut, nobody inside: all out, verified
               ...                                      # returns what load() needs to bring it back

           async def load(self, taken) -> None:   # until it answers again
               ...

   A release() that has to unload for it is `await self.reload()`: what does not come back is tried again. An
   unload() that can fail half-way sets `self.out` to what load() would need as soon as it knows.
   Leave out what the server cannot do, and say so in Look.cannot, one sentence each ("cannot …: …; remedy").
   Optional: `reduce(ratio)` with Look(reduces=True) where the server has a live limit of its own, `running()` for an
   external gate, `reload()` as the release of one that has to unload for it, and `park()` with Look(parks=True) for
   what only running requests need: it stays out for as long as requests are refused, and load() brings it back.
   Look(on_device=True) where memory is a GPU's, which no cgroup shows.
3. A stand-in in tests/support/standins, that behaves as the real server does, busy, slow and down; tests in
   tests/unit/bridges, with support.bridging.Bridged (or gated.Gated, with a gate and a cgroup), and a line in
   test_servers.py for what holds for all of them.
4. A row in docs/how-to/bridges.md.

What a server's file gets (see base.Server): `self.http` (calls.Http), `self.options` (the options of its row),
`self.keeper` (supervise.Keeper or None: stops and starts the process; only where the row says keeper=True),
`self.patience_s` (how long an unload or a load may take; poll with `self.until(condition, what)`).

What becomes of a command: a trim calls trim() at once, and from --release-from on also shut → drain → release() → open,
or drain → park() while requests are refused; an unload is shut → drain → unload(), a restore load() → open. Bytes are
measured before and after in the server's cgroup (--unit or --cgroup): an operation after which nothing left fails. So
raise nothing and return nothing to say "done"; say what did not work by raising.

What it raises: calls.ServerError with a sentence; everything it awaits is bounded, since each call of `http` times out
and the framework gives each operation a time. It must not touch the gate, measure memory, or sleep without need.

Must not: decide when memory is short (edgeguardd does), be imported by the daemon. Upstream: client, core,
kernel.cgroupfs (figures), systemd, logs. Downstream: cli.bridge.
"""
