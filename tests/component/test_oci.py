"""The image's recipe and the Compose file: what linter and schema say, what is pinned, and whether the parts fit."""

import json
import os
import re
import shutil
import subprocess
import sys
import tomllib
from fnmatch import fnmatch

import compose_spec
import pytest
import yaml
from packaging.requirements import Requirement

from edgeguardd.core.configparse import read
from tests.support.documents.pages import blocks
from tests.support.running import REPOSITORY

OCI = os.path.join(REPOSITORY, "packaging", "oci")
RECIPE = os.path.join(OCI, "Containerfile")
PRACTICE = os.path.join(REPOSITORY, "packaging", "examples", "practice-server", "Containerfile")
USER = "65532"


def text_of(name: str) -> str:
    with open(os.path.join(OCI, name)) as file:
        return file.read()


def instructions() -> list[tuple[str, str]]:
    """Each instruction and its words, on one line; comments left out."""
    lines = [line for line in text_of("Containerfile").splitlines() if not line.startswith("#")]
    whole = re.sub(r"\\\n\s*", "", "\n".join(lines))
    return [(line.split()[0], line.partition(" ")[2].strip()) for line in whole.splitlines() if line.strip()]


def of(kind: str) -> list[str]:
    """The words of each instruction of a kind."""
    return [words for instruction, words in instructions() if instruction == kind]


@pytest.mark.parametrize("recipe", [RECIPE, PRACTICE])
def test_the_linter_has_nothing_to_say(recipe: str) -> None:
    """hadolint parses it as a builder does, and the shell in it too."""
    hadolint = shutil.which("hadolint", path=f"{os.path.dirname(sys.executable)}:{os.environ['PATH']}")
    assert hadolint is not None, "run make setup"
    done = subprocess.run([hadolint, "--no-color", recipe], capture_output=True, text=True, timeout=60, check=False)
    assert (done.returncode, done.stdout + done.stderr) == (0, "")


def test_both_stages_stand_on_one_base_that_is_pinned() -> None:
    """By digest, and its tag says of which day it is."""
    (base,) = (words.partition("=")[2] for words in of("ARG") if words.startswith("BASE="))
    assert re.fullmatch(r"docker\.io/library/debian:\w+-\d{8}-slim@sha256:[0-9a-f]{64}", base)
    assert [words.split()[0] for words in of("FROM")] == ["${BASE}", "${BASE}"]


@pytest.mark.parametrize(
    ("lock", "wanted"), [("requirements.txt", "project"), ("requirements-build.txt", "build-system")]
)
def test_libraries_are_pinned_by_version_and_hash(lock: str, wanted: str) -> None:
    """All that pyproject.toml asks for is there, in a version that it takes, and pip is told to insist on hashes."""
    entries = [entry.strip() for entry in re.split(r"\n(?=\S)", text_of(lock)) if not entry.startswith("#")]
    pinned = {}
    for entry in entries:
        name, version = re.match(r"([\w.-]+)==(\S+) ", entry).groups()  # type: ignore[union-attr]
        assert "--hash=sha256:" in entry
        pinned[name.lower().replace("_", "-")] = version
    with open(os.path.join(REPOSITORY, "pyproject.toml"), "rb") as file:
        table = tomllib.load(file)[wanted]
    for need in map(Requirement, table["dependencies" if wanted == "project" else "requires"]):
        assert need.specifier.contains(pinned.get(need.name.lower(), "0")), f"{need}: make {lock} again, as it says"
    (run,) = (words for words in of("RUN") if f"packaging/oci/{lock}" in words)
    (pip,) = (part for part in run.split("&&") if f"packaging/oci/{lock}" in part)
    assert "--require-hashes" in pip


def test_it_runs_as_nobody_in_particular() -> None:
    """A numeric user that Kubernetes can tell from root, a health check, the labels of the image specification."""
    assert of("USER") == [f"{USER}:{USER}"]
    assert instructions()[-1] == ("CMD", '["run"]')
    assert '["edgeguardctl", "health"]' in of("HEALTHCHECK")[0]
    labels = set(re.findall(r"org\.opencontainers\.image\.([\w.]+)=", of("LABEL")[0]))
    assert {"title", "description", "licenses", "version", "revision", "base.name"} <= labels
    assert not re.search(r"(?i)secret|token|password|--privileged|curl .*\| *sh", text_of("Containerfile"))


def test_what_is_copied_is_there_and_reaches_the_build() -> None:
    """Nothing but it does: the ignore file lets in what is named."""
    let_in = {line[1:] for line in text_of("Containerfile.dockerignore").splitlines() if line.startswith("!")}
    assert "*" in text_of("Containerfile.dockerignore").splitlines()
    for words in of("COPY"):
        *sources, _ = words.split()
        if sources[0].startswith("--from="):
            continue
        for source in sources:
            assert os.path.exists(os.path.join(REPOSITORY, source)), source
            assert any(fnmatch(source, f"{pattern}*") for pattern in let_in), source


def test_the_configuration_of_the_image() -> None:
    """It is taken, and differs from the defaults by what a container needs alone."""
    config = read(text_of("edgeguardd.toml").encode(), "edgeguardd.toml")
    assert (config.socket.group, config.http.address, config.log.format) == (USER, "0.0.0.0", "json")  # noqa: S104
    assert config.targets == ()


def test_the_compose_file_is_what_the_specification_takes() -> None:
    """Checked by a parser of the Compose specification, which refuses what it does not know."""
    compose_spec.PyCompose.from_yaml(text_of("compose.yml")).validate()
    with pytest.raises(ValueError, match="read_onyl"):
        compose_spec.PyCompose.from_yaml(
            text_of("compose.yml").replace("read_only: true\n    cap", "read_onyl: true\n    cap")
        )


def test_the_parts_of_the_compose_file_fit_each_other() -> None:
    """Namespaces and tree, user and group, the socket's volume, the port on loopback, nothing that is not needed."""
    services = yaml.safe_load(text_of("compose.yml"))["services"]
    guard, server = services["edgeguardd"], services["llm"]
    assert (guard["pid"], guard["cgroup"], guard["read_only"]) == ("host", "host", True)
    assert guard["cap_drop"] == ["ALL"]
    assert guard["security_opt"] == ["no-new-privileges:true"]
    assert not {"privileged", "cap_add", "network_mode"} & guard.keys()
    tree = guard["volumes"][0]
    assert (tree["source"], tree["target"], tree["read_only"]) == ("/sys/fs/cgroup", "/sys/fs/cgroup", True)
    assert guard["user"] == of("USER")[0]
    assert server["group_add"] == [USER]
    assert "guard:/run/edgeguardd" in guard["volumes"]
    assert "guard:/run/edgeguardd:ro" in server["volumes"]
    assert guard["ports"] == ["127.0.0.1:9464:9464"]
    assert os.path.samefile(os.path.join(OCI, guard["build"]["context"]), REPOSITORY)
    assert os.path.exists(os.path.join(REPOSITORY, guard["build"]["dockerfile"]))


def test_the_practice_server_stands_on_the_guard() -> None:
    """Its image has the client from there; what it copies lies beside its recipe, and starts as it says."""
    with open(PRACTICE) as file:
        text = file.read()
    assert "ARG GUARD=localhost/edgeguardd:latest" in text
    (copied,) = re.findall(r"^COPY (\S+) (\S+)$", text, re.MULTILINE)
    entry = json.loads(re.findall(r"^ENTRYPOINT (.*)$", text, re.MULTILINE)[0])
    assert os.path.exists(os.path.join(os.path.dirname(PRACTICE), copied[0]))
    assert entry == ["python3", copied[1]]
    assert not re.search(rf"^USER {USER}\b", text, re.MULTILINE), "nobody but the guard is the guard"


def test_the_images_are_built_where_there_is_a_builder() -> None:
    """Both, one after the other, and each says what it is. It takes an engine that runs, and a registry in reach."""
    engine = next((name for name in ("podman", "docker") if shutil.which(name)), None)
    if engine is None or subprocess.run([engine, "info"], capture_output=True, timeout=30, check=False).returncode:
        pytest.skip("no engine runs here that could build an image")
    for recipe, image, context in (
        (RECIPE, "localhost/edgeguardd-test", REPOSITORY),
        (PRACTICE, "localhost/edgeguardd-test-practice", os.path.dirname(PRACTICE)),
    ):
        options = ["--build-arg", "GUARD=localhost/edgeguardd-test:latest"] if recipe == PRACTICE else []
        subprocess.run([engine, "build", *options, "-f", recipe, "-t", image, context], check=True, timeout=110)
    for image in ("localhost/edgeguardd-test-practice", "localhost/edgeguardd-test"):
        done = subprocess.run(
            [engine, "run", "--rm", image, "--help"], capture_output=True, text=True, timeout=60, check=True
        )
        assert done.stdout.startswith("usage: ")
        subprocess.run([engine, "image", "rm", image], capture_output=True, timeout=60, check=True)


def test_the_recipe_that_the_page_shows_is_one() -> None:
    """For a reader's own image; that pip takes the newest of msgspec, and may cache, is left to the reader."""
    (block,) = blocks("docs/how-to/docker.md", "dockerfile")
    hadolint = shutil.which("hadolint", path=f"{os.path.dirname(sys.executable)}:{os.environ['PATH']}")
    assert hadolint is not None, "run make setup"
    argv = [hadolint, "--no-color", "--ignore", "DL3013", "--ignore", "DL3042", "-"]
    done = subprocess.run(argv, input=block.text, capture_output=True, text=True, timeout=60, check=False)
    assert (done.returncode, done.stdout + done.stderr) == (0, "")
