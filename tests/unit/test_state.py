"""Records that outlive the daemon: whole or not at all, whoever damages, plants, forbids or fills what."""

import json
import os
import resource
import socket
import stat
import tempfile
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest
from msgspec import Struct

from edgeguardd import state
from edgeguardd.state import StateDirectory, StateError, file_name
from tests.support.descriptors import none_left, open_now

NOBODY = 65534


class Record(Struct, frozen=True):
    """What these tests store."""

    target: str
    old_bytes: int | None
    ratio: float = 0.5


OTHER = Record("other", None)
LLM = Record("llm", 2**63, 0.25)


class Kept(StateDirectory):
    """A state directory and the sentences that it said."""

    def __init__(self, path: Path | str) -> None:
        self.said: list[str] = []
        super().__init__(str(path), self.said.append)

    def file(self, key: str, kind: str = "lifted") -> Path:
        """Where a record lies."""
        return Path(self.path) / file_name(kind, key)


@pytest.fixture
def kept(tmp_path: Path) -> Iterator[Kept]:
    """A directory that does not exist yet; no descriptor may be left."""
    before = open_now()
    yield Kept(tmp_path / "state")
    none_left(before)


@pytest.fixture
def open_dir() -> Iterator[Path]:
    """A directory that every user can reach, unlike pytest's own."""
    with tempfile.TemporaryDirectory(prefix="edgeguardd-state-") as path:
        os.chmod(path, 0o755)  # noqa: S103 - that is what it is for
        yield Path(path)


@pytest.fixture
def unprivileged() -> Iterator[None]:
    """Root may write everywhere: be nobody for the length of a test."""
    before = os.geteuid()
    if before == 0:
        os.seteuid(NOBODY)
    yield
    os.seteuid(before)


# Whole and back


def test_a_record_comes_back_as_it_was(kept: Kept) -> None:
    """Numbers of 64 bits, None and floats, in another daemon too."""
    kept.save("lifted", "/llm.service", LLM)
    kept.save("lifted", "/other.service", OTHER)
    again = Kept(kept.path)
    assert again.load("lifted", "/llm.service", Record) == LLM
    assert again.load_all("lifted", Record) == {"/llm.service": LLM, "/other.service": OTHER}
    assert again.said == []


@pytest.mark.parametrize("durable", [True, False])
def test_the_last_save_counts(kept: Kept, durable: bool) -> None:
    """One file a record, replaced as a whole; nothing else is left lying about."""
    kept.save("lifted", "/llm", OTHER, durable=durable)
    kept.save("lifted", "/llm", LLM, durable=durable)
    assert kept.load_all("lifted", Record) == {"/llm": LLM}
    assert os.listdir(kept.path) == [kept.file("/llm").name]


def test_kinds_are_apart(kept: Kept) -> None:
    """The same key may be in several kinds; removing one leaves the others."""
    kept.save("lifted", "/llm", LLM)
    kept.save("frozen", "/llm", OTHER)
    kept.remove("lifted", "/llm")
    kept.remove("lifted", "/llm")
    assert kept.load_all("lifted", Record) == {}
    assert kept.load_all("frozen", Record) == {"/llm": OTHER}


def test_nothing_is_there_before_the_first_save(kept: Kept) -> None:
    """Reading and removing make no directory and say nothing."""
    assert kept.load("lifted", "/llm", Record) is None
    assert kept.load_all("lifted", Record) == {}
    kept.remove("lifted", "/llm")
    assert not os.path.exists(kept.path)
    assert kept.said == []


def test_the_directory_and_the_files_are_the_daemons_alone(kept: Kept) -> None:
    """0700 and 0600."""
    kept.save("lifted", "/llm", LLM)
    assert stat.S_IMODE(os.stat(kept.path).st_mode) == 0o700
    assert stat.S_IMODE(os.stat(kept.file("/llm")).st_mode) == 0o600


def test_a_directory_that_was_removed_is_made_again(kept: Kept) -> None:
    """Somebody tidies up while the daemon runs."""
    kept.save("lifted", "/llm", LLM)
    os.unlink(kept.file("/llm"))
    os.rmdir(kept.path)
    kept.save("lifted", "/llm", OTHER)
    assert kept.load("lifted", "/llm", Record) == OTHER


def test_a_symbolic_link_may_lead_to_the_directory(tmp_path: Path) -> None:
    """systemd makes one for StateDirectory= with DynamicUser=."""
    (tmp_path / "private").mkdir(mode=0o700)
    (tmp_path / "state").symlink_to(tmp_path / "private")
    kept = Kept(tmp_path / "state")
    kept.save("lifted", "/llm", LLM)
    assert kept.load("lifted", "/llm", Record) == LLM


# Strangers' keys


@pytest.mark.parametrize(
    "key", ["", "/", "../../../etc/passwd", "/a/../b", "/" + "x" * 4000, "/\udcff\udc80", "/a\nb\0c", "/日本", "/a%2Fb"]
)
def test_any_key_is_one_file_in_the_directory(kept: Kept, key: str) -> None:
    """Whatever a cgroup is called, its record lies where it should and comes back under its key."""
    kept.save("lifted", key, LLM)
    assert kept.load_all("lifted", Record) == {key: LLM}
    (name,) = os.listdir(kept.path)
    assert len(name) < 64


def test_a_kind_is_one_plain_word(kept: Kept) -> None:
    """Kinds are the program's own; another one is a defect."""
    with pytest.raises(ValueError, match="not a kind"):
        kept.save("../x", "/llm", LLM)


# Damage


def damage_cut(file: Path) -> None:
    file.write_bytes(file.read_bytes()[:-40])


def damage_flipped(file: Path) -> None:
    file.write_bytes(file.read_bytes().replace(b'"llm"', b'"lln"'))


def damage_emptied(file: Path) -> None:
    file.write_bytes(b"")


def damage_rubbish(file: Path) -> None:
    file.write_bytes(b"\xff\x00" * 100)


def damage_nested(file: Path) -> None:
    file.write_bytes(b"[" * 60_000)


def damage_nested_record(file: Path) -> None:
    file.write_bytes(b'{"v":1,"kind":"lifted","key":"x","check":"","record":' + b"[" * 50_000 + b"]" * 5000)


def damage_huge(file: Path) -> None:
    file.write_bytes(b"{}" + b" " * state.MAX_RECORD_BYTES)


def damage_version(file: Path) -> None:
    file.write_bytes(json.dumps(json.loads(file.read_bytes()) | {"v": 2}).encode())


def damage_writable(file: Path) -> None:
    file.chmod(0o620)


def damage_owner(file: Path) -> None:
    if os.geteuid() != 0:
        pytest.skip("only root can give a file away")
    os.chown(file, 12345, -1)


def damage_link(file: Path) -> None:
    file.rename(file.with_name("elsewhere"))
    file.symlink_to("elsewhere")


def damage_fifo(file: Path) -> None:
    file.unlink()
    os.mkfifo(file)


def damage_socket(file: Path) -> None:
    file.unlink()
    with socket.socket(socket.AF_UNIX) as sock:
        before = os.getcwd()
        os.chdir(file.parent)
        sock.bind(file.name)
        os.chdir(before)


def damage_directory(file: Path) -> None:
    file.unlink()
    file.mkdir()


def damage_other_record(file: Path) -> None:
    Kept(file.parent).save("lifted", "/other", OTHER)
    file.write_bytes((file.parent / file_name("lifted", "/other")).read_bytes())
    (file.parent / file_name("lifted", "/other")).unlink()


def damage_other_type(file: Path) -> None:
    class Else(Struct):
        target: int

    Kept(file.parent).save("lifted", "/llm", Else(5))


DAMAGES = [value for name, value in sorted(globals().items()) if name.startswith("damage_")]


@pytest.mark.parametrize("damage", DAMAGES, ids=lambda damage: damage.__name__)
def test_a_damaged_or_foreign_file_is_put_aside_and_said(kept: Kept, damage: Callable[[Path], None]) -> None:
    """The other records are read, the damaged one is kept for people to look at, and its name is free again."""
    kept.save("lifted", "/llm", LLM)
    kept.save("lifted", "/fine", OTHER)
    damage(kept.file("/llm"))
    assert kept.load_all("lifted", Record) == {"/fine": OTHER}
    (sentence,) = kept.said
    assert sentence.startswith(f"cannot use {kept.file('/llm')}: ")
    assert f"it is {kept.file('/llm').name}.damaged now" in sentence
    assert os.path.lexists(f"{kept.file('/llm')}.damaged")
    assert kept.load("lifted", "/llm", Record) is None
    assert len(kept.said) == 1
    kept.save("lifted", "/llm", LLM)
    assert kept.load("lifted", "/llm", Record) == LLM


def test_what_cannot_even_be_put_aside_is_said(kept: Kept) -> None:
    """A directory stands where the damaged file should go."""
    kept.save("lifted", "/llm", LLM)
    damage_emptied(kept.file("/llm"))
    os.mkdir(f"{kept.file('/llm')}.damaged")
    assert kept.load_all("lifted", Record) == {}
    assert "it cannot be put aside (Is a directory), so remove it" in kept.said[0]


def test_other_files_are_left_alone(kept: Kept) -> None:
    """The directory is shared: only names of this kind and form are looked at."""
    kept.save("lifted", "/llm", LLM)
    names = ["recorder.0", "lifted-.json", "lifted-XYZ.json", kept.file("/llm").name + ".bak", "lifted"]
    for name in names:
        (Path(kept.path) / name).write_text("not ours")
    assert kept.load_all("lifted", Record) == {"/llm": LLM}
    assert kept.said == []
    assert all((Path(kept.path) / name).read_text() == "not ours" for name in names)


def test_what_a_crash_left_half_written_is_in_nobodys_way(kept: Kept) -> None:
    """A link planted under the scratch file's name is not followed either."""
    kept.save("lifted", "/llm", OTHER)
    victim = Path(kept.path) / "victim"
    victim.write_text("untouched")
    scratch = Path(kept.path) / f".{kept.file('/llm').name}.new"
    scratch.write_text("half")
    kept.save("lifted", "/llm", LLM)
    scratch.symlink_to(victim)
    kept.save("lifted", "/llm", LLM)
    assert kept.load_all("lifted", Record) == {"/llm": LLM}
    assert victim.read_text() == "untouched"


# What stands against writing


def refused(kept: Kept, key: str = "/llm") -> str:
    """The sentence with which a save is refused."""
    with pytest.raises(StateError) as raised:
        kept.save("lifted", key, LLM)
    sentence = str(raised.value)
    assert sentence.startswith("cannot ")
    assert "; " in sentence
    return sentence


def test_a_missing_parent_is_said(tmp_path: Path) -> None:
    """Only the last directory of the path is made."""
    sentence = refused(Kept(tmp_path / "missing" / "state"))
    assert "No such file or directory; create the directory above it" in sentence


def test_a_file_in_the_directorys_place_is_said(tmp_path: Path) -> None:
    """Nothing of it is touched; reading says it as well."""
    (tmp_path / "state").write_text("mine")
    kept = Kept(tmp_path / "state")
    assert "Not a directory" in refused(kept)
    assert kept.load_all("lifted", Record) == {}
    assert "cannot read" in kept.said[0]
    assert (tmp_path / "state").read_text() == "mine"


def test_a_place_that_is_never_writable_is_said() -> None:
    """sysfs takes no directories, whoever asks."""
    refused(Kept("/sys/edgeguardd"))


def test_a_directory_without_permission_is_said(open_dir: Path, unprivileged: None) -> None:
    """EACCES names the setting; reading says it and goes on."""
    assert "Permission denied; set StateDirectory=" in refused(Kept(open_dir / "state"))


def test_a_record_without_permission_stays_and_is_said(open_dir: Path, request: pytest.FixtureRequest) -> None:
    """Not damaged, only unreadable: it is not put aside."""
    if os.geteuid() != 0:
        pytest.skip("only root can make a file that this user may not read and yet list")
    os.chmod(open_dir, 0o755)  # noqa: S103
    kept = Kept(open_dir)
    kept.save("lifted", "/llm", LLM)
    request.getfixturevalue("unprivileged")
    assert kept.load_all("lifted", Record) == {}
    assert "Permission denied" in kept.said[0]
    assert kept.file("/llm").exists()
    with pytest.raises(StateError, match=r"cannot remove .*Permission denied"):
        kept.remove("lifted", "/llm")


def test_a_directory_that_others_may_write_is_refused(kept: Kept) -> None:
    """Whoever plants a record there has the daemon write limits."""
    kept.save("lifted", "/llm", LLM)
    os.chmod(kept.path, 0o777)  # noqa: S103
    assert "others may write there; chmod go-w" in refused(kept)
    assert kept.load_all("lifted", Record) == {}
    assert "others may write there" in kept.said[0]


def test_a_directory_of_somebody_else_is_refused(kept: Kept) -> None:
    """Not root's and not our own."""
    if os.geteuid() != 0:
        pytest.skip("only root can give a directory away")
    kept.save("lifted", "/llm", LLM)
    os.chown(kept.path, 12345, -1)
    assert "it belongs to uid 12345; chown it" in refused(kept)


def test_no_room_leaves_the_old_record(kept: Kept) -> None:
    """A write that ends half-way (here: at a file size limit) changes nothing and leaves nothing."""
    kept.save("lifted", "/llm", OTHER)
    before = resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(resource.RLIMIT_FSIZE, (50, before[1]))
    try:
        assert "File too large" in refused(kept)
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, before)
    assert kept.load_all("lifted", Record) == {"/llm": OTHER}
    assert os.listdir(kept.path) == [kept.file("/llm").name]


def test_a_record_may_not_be_large(kept: Kept) -> None:
    """What could not be read again is not written."""
    with pytest.raises(StateError, match="bytes are too many"):
        kept.save("lifted", "/llm", Record("x" * state.MAX_RECORD_BYTES, None))


def test_there_are_only_so_many_records_of_a_kind(kept: Kept, monkeypatch: pytest.MonkeyPatch) -> None:
    """Strangers' cgroups cannot fill the disk; those that are there can still be replaced."""
    monkeypatch.setattr(state, "MAX_RECORDS", 2)
    kept.save("lifted", "/a", LLM)
    kept.save("lifted", "/b", LLM)
    assert "2 records of lifted are there" in refused(kept, "/c")
    kept.save("lifted", "/b", OTHER)
    kept.save("frozen", "/c", OTHER)
    assert kept.load("lifted", "/b", Record) == OTHER


def test_the_directory_is_made_when_it_alone_is_missing(tmp_path: Path) -> None:
    """0700, once; without a parent there is a sentence and nothing is made."""
    told: list[str] = []
    StateDirectory(str(tmp_path / "state"), told.append).make()
    assert (tmp_path / "state").stat().st_mode & 0o777 == 0o700
    StateDirectory(str(tmp_path / "state"), told.append).make()
    assert told == []
    StateDirectory(str(tmp_path / "no" / "state"), told.append).make()
    assert told[0].startswith(f"cannot make {tmp_path}/no/state")
    assert not (tmp_path / "no").exists()


def test_a_record_of_roots_is_believed_by_a_daemon_of_its_own_user(open_dir: Path, unprivileged: None) -> None:
    """What a run as root has left, before the service got a user of its own; not the other way round."""
    if os.getuid() != 0:
        pytest.skip("only root can leave a record of root's")
    os.seteuid(0)
    kept = Kept(open_dir)
    kept.save("lifted", "/llm", LLM)
    kept.file("/llm").chmod(0o644)
    os.seteuid(NOBODY)
    assert kept.load("lifted", "/llm", Record) == LLM
    assert kept.said == []
