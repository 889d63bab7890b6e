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

UNLOAD = Option(
    "unload",
    "WHAT",
    "what unload_model takes out: all, or the KV cache alone (default: all)",
    default="all",
    choices=("all", "kv_cache"),
)
INSTANCES = Option(
    "instances",
    "HOW",
    "what reduce_batch lowers: gate, the gate's places; live, instance_group counts in place, for which each model is "
    "loaded anew at the start, beside itself for a moment (default: gate)",
    default="gate",
    choices=("gate", "live"),
)
CONFIG = Option("config-path", "FILE", "the configuration file that OVMS was started with; unloading needs it")

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
    "vllm": Row(
        "vllm",
        "VllmServer",
        "http://127.0.0.1:8000",
        "vLLM with VLLM_SERVER_DEV_MODE=1 and --enable-sleep-mode: parks its KV cache, sleeps at level 2.",
        options=(UNLOAD,),
    ),
    "sglang": Row(
        "sglang",
        "SglangServer",
        "http://127.0.0.1:30000",
        "SGLang with --enable-memory-saver: parks its KV cache, and lets its weights go.",
        options=(UNLOAD,),
    ),
    "trtllm": Row(
        "trtllm",
        "TrtllmServer",
        "http://127.0.0.1:8000",
        "TensorRT-LLM's trtllm-serve with --enable_sleep_mode: parks its KV cache.",
    ),
    "triton": Row(
        "triton",
        "TritonServer",
        "http://127.0.0.1:8000",
        "Triton with --model-control-mode=explicit: unloads models, and can lower their instance counts in place.",
        options=(MODEL, INSTANCES),
    ),
    "ovms": Row(
        "ovms",
        "OvmsServer",
        "http://127.0.0.1:8000",
        "OpenVINO Model Server with a configuration file: unloads models by taking them out of it.",
        options=(CONFIG,),
    ),
    "localai": Row(
        "localai",
        "LocalAiServer",
        "http://127.0.0.1:8080",
        "LocalAI: stops its models' processes, and sees that they are gone.",
        options=(MODEL,),
    ),
}
