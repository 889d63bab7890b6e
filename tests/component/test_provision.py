"""edgeguardctl provision and size as people run them: the page's commands, exit status, faults; no kernel needed."""

import re
import shlex
import subprocess
import sys
from pathlib import Path

import pytest

from tests.support import ggufs
from tests.support.running import REPOSITORY

CTL = [sys.executable, "-c", "import sys; from edgeguardd.cli.edgeguardctl import main; sys.exit(main())"]
PAGE = Path(REPOSITORY, "docs/how-to/isolate-a-server.md").read_text()


def ctl(*words: str, cwd: Path) -> "subprocess.CompletedProcess[str]":
    """Run a command to its end."""
    env = {"PYTHONPATH": REPOSITORY, "PATH": "/usr/sbin:/usr/bin:/sbin:/bin"}
    return subprocess.run([*CTL, *words], capture_output=True, text=True, timeout=60, check=False, cwd=cwd, env=env)


def test_size_says_what_the_page_shows(tmp_path: Path) -> None:
    """Where the page has an ellipsis, anything may stand."""
    ggufs.model(tmp_path)
    block = next(one for one in re.findall(r"```console\n(.*?)```", PAGE, re.DOTALL) if "edgeguardctl size" in one)
    command, *shown = block.splitlines()
    done = ctl(*shlex.split(command)[2:], cwd=tmp_path)
    assert (done.returncode, done.stderr) == (0, "")
    for line in shown:
        pattern = ".*".join(re.escape(part) for part in line.split("…"))
        assert re.search(pattern, done.stdout), (line, done.stdout)


@pytest.mark.parametrize("block", re.findall(r"```toml\n(.*?)```", PAGE, re.DOTALL))
def test_the_pages_files_are_taken(block: str, tmp_path: Path) -> None:
    """Without a fault."""
    (tmp_path / "f.toml").write_text(block)
    done = ctl("check-config", "f.toml", cwd=tmp_path)
    assert (done.returncode, done.stderr) == (0, "")


@pytest.mark.parametrize(
    ("text", "words", "status", "sentence"),
    [
        ("", [], 2, "cannot provision anything: no [[provision.slice]] and no [[provision.service]]; write one (edge"),
        ("[provision]\nbackend = 1", [], 2, "cannot use provision.backend"),
        ('[provision]\nbackend = "cgroup"', ["--undo", "--runtime"], 1, "cannot do with --runtime"),
        ("", ["--wait", "0"], 2, "write seconds above 0"),
    ],
)
def test_faults_are_one_sentence(text: str, words: list[str], status: int, sentence: str, tmp_path: Path) -> None:
    """And the exit status says whose."""
    (tmp_path / "f.toml").write_text(text)
    done = ctl("provision", "--config", "f.toml", *words, cwd=tmp_path)
    assert done.returncode == status
    assert sentence in done.stderr
    assert "Traceback" not in done.stderr


@pytest.mark.parametrize(
    ("words", "status", "sentence"),
    [
        (["nothing.gguf"], 1, "cannot read nothing.gguf: No such file or directory"),
        (["/"], 1, "cannot read /: "),
        (["/dev/zero"], 1, "it is not a regular file"),
        (["model.gguf", "--cache-type-k", "q3"], 2, "write one of f32, f16"),
        (["model.gguf", "--ram", "8GB"], 2, "write bytes, or a number with K, M, G or T"),
        (["model.gguf", "--ram", "2G", "--others", "1G"], 1, "cannot fit Test 7B"),
        (["model.gguf", "--unit", "a.slice"], 2, "only a .service"),
    ],
)
def test_what_cannot_be_sized_is_one_sentence(words: list[str], status: int, sentence: str, tmp_path: Path) -> None:
    """No traceback whatever is named."""
    ggufs.model(tmp_path)
    done = ctl("size", *words, cwd=tmp_path)
    assert done.returncode == status
    assert sentence in done.stderr
    assert "Traceback" not in done.stderr
