"""The servers that there are bridges to, and the options of each: one row a server.

Must not: import a bridge, so that the command line can be built without asyncio. Upstream: nothing. Downstream:
cli.bridge, settings, docs.
"""

from msgspec import Struct


class Option(Struct, frozen=True):
    """One option of a server's own. It takes a value, or many (each given with the option again) if `many`."""

    name: str
    metavar: str
    doc: str
    default: str | None = None
    choices: tuple[str, ...] = ()
    many: bool = False


class Row(Struct, frozen=True):
    """One server. `module` is below edgeguardd.bridges and holds a class of the name `server`.

    keeper  whether the bridge may stop and start the server's process: --unit, --stop/--start, or a command
    """

    module: str
    server: str
    url: str
    doc: str
    keeper: bool = False
    options: tuple[Option, ...] = ()


MODEL = Option("model", "NAME", "unload only this model; may be given again (default: all that are loaded)", many=True)

SERVERS: dict[str, Row] = {
    "llama-server": Row(
        "llama",
        "LlamaServer",
        "http://127.0.0.1:8080",
        "llama.cpp's llama-server with one model, or as a router of many; it finds out which.",
        keeper=True,
        options=(MODEL,),
    ),
    "ollama": Row(
        "ollama",
        "OllamaServer",
        "http://127.0.0.1:11434",
        "Ollama: unloads models by keep_alive 0.",
        options=(MODEL,),
    ),
}
