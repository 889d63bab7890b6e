"""What each command is typed like: one or two lines with what they are for, shown below its help.

Must not: import a command. Upstream: nothing. Downstream: parser, reference.
"""

BRIDGES = "edgeguardctl bridge "
_EXAMPLES: dict[str, tuple[tuple[str, str], ...]] = {
    "edgeguardctl": (
        ("edgeguardctl doctor", "first: whether this machine is fit, and what to do where it is not"),
        ("edgeguardctl status", "then: what the daemon sees, and who can be asked"),
    ),
    "edgeguardctl status": (
        ("edgeguardctl status", "levels and figures, and who can be asked, now"),
        ("edgeguardctl status --json", "the same for programs, as /status has it"),
    ),
    "edgeguardctl watch": (
        ("edgeguardctl watch", "live, until Ctrl-C"),
        ("edgeguardctl watch --count 3 | cat", "three looks as lines, for a log or a script"),
    ),
    "edgeguardctl health": (("edgeguardctl health --wait 10", "in a script, after the daemon was started"),),
    "edgeguardctl check-config": (
        ("edgeguardctl check-config", "the installed file, before `systemctl reload edgeguardd`"),
        ("edgeguardctl check-config new.toml --show", "every key as it would be in force"),
    ),
    "edgeguardctl doctor": (("edgeguardctl doctor", "what to mend on this machine, with the exact remedy"),),
    "edgeguardctl subscribe": (
        ("edgeguardctl subscribe", "as an observer: the levels of all targets, as they change"),
        ("edgeguardctl subscribe --target llm --ack done", "as a server of llm: its commands, each answered done"),
    ),
    "edgeguardctl parse": (
        ("edgeguardctl parse memory.events /sys/fs/cgroup/system.slice/memory.events", "as the daemon reads it"),
        ("edgeguardctl parse --list", "the kinds of files"),
    ),
    "edgeguardctl provision": (
        ("edgeguardctl provision --dry-run", "what would be changed, as a diff"),
        ("edgeguardctl provision --runtime", "for a try: until the next boot"),
    ),
    "edgeguardctl size": (
        ("edgeguardctl size model.gguf", "limits and flags for this model on this machine"),
        ("edgeguardctl size --measured 900M", "limits from the peak of a real run, whatever the server"),
    ),
    "edgeguardctl replay": (
        ("edgeguardctl replay", "the decisions of the daemon's own recordings"),
        ("edgeguardctl replay --config new.toml", "what another configuration would have done"),
    ),
    "edgeguardctl incidents": (
        ("edgeguardctl incidents", "all of them, the latest first"),
        ("edgeguardctl incidents 1 --html incident.html", "the latest one as a page"),
    ),
    "edgeguardctl bridge": (
        (
            "edgeguardctl bridge llama-server --listen http://127.0.0.1:8081",
            "for a stock llama-server on its port 8080; clients go to 8081 from now on",
        ),
    ),
    "edgeguardctl oom": (
        ("edgeguardctl oom", "what the running kernel has killed, and why"),
        ("journalctl -k -b -1 | edgeguardctl oom -", "the same for the boot before"),
    ),
    "edgeguardctl audit": (
        ("edgeguardctl audit llama-server.service", "one unit, as systemd merges its files"),
        ("edgeguardctl audit --all --brief", "every unit of which something is to be said"),
    ),
    "edgeguardctl adr": (("edgeguardctl adr docs/adr", "whether the records are in order"),),
    "edgeguardctl conformance": (
        ("edgeguardctl conformance --exec ./my-client", "every case, each in a run of its own"),
    ),
    "edgeguardd run": (
        ("edgeguardd run", "with the installed configuration, as the service does"),
        ("edgeguardd run --config new.toml --check", "only check the file"),
    ),
    "edgeguardd put-back": (("edgeguardd put-back", "after a daemon that died and will not be started again"),),
}


def of(program: str) -> tuple[tuple[str, str], ...]:
    """The examples of a command as it is typed, such as "edgeguardctl status": (line, what it is for)."""
    if program.startswith(BRIDGES):
        return ((f"{program} --listen http://127.0.0.1:8081", "clients go to port 8081 from now on"),)
    return _EXAMPLES.get(program, ())


def all_lines() -> list[str]:
    """Every example's line."""
    return [line for found in _EXAMPLES.values() for line, _ in found]
