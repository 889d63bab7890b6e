"""The manifests: what the API servers' published schemas take, what they may, and whether the parts fit each other."""

import copy
import json
import os
import re
import shutil
import subprocess
import tomllib
from typing import Any

import kubernetes_validate
import kubernetes_validate.utils
import pytest
import yaml

from edgeguardd.core.configparse import read
from edgeguardd.kernel.names import found_name
from edgeguardd.kernel.resolve import Glob
from edgeguardd.series import MAX_DEPARTED
from tests.support import kustomize, pods
from tests.support.faketree import FakeTree
from tests.support.running import Daemon
from tests.support.wait import eventually

# The oldest that is not yet called ancient by its distributors, up to the newest that the schemas are here for.
OLDEST = (1, 27)
VERSIONS = [
    version
    for version in dict.fromkeys(kubernetes_validate.utils.all_versions())
    if tuple(int(part) for part in version.split(".")[:2]) >= OLDEST
]
BUILDS = ("base", "limits")
EXAMPLES = (
    "server.yaml",
    "practice.yaml",
)  # podmonitor.yaml is of the Prometheus Operator, whose schema is not Kubernetes' own


def documents() -> list[dict[str, Any]]:
    """All that is applied, patched or not, and the example."""
    found = [document for build in BUILDS for document in kustomize.built(os.path.join(pods.KUBERNETES, build))]
    return found + [document for name in EXAMPLES for document in pods.manifests("examples", name)]


def daemon_set(build: str = "base") -> dict[str, Any]:
    """The DaemonSet's pod."""
    (found,) = (d for d in kustomize.built(os.path.join(pods.KUBERNETES, build)) if d["kind"] == "DaemonSet")
    pod: dict[str, Any] = found["spec"]["template"]["spec"]
    return pod


def mounts(container: dict[str, Any]) -> dict[str, str]:
    """Volume -> where it is in the container."""
    return {mount["name"]: mount["mountPath"] for mount in container["volumeMounts"]}


@pytest.mark.parametrize("version", VERSIONS)
def test_the_published_schemas_take_them(version: str) -> None:
    """Strictly: a field that the API does not know is refused."""
    for document in documents():
        kubernetes_validate.validate(document, version, strict=True)


def test_the_schemas_would_refuse_a_mistake() -> None:
    """A field of no such name, and a value of another type: the check above can fail."""
    (found,) = (d for d in documents()[:4] if d["kind"] == "DaemonSet")
    wrong = copy.deepcopy(found)
    wrong["spec"]["template"]["spec"]["containers"][0]["securityContext"]["readOnlyRootFileSystem"] = True
    with pytest.raises(kubernetes_validate.ValidationError):
        kubernetes_validate.validate(wrong, VERSIONS[-1], strict=True)
    wrong = copy.deepcopy(found)
    wrong["spec"]["template"]["spec"]["hostPID"] = "yes"
    with pytest.raises(kubernetes_validate.ValidationError):
        kubernetes_validate.validate(wrong, VERSIONS[-1], strict=True)


@pytest.mark.parametrize("build", BUILDS)
def test_kubectl_builds_the_same(build: str) -> None:
    """Where there is one. It needs no cluster for that."""
    kubectl = shutil.which("kubectl")
    if kubectl is None:
        pytest.skip("no kubectl here: the patches are merged by tests/support/kustomize.py alone")
    directory = os.path.join(pods.KUBERNETES, build)
    done = subprocess.run(
        [kubectl, "kustomize", directory], stdin=subprocess.DEVNULL, capture_output=True, text=True, timeout=60,
        check=False,
    )  # fmt: skip
    if done.returncode != 0 and "unknown command" in done.stderr:
        pytest.skip("this kubectl has no kustomize")
    assert done.returncode == 0, done.stderr
    by_kind = {document["kind"]: kustomize.in_order(document) for document in yaml.safe_load_all(done.stdout)}
    assert by_kind == {document["kind"]: kustomize.in_order(document) for document in kustomize.built(directory)}


def test_nothing_is_asked_of_the_api_server() -> None:
    """No account, no role, no token."""
    kinds = {document["kind"] for document in documents()}
    assert kinds == {"Namespace", "ConfigMap", "NetworkPolicy", "DaemonSet", "Deployment"}
    assert daemon_set()["automountServiceAccountToken"] is False
    assert "serviceAccountName" not in daemon_set()


@pytest.mark.parametrize(
    ("build", "user", "added", "tree_is_read_only"), [("base", 65532, [], True), ("limits", 0, ["IPC_LOCK"], False)]
)
def test_it_may_no_more_than_it_needs(build: str, user: int, added: list[str], tree_is_read_only: bool) -> None:
    """Who it is, which capabilities are left, what of the host it sees, and how large it may become."""
    pod = daemon_set(build)
    (container,) = pod["containers"]
    assert pod["securityContext"]["runAsUser"] == user
    assert pod["securityContext"]["runAsNonRoot"] is (user != 0)
    assert pod["securityContext"]["seccompProfile"] == {"type": "RuntimeDefault"}
    assert pod["hostPID"] is True
    assert not {"hostNetwork", "hostIPC"} & pod.keys()
    for one in (*pod["initContainers"], container):
        assert one["securityContext"]["allowPrivilegeEscalation"] is False
        assert one["securityContext"]["readOnlyRootFilesystem"] is True
        assert one["securityContext"]["capabilities"]["drop"] == ["ALL"]
        assert "privileged" not in one["securityContext"]
        # Guaranteed: the kernel kills it nearly last.
        assert one["resources"]["requests"] == one["resources"]["limits"]
        assert {"cpu", "memory"} == one["resources"]["limits"].keys()
    assert container["securityContext"]["capabilities"].get("add", []) == added
    host = {volume["name"]: volume["hostPath"]["path"] for volume in pod["volumes"] if "hostPath" in volume}
    assert host == {"cgroup": "/sys/fs/cgroup", "run": "/run/edgeguardd", "state": "/var/lib/edgeguardd"}
    (tree,) = (mount for mount in container["volumeMounts"] if mount["name"] == "cgroup")
    assert tree["readOnly"] is tree_is_read_only
    assert pod["priorityClassName"] == "system-node-critical"
    assert pod["tolerations"] == [{"operator": "Exists"}]


def test_the_parts_fit_each_other() -> None:
    """Configuration and mounts, port and probes, annotations and monitor, the socket's group and the server's."""
    config = read(pods.configuration().encode(), "configmap.yaml")
    pod = daemon_set()
    (container,) = pod["containers"]
    at = mounts(container)
    assert config.cgroup_root == at["cgroup"]
    assert os.path.dirname(config.socket.path) == at["run"]
    assert config.state_directory == at["state"]
    assert container["args"] == ["run", "--config", f"{at['configuration']}/edgeguardd.toml"]
    (port,) = container["ports"]
    assert port["containerPort"] == config.http.port
    probes = [container[f"{kind}Probe"]["httpGet"] for kind in ("startup", "readiness", "liveness")]
    assert [(probe["path"], probe["port"]) for probe in probes] == [
        ("/healthz", "http"), ("/readyz", "http"), ("/healthz", "http"),
    ]  # fmt: skip
    (whole,) = (d for d in documents()[:4] if d["kind"] == "DaemonSet")
    annotations = whole["spec"]["template"]["metadata"]["annotations"]
    assert annotations["prometheus.io/port"] == str(config.http.port)
    (monitor,) = pods.manifests("examples", "podmonitor.yaml")
    assert monitor["spec"]["podMetricsEndpoints"][0]["port"] == port["name"]
    assert monitor["spec"]["selector"]["matchLabels"].items() <= whole["spec"]["template"]["metadata"]["labels"].items()
    _, server = pods.manifests("examples", "server.yaml")
    theirs = server["spec"]["template"]["spec"]
    assert [str(group) for group in theirs["securityContext"]["supplementalGroups"]] == [config.socket.group]
    assert mounts(theirs["containers"][0])["guard"] == at["run"]
    chown = pod["initContainers"][0]["command"]
    assert chown[2:] == [f"{pod['securityContext']['runAsUser']}:{config.socket.group}", at["run"], at["state"]]


def globs() -> dict[str, Glob]:
    """The ConfigMap's targets."""
    return {row["name"]: Glob(row["glob"]) for row in tomllib.loads(pods.configuration())["target"]}


@pytest.mark.parametrize("runtime", ["cri-containerd", "crio", "docker"])
@pytest.mark.parametrize("driver", pods.DRIVERS)
@pytest.mark.parametrize("qos", pods.QOS)
def test_each_container_is_one_target(driver: str, qos: str, runtime: str) -> None:
    """Of whatever runtime and class: one glob fits, its pod and what is inside of it fit none; the id stays whole."""
    path = pods.container_path(driver, qos, pods.uid(1), pods.container_id(0xABC), runtime)
    (name,) = (name for name, glob in globs().items() if glob.matches(path))
    assert pods.container_id(0xABC) in found_name(path, f"{name}:")
    for other in (*pods.parents(path), f"{path}/init", f"{path}/a/b", "/system.slice/x.scope"):
        assert not [name for name, glob in globs().items() if glob.matches(other)]


def test_a_full_node(place: str) -> None:
    """110 pods with their pause containers, twice: all fit into the manifest's memory, few of those gone are told."""
    os.mkdir(f"{place}/tree")
    tree = FakeTree(f"{place}/tree")
    with Daemon(place, f"max_targets = 512\n{pods.targets()}", cgroup_root=f"{place}/tree") as daemon:
        for first in (0, 1000):
            fill(tree, first)
            eventually(lambda: len(present(daemon)) == 220)
            tree.remove("/kubepods.slice")
            eventually(lambda: present(daemon) == [])
        with open(f"/proc/{daemon.pid}/status") as file:
            (peak_kib,) = (int(line.split()[1]) for line in file if line.startswith("VmHWM:"))
        labels = set(re.findall(r'target="([^"]+)"', daemon.get("/metrics")))
    assert len(labels) <= MAX_DEPARTED < 440
    assert daemon_set()["containers"][0]["resources"]["limits"]["memory"] == "128Mi"
    assert peak_kib < 96 * 1024, "three quarters of the limit"
    print(f"220 containers twice: {peak_kib / 1024:.1f} MiB resident at most")


def fill(tree: FakeTree, first: int) -> None:
    """110 pods, each with its pause container and one more."""
    made: set[str] = set()
    for number in range(first, first + 110):
        for container in (2 * number, 2 * number + 1):
            path = pods.container_path("systemd", pods.QOS[number % 3], pods.uid(number), pods.container_id(container))
            for step in [*pods.parents(path), path]:
                if step not in made:
                    made.add(step)
                    tree.cgroup(step)


def present(daemon: Daemon) -> list[str]:
    """The targets that there are."""
    return [row["name"] for row in daemon.status()["targets"] if row["present"]]


def test_the_image_is_one() -> None:
    """Manifests and Compose name the same."""
    images = {one["image"] for one in (*daemon_set()["initContainers"], *daemon_set()["containers"])}
    with open(os.path.join(pods.REPOSITORY, "packaging", "oci", "compose.yml")) as file:
        images.add(yaml.safe_load(file)["services"]["edgeguardd"]["image"])
    assert images == {"localhost/edgeguardd:latest"}, json.dumps(sorted(images))
