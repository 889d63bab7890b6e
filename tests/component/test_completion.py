"""Shell completion: what is shipped is what the parsers have, and each shell completes words with it."""

import shutil
import subprocess
from pathlib import Path

import pytest

from edgeguardd.cli import completion, edgeguardctl
from tests.support.running import REPOSITORY

SHIPPED = Path(REPOSITORY, "packaging/completion")
# What is typed before the TAB, and words that have to be among those offered.
TYPED = [
    ("edgeguardctl che", {"check-config"}),
    ("edgeguardctl doctor --j", {"--json"}),
    ("edgeguardctl audit --format ", {"text", "json", "junit", "sarif"}),
    ("edgeguardctl bridge llama-server --dr", {"--drain"}),
    ("edgeguardctl check-config practice.", {"practice.toml"}),
    ("edgeguardd run --log-format t", {"text"}),
]
# The function that the file has registered for the command is called as bash calls it.
BASH = """
source "$1"
read -r -a COMP_WORDS <<<"$2"
[[ $2 == *' ' ]] && COMP_WORDS+=("")
COMP_CWORD=$((${#COMP_WORDS[@]} - 1)) COMP_LINE=$2 COMP_POINT=${#2}
[[ $(complete -p "${COMP_WORDS[0]}") =~ -F\\ ([^ ]+) ]]
"${BASH_REMATCH[1]}" "${COMP_WORDS[0]}" "${COMP_WORDS[COMP_CWORD]}" "${COMP_WORDS[COMP_CWORD - 1]}"
printf '%s\\n' "${COMPREPLY[@]}"
"""
# zsh completes only in its line editor: one in a terminal of its own is typed to, and lists what it has.
ZSH = """
zmodload zsh/zpty
zpty shell zsh -f -i
zpty -w shell "PS1=; LISTMAX=1000; fpath=(${1:h} \\$fpath)"
zpty -w shell "autoload -U compinit; compinit -u -D; compdef ${1:t} ${2%% *}"
zpty -w shell "bindkey '^I' list-choices; unsetopt beep; echo RE''ADY"
zpty -r shell answer '*READY*'
zpty -w -n shell "$2"$'\\t'
zpty -r shell listed "*$3*"
zpty -w -n shell $'\\C-u'"echo DO''NE"$'\\n'
zpty -r shell answer '*DONE*'
print -r -- $listed $answer
"""
FISH = 'source $argv[1]; complete -C "$argv[2]"'


@pytest.mark.parametrize("name", sorted(completion.pages()))
def test_what_is_shipped_is_up_to_date(name: str) -> None:
    """Whoever adds an option runs `make docs`."""
    assert (SHIPPED / name).read_text() == completion.pages()[name], f"{name} is out of date: run `make docs`"


def test_nothing_else_is_shipped() -> None:
    """A file for each of both commands and three shells; every command of edgeguardctl is in each."""
    assert {path.name for path in SHIPPED.iterdir()} == set(completion.pages())
    for name, text in completion.pages().items():
        assert "edgeguardctl" not in name or all(command in text for command in edgeguardctl.names())


@pytest.mark.parametrize("shell", ["bash", "zsh", "fish"])
@pytest.mark.parametrize(("typed", "wanted"), TYPED)
def test_the_shell_completes(shell: str, typed: str, wanted: set[str], tmp_path: Path) -> None:
    """Commands, options, choices and files."""
    program = shutil.which(shell)
    if program is None:
        pytest.skip(f"{shell} is not installed")
    (tmp_path / "practice.toml").touch()
    path = str(SHIPPED / completion.FILES[shell].format(typed.split(maxsplit=1)[0]))
    argv = {
        "bash": [program, "--norc", "-c", BASH, "bash", path, typed],
        "zsh": [program, "-f", "-c", ZSH, "zsh", path, typed, min(wanted)],  # keys that come early stop the listing
        "fish": [program, "--no-config", "-c", FISH, "--", path, typed],
    }[shell]
    environment = {"PATH": "/usr/bin:/bin", "HOME": str(tmp_path), "TERM": "dumb", "LANG": "C.UTF-8"}
    done = subprocess.run(
        argv, cwd=tmp_path, env=environment, stdin=subprocess.DEVNULL, capture_output=True, text=True, timeout=60,
        check=False,
    )  # fmt: skip
    offered = set(done.stdout.replace("\t", " ").split())
    assert wanted <= offered, (done.stdout, done.stderr)
