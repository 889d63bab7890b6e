"""edgeguardd for the guarded run: started beside the server, outside its cgroup; its log becomes timeline lines.

Must not: tune anything; the daemon runs on its defaults. Upstream: run. Downstream: `python -m edgeguardd run`.
"""
class Guard:
    def __init__(self, directory, tell): ...
    async def __aenter__(self): return self
    async def __aexit__(self, *_): ...
