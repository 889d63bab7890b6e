"""The unit files: what systemd would say of them, from the oldest version that they are for to today's."""

import re
import shutil
import subprocess
from pathlib import Path

import pytest

from tests.support.running import REPOSITORY

KINDS = {".service", ".socket", ".slice", ".conf"}
UNITS = sorted(p for p in Path(REPOSITORY, "systemd").rglob("*") if p.suffix in KINDS)
OLDEST = 249
OLD = """
    After Also Backlog Before CapabilityBoundingSet Description DeviceAllow DevicePolicy DirectoryMode
    Documentation Environment ExecReload ExecStart ExecStopPost Group LimitMEMLOCK LimitNOFILE ListenStream
    Nice NoNewPrivileges NotifyAccess OOMScoreAdjust PrivateTmp Restart RestartSec Service Slice SocketMode
    SupplementaryGroups SystemCallFilter TimeoutStartSec TimeoutStopSec Type UMask User WantedBy Wants
    WatchdogSec
"""
# Setting -> the version of systemd that brought it ("Added in version" in systemd.exec(5), systemd.service(5),
# systemd.resource-control(5), systemd.socket(5), systemd.unit(5) and NEWS); 0: before 209.
SINCE = {
    **dict.fromkeys(OLD.split(), 0),
    "PrivateDevices": 209,
    "SystemCallArchitectures": 209,
    "SystemCallErrorNumber": 209,
    "RestrictAddressFamilies": 211,
    "RuntimeDirectory": 211,
    "RuntimeDirectoryMode": 211,
    "ProtectHome": 214,
    "ProtectSystem": 214,
    "RemoveOnStop": 214,
    "SocketGroup": 214,
    "SocketUser": 214,
    "FileDescriptorStoreMax": 219,
    "TasksMax": 227,
    "AmbientCapabilities": 229,
    "StartLimitBurst": 229,
    "StartLimitIntervalSec": 230,
    "MemoryDenyWriteExecute": 231,
    "MemoryHigh": 231,
    "MemoryMax": 231,
    "ReadWritePaths": 231,
    "RestrictRealtime": 231,
    "CPUWeight": 232,
    "MemorySwapMax": 232,
    "ProtectControlGroups": 232,
    "ProtectKernelModules": 232,
    "ProtectKernelTunables": 232,
    "RemoveIPC": 232,
    "RestrictNamespaces": 233,
    "ConfigurationDirectory": 235,
    "IPAddressAllow": 235,
    "IPAddressDeny": 235,
    "KeyringMode": 235,
    "LockPersonality": 235,
    "RuntimeDirectoryPreserve": 235,
    "StateDirectory": 235,
    "StateDirectoryMode": 235,
    "PrivateMounts": 239,
    "MemoryMin": 240,
    "ProtectHostname": 242,
    "RestrictSUIDSGID": 242,
    "OOMPolicy": 243,
    "TimeoutAbortSec": 243,
    "ProtectKernelLogs": 244,
    "ProtectClock": 245,
    "ManagedOOMPreference": 248,
    "MemoryPressureWatch": 254,
}
# Older versions say that they ignore it; what it is for they do not do anyway (its comment says so).
IGNORED_BY_OLDER = {("pressure-watch.conf", "MemoryPressureWatch")}
# A value that older versions refuse or take for another one: setting -> what it may be, as a pattern.
VALUES = {
    "Type": r"notify",  # notify-reload is of 253
    "ProtectControlGroups": r"yes|no",  # private, strict: 257
    "ProtectHostname": r"yes|no",  # private: 258
    "ProtectSystem": r"strict",  # 232
    "PrivateTmp": r"yes",  # disconnected: 257
    "RestartSec": r"[0-9]+m?s",
    "Restart": r"always|on-failure",
    "CapabilityBoundingSet": r"(CAP_(DAC_OVERRIDE|KILL|SYS_RESOURCE|IPC_LOCK|NET_ADMIN|SYSLOG|SYS_PTRACE) ?)*",
    "ManagedOOMPreference": r"omit|avoid",
}

ANALYZE = shutil.which("systemd-analyze")


@pytest.mark.skipif(ANALYZE is None, reason="systemd-analyze is not installed")
@pytest.mark.parametrize("name", ["edgeguardd-bridge@.service"])
def test_systemd_understands_every_line(tmp_path: Path, name: str) -> None:
    """A line that it would ignore is a fault here: a sandbox that is misspelt is none."""
    text = Path(REPOSITORY, "systemd", name).read_text()
    program = next(line for line in text.splitlines() if line.startswith("ExecStart="))
    assert program.startswith("ExecStart=/usr/bin/edgeguardctl bridge --settings /etc/edgeguardd/bridges/%i.toml")
    tmp_path.joinpath(name).write_text(text.replace("ExecStart=/usr/bin/edgeguardctl", "ExecStart=/bin/true"))
    instance = name.replace("@.", "@llama.")
    done = subprocess.run(
        [ANALYZE or "", "verify", "--man=no", str(tmp_path / instance)], capture_output=True, text=True, check=False
    )
    assert (done.returncode, done.stderr) == (0, "")


@pytest.mark.parametrize("path", UNITS, ids=lambda path: path.name)
def test_nothing_in_it_is_newer_than_the_oldest_systemd(path: Path) -> None:
    """systemd 249 (Ubuntu 22.04, JetPack 6) knows every setting and every value; what it ignores is harmless."""
    found = re.findall(r"^(\w+)=(.*)$", path.read_text(), re.MULTILINE)
    if path.parent.name in {"sysusers.d", "tmpfiles.d"}:
        assert found == []
        return
    assert found
    newer = {name for name, _ in found if SINCE[name] > OLDEST}
    assert newer <= {name for file, name in IGNORED_BY_OLDER if file == path.name}
    wrong = [f"{name}={value}" for name, value in found if not re.fullmatch(VALUES.get(name, ".*"), value)]
    assert wrong == []
