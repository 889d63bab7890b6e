"""The pages on Docker and Kubernetes: no engine runs here, so each command is taken apart and held against the files.

What a command runs inside of a container is run for real, in a place with a daemon; what it names has to be there.
"""

import argparse
import os
import re
import shlex
import shutil
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import yaml
from msgspec.structs import replace

from edgeguardd.core.configparse import read
from edgeguardd.kernel.names import found_name
from edgeguardd.kernel.resolve import Glob
from tests.support import kustomize, pods
from tests.support.documents.pages import blocks, commands, text_of
from tests.support.documents.place import Place
from tests.support.running import REPOSITORY

DOCKER, KUBERNETES = "docs/how-to/docker.md", "docs/how-to/kubernetes.md"
# Image -> the recipe that it is built by, and from where.
IMAGES = {
    "localhost/edgeguardd": ("packaging/oci/Containerfile", "."),
    "localhost/practice-server": (
        "packaging/examples/practice-server/Containerfile",
        "packaging/examples/practice-server",
    ),
}
OURS = ("docker", "kubectl")


def compose() -> dict[str, Any]:
    """The services of the Compose file."""
    with open(os.path.join(REPOSITORY, "packaging", "oci", "compose.yml")) as file:
        services: dict[str, Any] = yaml.safe_load(file)["services"]
    return services


def typed(page: str) -> list[str]:
    return [one.text for one in commands(page) if one.text.startswith(OURS)]


@pytest.mark.parametrize("command", typed(DOCKER))
def test_each_docker_command_names_what_is_there(place: str, command: str) -> None:
    """Files, image, services; options of `run` as in the Compose file; what is run inside works."""
    words = shlex.split(command)
    kinds: dict[str, Callable[[list[str], str], None]] = {
        "build": docker_build, "compose": docker_compose, "run": docker_run, "image": docker_remove,
        "rm": docker_remove, "volume": docker_remove,
    }  # fmt: skip
    if "--rm" in words:
        docker_look(words)
    else:
        kinds[words[1]](words[2:], place)


def docker_build(words: list[str], _: str) -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("-f")
    parser.add_argument("-t")
    parser.add_argument("context")
    args = parser.parse_args(words)
    assert IMAGES[args.t] == (args.f, args.context)
    assert os.path.exists(os.path.join(REPOSITORY, args.f))


def docker_look(words: list[str]) -> None:
    """What looks at the host from a container finds it below /host, which is this machine's root."""
    inside = words.index("localhost/edgeguardd:latest")
    assert "/:/host:ro" in words[:inside]
    assert words[inside - 2 : inside] == ["--entrypoint", "edgeguardctl"]
    doctor(words[inside + 1 :])


def doctor(words: list[str]) -> None:
    """As if this machine's root were mounted there: findings, whatever they are."""
    assert words[:2] == ["doctor", "--root"]
    argv = [sys.executable, "-m", "edgeguardd.cli.edgeguardctl", "doctor", "--root", words[2].replace("/host", "/")]
    done = subprocess.run(argv, cwd=REPOSITORY, capture_output=True, text=True, timeout=60, check=False)
    assert done.returncode in {0, 1}
    assert (done.stderr, " kernel: Linux " in done.stdout) == ("", True)


def docker_remove(words: list[str], _: str) -> None:
    """What was started or made before, by its name."""
    made = {"llm", "edgeguardd", "guard", "state", *(f"{image}:latest" for image in IMAGES)}
    named = [word for word in words if word not in {"rm", "--force"}]
    assert named
    assert set(named) <= made


def docker_compose(words: list[str], place: str) -> None:
    if words == ["version"]:
        return
    assert words[0] == "-f"
    assert os.path.samefile(os.path.join(REPOSITORY, words[1]), os.path.join(REPOSITORY, "packaging/oci/compose.yml"))
    match words[2:]:
        case ["up", "-d"] | ["down", "--volumes"]:
            pass
        case ["logs" | "restart", service] | ["kill", "-s", "HUP", service]:
            assert service in compose()
        case ["exec", service, *inside]:
            assert service in compose()
            ran(place, inside)
        case other:
            pytest.fail(f"what does {other} do?")


def ran(place: str, inside: list[str]) -> None:
    """Inside of a container: a reader's place with a daemon."""
    with Place(place) as reader:
        done = reader.run(shlex.join(inside))
    assert done.returncode == 0, done.stdout
    assert done.stdout


def docker_run(words: list[str], _: str) -> None:
    """The same as the service of that name: each option of the one has its key in the other."""
    parser = argparse.ArgumentParser()
    for option in ("name", "pid", "cgroupns", "user", "cap-drop", "security-opt", "memory", "memory-swap"):
        parser.add_argument(f"--{option}")
    for option in ("pids-limit", "oom-score-adj"):
        parser.add_argument(f"--{option}", type=int)
    parser.add_argument("--restart")
    parser.add_argument("--group-add", action="append")
    parser.add_argument("--read-only", action="store_true", default=None)
    parser.add_argument("-d", action="store_true")
    parser.add_argument("-p", action="append")
    parser.add_argument("-v", action="append")
    parser.add_argument("image")
    args = parser.parse_args(words)
    service = compose()[args.name]
    volumes = [
        volume if isinstance(volume, str) else f"{volume['source']}:{volume['target']}:ro"
        for volume in service["volumes"]
    ]
    assert args.d
    assert vars(args) == {
        "name": args.name,
        "pid": service.get("pid"),
        "cgroupns": service.get("cgroup"),
        "user": service.get("user"),
        "cap_drop": service.get("cap_drop", [None])[0],
        "security_opt": service.get("security_opt", [None])[0],
        "memory": service["mem_limit"],
        "memory_swap": service["memswap_limit"],
        "pids_limit": service.get("pids_limit"),
        "oom_score_adj": service.get("oom_score_adj"),
        "restart": service["restart"],
        "group_add": service.get("group_add"),
        "read_only": service.get("read_only"),
        "d": True,
        "p": service.get("ports"),
        "v": volumes,
        "image": service["image"],
    }


@pytest.mark.parametrize("command", typed(KUBERNETES))
def test_each_kubectl_command_names_what_is_there(place: str, command: str) -> None:
    """Directories that build, objects that are in them; what is run inside works."""
    objects = {
        (document["metadata"].get("namespace"), f"{document['kind'].lower()}/{document['metadata']['name']}")
        for document in kustomize.built(os.path.join(pods.KUBERNETES, "base"))
    }
    match shlex.split(command):
        case ["docker", "save", *images, "|", "k3s", "ctr", "images", "import", "-"]:
            assert images == [f"{image}:latest" for image in IMAGES]
        case ["kubectl", "apply", "-k", "."]:
            assert any(block.text.startswith("# kustomization.yaml") for block in blocks(KUBERNETES, "yaml"))
        case ["kubectl", "apply" | "delete", "-k", directory]:
            assert kustomize.built(os.path.join(REPOSITORY, directory))
        case ["kubectl", "apply" | "delete", "-f", file]:
            assert kustomize.documents(os.path.join(REPOSITORY, file))
        case ["kubectl", "debug", "node/NODE", *options, "--", "edgeguardctl", "doctor", "--root", "/host"]:
            assert "localhost/edgeguardd:latest" in options
            doctor(["doctor", "--root", "/host"])
        case ["kubectl", "--namespace", "practice", "logs", thing]:
            assert ("practice", thing) in {
                (one["metadata"].get("namespace"), f"{one['kind'].lower()}/{one['metadata']['name']}")
                for one in pods.manifests("examples", "practice.yaml")
            }
        case ["kubectl", "--namespace", namespace, "rollout", "status" | "restart", thing]:
            assert (namespace, thing) in objects
        case ["kubectl", "--namespace", namespace, "exec", thing, "--", *inside]:
            assert (namespace, thing) in objects
            ran(place, inside)
        case other:
            pytest.fail(f"what does {other} do?")


def test_the_layout_of_a_node_is_seen_as_printed(tmp_path: Path) -> None:
    """The command that tells the driver, on a node of each."""
    (command,) = (one.text for one in commands(KUBERNETES) if one.text.startswith("ls "))
    for driver, top in (("systemd", "kubepods.slice"), ("cgroupfs", "kubepods")):
        tree = tmp_path / driver
        (tree / pods.pod_path(driver, "burstable", pods.uid(1))[1:]).mkdir(parents=True)
        done = subprocess.run(
            ["sh", "-c", command.replace("/sys/fs/cgroup", str(tree))], capture_output=True, text=True, timeout=60,
            check=True,
        )  # fmt: skip
        assert done.stdout.split() == [str(tree / top)]


def test_the_globs_of_the_page_are_those_of_the_manifest() -> None:
    """And the layouts beside them are what they match."""
    rows = re.findall(r"^\| \w+ \(.*?\) \| `(\S+)` \| `(\S+)` \|$", text_of(KUBERNETES), re.MULTILINE)
    assert len(rows) == len(pods.DRIVERS)
    for layout, glob in rows:
        assert Glob(glob).matches(layout.replace("UID", pods.uid(1)).replace("ID", pods.container_id(1)))
        assert f'glob = "{glob}"' in pods.configuration()


def test_the_query_of_the_page_finds_the_container() -> None:
    """Its pattern takes the container's id out of a target's name, with either driver."""
    (query,) = blocks(KUBERNETES, "promql")
    pattern = re.search(r'"target", "([^"]+)"', query.text)
    assert pattern
    for driver, name in (("systemd", "burst"), ("cgroupfs", "fs-b")):
        path = pods.container_path(driver, "burstable", pods.uid(1), pods.container_id(0xABC))
        found = re.fullmatch(pattern[1], found_name(path, f"{name}:"))  # as Prometheus matches: the whole value
        assert found
        assert found[1] == pods.container_id(0xABC)


def files_of_the_page(directory: Path) -> None:
    """The manifests, and what the page prints beside them."""
    shutil.copytree(pods.KUBERNETES, directory / "packaging" / "kubernetes")
    for block in blocks(KUBERNETES, "yaml"):
        if named := re.match(r"# (\w+\.yaml)\n", block.text):
            (directory / named[1]).write_text(block.text)


def test_a_configuration_of_ones_own_takes_the_place_of_the_manifests(tmp_path: Path) -> None:
    """The daemon takes it; what it does not change is as in the manifest."""
    files_of_the_page(tmp_path)
    (found,) = (one for one in kustomize.built(str(tmp_path)) if one["kind"] == "ConfigMap")
    own, whole = (read(text.encode(), "") for text in (found["data"]["edgeguardd.toml"], pods.configuration()))
    assert [target.name for target in own.targets] == ["burst"]
    assert replace(own, targets=whole.targets) == whole


def test_a_kustomization_of_ones_own_builds(tmp_path: Path) -> None:
    """The one on the page, where there is a kubectl: image and configuration are the reader's."""
    kubectl = shutil.which("kubectl")
    if kubectl is None:
        pytest.skip("no kubectl here")
    files_of_the_page(tmp_path)
    done = subprocess.run(
        [kubectl, "kustomize", str(tmp_path)], capture_output=True, text=True, timeout=60, check=True,
    )  # fmt: skip
    assert done.stdout.count("image: registry.example/edgeguardd:1.0\n") == 2
    by_kind = {document["kind"]: document for document in yaml.safe_load_all(done.stdout)}
    assert [target.name for target in read(by_kind["ConfigMap"]["data"]["edgeguardd.toml"].encode(), "").targets] == [
        "burst"
    ]


def test_the_servers_pod_on_the_page_is_the_example() -> None:
    """The page shows a part of it, word for word."""
    shown = yaml.safe_load(blocks(KUBERNETES, "yaml")[0].text)["spec"]
    _, example = pods.manifests("examples", "server.yaml")
    whole = example["spec"]["template"]["spec"]
    assert shown["volumes"] == whole["volumes"]
    assert shown["securityContext"].items() <= whole["securityContext"].items()
    (container,), (its,) = shown["containers"], whole["containers"]
    assert container["volumeMounts"] == its["volumeMounts"]
    assert container["resources"]["limits"].items() <= its["resources"]["limits"].items()
