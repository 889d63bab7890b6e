"""What is fuzzed under guidance: one function a part, which takes any bytes and fails where something is wrong.

Must not: make inputs up (guided does). Upstream: the parsers. Downstream: guided, kept.
"""

import contextlib
import hashlib
import json
import os
import tempfile
from collections.abc import Callable, Iterator
from pathlib import Path

import h11
from msgspec import structs

from edgeguardd.bridges.endpoint import endpoint
from edgeguardd.bridges.heads import from_path_on, path_of, request_of, target_of
from edgeguardd.core import checkpoint, taskstats, wire
from edgeguardd.core.config import Config
from edgeguardd.core.configparse import read
from edgeguardd.core.configtext import render
from edgeguardd.core.kernelkinds import KINDS
from edgeguardd.core.lines import LineBuffer
from edgeguardd.core.oomlog import asjson
from edgeguardd.core.oomlog.collector import Collector
from edgeguardd.core.recording import Packer, RecordingError, Segment
from edgeguardd.core.replay import Changed, recorded
from edgeguardd.errors import ConfigError, FormatError, ProtocolError
from edgeguardd.isolate import reports
from edgeguardd.isolate.rules import RULES
from edgeguardd.isolate.sizing import gguf, model
from edgeguardd.kernel import kmsg, procevents
from edgeguardd.kernel.relief import Lifted
from edgeguardd.state import StateDirectory, file_name
from tests.fuzz.httppeer import answered
from tests.support.unittree import judged, loaded

MAX_MESSAGE_CHARS = 2000
# So that a test can see a finding told.
PLANTED = "EDGEGUARDD_FUZZ_PLANTED" in os.environ


def wire_lines(data: bytes) -> None:
    """Both sides' decoders, and the buffer before them, however the bytes are cut."""
    assert not (PLANTED and data.startswith(b"{")), "planted"
    for decode in (wire.decode_client, wire.decode_server):
        try:
            message = decode(data)
        except ProtocolError as error:
            _sentence(error)
        else:
            assert decode(wire.encode(message).rstrip(b"\n")) == message
    buffer = LineBuffer()
    with contextlib.suppress(ProtocolError):
        for at in range(0, len(data), 7):
            buffer.feed(data[at : at + 7])
            while (line := buffer.next_line()) is not None:
                assert b"\n" not in line


def config(data: bytes) -> None:
    """A configuration, which reads back as itself, or every fault as a sentence."""
    found, problems = None, []
    try:
        found = read(data, "f")
    except ConfigError as error:
        problems = error.problems
    assert (found is None) == bool(problems)
    assert all(problem.startswith("f: ") and problem.isprintable() for problem in problems)
    if found is not None:
        assert read(render(found), "f") == found


def kernel(data: bytes) -> None:
    """Every kind of kernel file, and what comes by netlink and from the kernel's log."""
    for parse in KINDS.values():
        try:
            json.dumps(parse(data))
        except FormatError as error:
            _sentence(error)
    with contextlib.suppress(FormatError):
        taskstats.delays(data)
    procevents.parse(data)
    kmsg.sequence(data)


def oomlog(data: bytes) -> None:
    """A kernel's log: reports that can be told as JSON."""
    collector, found = Collector(), []
    for line in data.split(b"\n"):
        collector.feed(line)
        found += collector.take()
    for report in found + collector.end():
        for told in (*asjson.events(report), asjson.incomplete(report), asjson.no_victim(report), asjson.group(report)):
            json.dumps(told, allow_nan=False).encode("ascii")
    json.dumps(asjson.others(collector.others), allow_nan=False)


def units(data: bytes) -> None:
    """A fragment, and a drop-in after the first NUL: judged, and reported in each form."""
    fragment, _, drop_in = data.partition(b"\0")
    with _scratch() as place:
        (place / "a.service").write_bytes(fragment)
        (place / "a.service.d").mkdir()
        (place / "a.service.d/1.conf").write_bytes(drop_in)
        report = judged(loaded(place, {}))
    json.loads(reports.document([report], single=True))
    json.loads(reports.sarif([report], RULES))
    assert reports.junit([report])
    assert all(line.isprintable() for line in reports.text([report]))


def http(data: bytes) -> None:
    """A peer of the HTTP server: each answer is whole, and none goes to who was not meant or not let finish."""
    client, at = h11.Connection(h11.SERVER), endpoint("http://127.0.0.1:8080/v1")
    for piece in (len(data) or 1, 3):
        answered(data, piece)
    with contextlib.suppress(h11.RemoteProtocolError):
        client.receive_data(data)
        request = client.next_event()
        if isinstance(request, h11.Request) and (plain := from_path_on(request)) is not None:
            assert plain.target[:1] in (b"/", b"*")
            path = path_of(target_of(plain, at))
            assert path.startswith("/")
            assert not path.startswith("//")
            assert "/../" not in path
            h11.Connection(h11.CLIENT).send(request_of(plain, at))


def state(data: bytes) -> None:
    """A file in the state directory: a record, or put aside with a word."""
    check = hashlib.sha256(b"lifted\n/llm\n" + data).hexdigest()
    enveloped = b'{"v":1,"kind":"lifted","key":"/llm","check":"%s","record":%s}' % (check.encode(), data)
    for content in (data, enveloped):
        said: list[str] = []
        with _scratch() as place:
            place.chmod(0o700)
            kept = StateDirectory(str(place), said.append)
            name = file_name("lifted", "/llm")
            (place / name).write_bytes(content)
            found = kept.load_all("lifted", Lifted)
            assert (name in os.listdir(place)) == bool(found)
            assert bool(found) != bool(said)
        for sentence in said:
            assert sentence.startswith("cannot ")
            assert sentence.isprintable(), sentence


def recordings(data: bytes) -> None:
    """A recording, packed as it is and as lines: replayed, once more under another configuration; and a checkpoint."""
    with contextlib.suppress(ValueError, RecursionError, checkpoint.CheckpointError):
        checkpoint.decode(json.loads(data))
    packer = Packer()
    for content in (data, packer.add(data) + packer.end()):
        try:
            segment = Segment(content, "f")
        except RecordingError as error:
            _sentence(error)
            continue
        following = Segment(content, "g")
        following.header = structs.replace(segment.header, segment=segment.header.segment + 1)
        unusable: list[RecordingError] = []
        for _ in recorded([segment, following], unusable.append):
            pass
        with contextlib.suppress(RecordingError):
            for _ in Changed([segment], Config(), unusable.append).steps():
                pass


def ggufs(data: bytes) -> None:
    """A model's file: a model, or a sentence."""
    with _scratch() as place:
        path = place / "m.gguf"
        path.write_bytes(data)
        try:
            found = model.load(str(path))
        except gguf.GgufError as error:
            _sentence(error)
        else:
            assert found.kv_bytes(4096, "f16", "q8_0") >= 0


PARTS: dict[str, Callable[[bytes], None]] = {
    "wire": wire_lines,
    "config": config,
    "kernel": kernel,
    "oomlog": oomlog,
    "units": units,
    "http": http,
    "state": state,
    "recordings": recordings,
    "gguf": ggufs,
}


def _sentence(error: Exception) -> None:
    """Every refusal is one that people can read, and no longer than that."""
    text = str(error)
    assert text.startswith("cannot "), text
    assert len(text) <= MAX_MESSAGE_CHARS
    assert text.isprintable(), text


@contextlib.contextmanager
def _scratch() -> Iterator[Path]:
    """An empty directory, in memory where there is such a place."""
    within = "/dev/shm" if os.access("/dev/shm", os.W_OK) else None
    with tempfile.TemporaryDirectory(dir=within) as name:
        yield Path(name)
