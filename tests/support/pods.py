"""Cgroups of pods as kubelet and runtimes lay them out, with either cgroup driver; and what our manifests say.

Must not: use the code under test. Upstream: component and kernel tests. Downstream: packaging/kubernetes.
Names: kubelet pkg/kubelet/cm (cgroup_manager_linux.go, pod_container_manager_linux.go); containers get theirs from
the runtime: cri-containerd-ID.scope, crio-ID.scope, docker-ID.scope with systemd, the bare ID with cgroupfs.
"""

import os
from typing import Any

import yaml

REPOSITORY = os.path.dirname(os.path.dirname(os.path.dirname(os.path.abspath(__file__))))
KUBERNETES = os.path.join(REPOSITORY, "packaging", "kubernetes")

DRIVERS = ("systemd", "cgroupfs")
QOS = ("guaranteed", "burstable", "besteffort")


def uid(number: int) -> str:
    """A pod's uid."""
    return f"8f1c2f3e-4d5a-4b6c-9d7e-{number:012x}"


def container_id(number: int) -> str:
    """A container's id: 64 hexadecimal digits."""
    return f"{number:064x}"


def pod_path(driver: str, qos: str, pod: str) -> str:
    """The cgroup of a pod."""
    if driver == "systemd":
        # A dash in a slice's name is a level of the tree, so kubelet writes "_" for those of the uid.
        name = pod.replace("-", "_")
        if qos == "guaranteed":
            return f"/kubepods.slice/kubepods-pod{name}.slice"
        return f"/kubepods.slice/kubepods-{qos}.slice/kubepods-{qos}-pod{name}.slice"
    return f"/kubepods/pod{pod}" if qos == "guaranteed" else f"/kubepods/{qos}/pod{pod}"


def container_path(driver: str, qos: str, pod: str, container: str, runtime: str = "cri-containerd") -> str:
    """The cgroup of a container in it."""
    name = f"{runtime}-{container}.scope" if driver == "systemd" else container
    return f"{pod_path(driver, qos, pod)}/{name}"


def parents(path: str) -> list[str]:
    """Every cgroup above, the root left out, from the top."""
    parts = path.split("/")[1:-1]
    return ["/" + "/".join(parts[:count]) for count in range(1, len(parts) + 1)]


def manifests(*parts: str) -> list[dict[str, Any]]:
    """The documents of one file below packaging/kubernetes."""
    with open(os.path.join(KUBERNETES, *parts)) as file:
        return [document for document in yaml.safe_load_all(file) if document]


def configuration() -> str:
    """edgeguardd.toml, as the ConfigMap brings it."""
    (config_map,) = manifests("base", "configmap.yaml")
    return str(config_map["data"]["edgeguardd.toml"])


def targets(below: str = "") -> str:
    """The [[target]] tables of the ConfigMap; `below`: the cgroup that stands in for the root."""
    text = configuration()
    return text[text.index("[[target]]") :].replace('glob = "/', f'glob = "{below}/')
