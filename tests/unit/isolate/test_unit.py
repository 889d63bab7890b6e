"""Files -> the unit in force: found, merged, refused, ignored; the comparison with systemd is in tests/component."""

from pathlib import Path

import pytest

from edgeguardd.isolate.effective import effective
from edgeguardd.isolate.unit import Loader, Machine, Unit
from edgeguardd.isolate.unitfiles import SearchPath
from tests.support.unittree import GIB, MIB, RUN, loaded, service

SERVICE = f"[Service]\n{RUN}"


def said(unit: Unit) -> list[str]:
    """What systemd leaves out."""
    return [remark.text for remark in unit.ignored]


def test_drop_ins_count_by_file_name_and_the_special_hides_the_general(tmp_path: Path) -> None:
    """Over all folders; the type-wide ones are the most general; a masked drop-in hides one of its name."""
    unit = loaded(
        tmp_path,
        {
            "lib/a-b.service": SERVICE + "MemoryMax=1G\n",
            "lib/a-b.service.d/10.conf": "[Service]\nMemoryMax=2G\n",
            "lib/a-b.service.d/20.conf": "[Service]\nMemoryMin=1G\n",
            "etc/a-.service.d/10.conf": "[Service]\nMemoryHigh=1G\n",
            "etc/a-b.service.d/20.conf": "-> /dev/null",
            "etc/service.d/05.conf": "[Service]\nMemoryMax=3G\n",
            "etc/service.d/10.conf": "[Service]\nMemoryMax=4G\n",
        },
        "a-b.service",
        ("etc", "lib"),
    )
    shown = effective(unit)
    assert (shown["MemoryMax"], shown["MemoryHigh"], shown["MemoryMin"]) == (3 * GIB, GIB, 0)
    assert [Path(file).name for file in unit.files] == ["a-b.service", "05.conf", "10.conf", "20.conf"]


def test_a_unit_has_the_drop_ins_of_its_aliases(tmp_path: Path) -> None:
    """By whichever name it is asked for."""
    files = {
        "lib/a.service": SERVICE,
        "etc/b.service": "-> ../lib/a.service",
        "etc/b.service.d/1.conf": "[Service]\nMemoryMax=1G\n",
    }
    unit = loaded(tmp_path, files, "b.service", ("etc", "lib"))
    assert (unit.name, unit.found.aliases, unit.values["MemoryMax"]) == ("a.service", ("b.service",), GIB)


def test_an_alias_that_became_a_copy_is_taken_for_the_link_it_was_and_said(tmp_path: Path) -> None:
    """Only if Alias= names it and its bytes are the same; another file of that name is another unit."""
    text = SERVICE + "[Install]\nAlias=b.service\n"
    files = {"lib/a.service": text, "etc/b.service": text, "etc/b.service.d/1.conf": "[Service]\nMemoryMax=1G\n"}
    unit = loaded(tmp_path, files, "a.service", ("etc", "lib"))
    assert unit.values["MemoryMax"] == GIB
    assert "taken for the alias link" in unit.found.notes[0]
    assert loaded(tmp_path, {}, "b.service", ("etc", "lib")).found == unit.found
    (tmp_path / "etc/b.service").write_text(text + "# other\n")
    again = Loader(SearchPath((str(tmp_path / "etc"), str(tmp_path / "lib"))), Machine(GIB)).load("a.service")
    assert (again.found.aliases, again.found.notes) == ((), ())


def test_an_image_is_searched_below_its_root(tmp_path: Path) -> None:
    """Absolute links begin there, not on this machine."""
    (tmp_path / "etc/units").mkdir(parents=True)
    (tmp_path / "lib/units").mkdir(parents=True)
    (tmp_path / "lib/units/a.service").write_text(SERVICE + "MemoryMax=1G\n")
    (tmp_path / "etc/units/b.service").symlink_to("/lib/units/a.service")
    path = SearchPath(("/etc/units", "/lib/units"), str(tmp_path))
    assert Loader(path, Machine(GIB)).load("b.service").name == "a.service"


@pytest.mark.parametrize(
    ("files", "state"),
    [
        ({"a.service": ""}, "masked"),
        ({"a.service": "-> /dev/null"}, "masked"),
        ({}, "not-found"),
        ({"a.service": "-> /nonexistent/a.service"}, "not-found"),
        ({"a.service.d/1.conf": SERVICE}, "not-found"),
        ({"a.service": "[Service]\nMemoryMax=1G\n"}, "bad-setting"),
        ({"a.service": f"{SERVICE}{RUN}"}, "bad-setting"),
        ({"a.service": f"{SERVICE}Type=oneshot\nRestart=always\n"}, "bad-setting"),
        ({"a.service": "[Service]\nExecStart=not/absolute\n"}, "bad-setting"),
        ({"a.service": f"{SERVICE}User=a:b\n"}, "bad-setting"),
        ({"a.service": f"{SERVICE}WorkingDirectory=x\n"}, "bad-setting"),
        ({"a.service": f"{SERVICE}DynamicUser=maybe\n"}, "bad-setting"),
        ({"a.service": f"{SERVICE}[Broken\n"}, "error"),
    ],
)
def test_a_unit_that_systemd_does_not_load_has_its_state_and_says_why(
    tmp_path: Path, files: dict[str, str], state: str
) -> None:
    """In systemd's words."""
    unit = loaded(tmp_path, files)
    assert unit.load_state == state
    assert unit.why
    assert effective(unit) == {"load_state": state}


def test_a_broken_drop_in_counts_up_to_its_fault(tmp_path: Path) -> None:
    """And the unit is loaded all the same."""
    unit = loaded(
        tmp_path,
        {
            "a.service": SERVICE,
            "a.service.d/1.conf": "[Service]\nMemoryMax=1G\nExecStart=not/absolute\nMemoryHigh=1G\n",
            "a.service.d/2.conf": "[Service]\nMemoryMin=1M\n[x\nMemoryMin=2M\n",
        },
    )
    shown = effective(unit)
    assert (shown["load_state"], shown["MemoryMax"], shown["MemoryHigh"]) == ("loaded", GIB, "infinity")
    assert shown["MemoryMin"] == MIB


def test_what_is_ignored_keeps_what_was_there_and_is_said_with_what_to_write(tmp_path: Path) -> None:
    """Bad values, unknown keys and sections, keys in the wrong section."""
    unit = service(
        tmp_path, "MemoryMax=2G\nMemoryMax=4GiB\nmemoryhigh=1G\n[Unit]\nMemoryMax=1G\n[Foo]\nA=1\n[X-B]\nA=1\n"
    )
    assert unit.values["MemoryMax"] == 2 * GIB
    texts = said(unit)
    assert "unknown section [Foo], ignored with all in it" in texts
    assert any(text.startswith("MemoryMax=4GiB ignored: no size; write bytes") for text in texts)
    assert "unknown key 'memoryhigh' in [Service], ignored; it is MemoryHigh in [Service]" in texts
    assert "unknown key 'MemoryMax' in [Unit], ignored; it is MemoryMax in [Service]" in texts
    assert len(texts) == 4


@pytest.mark.parametrize(
    ("line", "ignored"),
    [
        ("PrivateNetwork=yes", False),
        ("PrivateNetwork=yes # c", True),
        ("TimeoutStopSec=5sec", False),
        ("TimeoutStopSec=five", True),
        ("TasksMax=50%", False),
        ("TasksMax=0", True),
        ("CPUQuota=150%", False),
        ("CPUQuota=1.5", True),
        ("CPUWeight=idle", False),
        ("IOWeight=0", True),
        ("Nice=-5", False),
        ("Nice=low", True),
        ("LogsDirectory=anything", False),
    ],
)
def test_values_of_other_settings_are_checked_too(tmp_path: Path, line: str, ignored: bool) -> None:
    """Where their form is plain: booleans, time spans, shares, weights."""
    assert bool(said(service(tmp_path, line + "\n"))) == ignored


def test_an_empty_value_resets_limits_lists_and_capabilities(tmp_path: Path) -> None:
    """But not words: those are ignored."""
    unit = service(
        tmp_path,
        "MemoryMax=1G\nMemoryMax=\nReadWritePaths=/a\nReadWritePaths=\nReadWritePaths=/b /c\nRestart=always\nRestart=\n"
        "CapabilityBoundingSet=CAP_KILL\nCapabilityBoundingSet=CAP_CHOWN\nCapabilityBoundingSet=~CAP_KILL\n",
    )
    shown = effective(unit)
    assert (shown["MemoryMax"], shown["ReadWritePaths"], shown["Restart"]) == ("infinity", ["/b", "/c"], "always")
    assert shown["CapabilityBoundingSet"] == "cap_chown"


def test_dynamic_users_and_private_devices_imply_their_sandbox(tmp_path: Path) -> None:
    """As systemd patches them in."""
    shown = effective(service(tmp_path, "DynamicUser=yes\nProtectClock=yes\n"))
    assert (shown["NoNewPrivileges"], shown["ProtectSystem"], shown["ProtectHome"]) == (True, "strict", "read-only")
    assert "cap_sys_time" not in shown["CapabilityBoundingSet"]


def test_limits_of_slices_above_are_in_force_too(tmp_path: Path) -> None:
    """A slice needs no file of its own; its drop-ins count."""
    unit = loaded(
        tmp_path,
        {
            "a.service": f"{SERVICE}Slice=edge-llm.slice\nMemoryMax=4G\n",
            "edge.slice": "[Slice]\nMemoryMax=3G\nMemoryHigh=2G\n",
            "edge-llm.slice.d/1.conf": "[Slice]\nDefaultMemoryMin=1G\n",
        },
    )
    assert [above.name for above in unit.slices] == ["edge-llm.slice", "edge.slice", "-.slice"]
    shown = effective(unit)
    assert (shown["EffectiveMemoryMax"], shown["EffectiveMemoryHigh"], shown["MemoryMin"]) == (3 * GIB, 2 * GIB, GIB)


def test_keys_come_and_go_with_versions(tmp_path: Path) -> None:
    """MemoryZSwapMax= since 253, MemoryLimit= until 257."""
    text = f"{SERVICE}MemoryZSwapMax=1G\nMemoryLimit=1G\nType=notify-reload\n"
    (tmp_path / "a.service").write_text(text)
    path = SearchPath((str(tmp_path),))
    old, new = (Loader(path, Machine(GIB, version=version)).load("a.service") for version in (252, 258))
    assert ("MemoryZSwapMax" in old.set_at, "MemoryLimit" in old.set_at, old.values["Type"]) == (False, True, "simple")
    assert ("MemoryZSwapMax" in new.set_at, "MemoryLimit" in new.set_at) == (True, False)
    assert new.values["Type"] == "notify-reload"


def test_instances_are_found_where_they_are_wanted(tmp_path: Path) -> None:
    """For --all: units with files, instances in .wants folders, aliases once."""
    files = {
        "a@.service": SERVICE,
        "b.service": SERVICE,
        "c.service": "-> b.service",
        "multi-user.target.wants/a@one.service": "-> ../a@.service",
        "multi-user.target.wants/gone@two.service": "-> ../gone@.service",
        "x.slice": "[Slice]\n",
        "y.timer": "[Timer]\n",
    }
    loaded(tmp_path, files)
    path = SearchPath((str(tmp_path),))
    assert path.units(("service", "slice")) == ["a@one.service", "b.service", "x.slice"]
    assert path.templates(("service",)) == ["a@.service"]
