"""What `kubectl kustomize` makes of a directory, as far as ours go: resources in order, patches merged by name.

Must not: know what the manifests mean. Upstream: tests/component/test_kubernetes.py, which compares it with kubectl
where there is one. Downstream: PyYAML.
"""

import os
from typing import Any

import yaml

# By which key the entries of a list are the same one (patchMergeKey of the API's types).
MERGE_KEYS = {"volumeMounts": "mountPath", "containers": "name", "initContainers": "name", "volumes": "name"}


def built(directory: str) -> list[dict[str, Any]]:
    """The documents."""
    (kustomization,) = documents(os.path.join(directory, "kustomization.yaml"))
    found: list[dict[str, Any]] = []
    for resource in kustomization["resources"]:
        path = os.path.join(directory, resource)
        found += built(path) if os.path.isdir(path) else documents(path)
    for patch in kustomization.get("patches", []):
        for change in documents(os.path.join(directory, patch["path"])):
            (place,) = (number for number, document in enumerate(found) if same(document, change))
            found[place] = merged(found[place], change)
    return found


def in_order(part: Any, key: str | None = None) -> Any:
    """The same, with the lists that are merged by a key in the order of that key: a merge may change their order."""
    if isinstance(part, dict):
        return {name: in_order(value, MERGE_KEYS.get(name)) for name, value in part.items()}
    if isinstance(part, list):
        entries = [in_order(entry) for entry in part]
        return entries if key is None else sorted(entries, key=lambda entry: str(entry[key]))
    return part


def documents(path: str) -> list[dict[str, Any]]:
    """What one file holds."""
    with open(path) as file:
        return [document for document in yaml.safe_load_all(file) if document]


def same(one: dict[str, Any], other: dict[str, Any]) -> bool:
    """Whether both are about one object."""
    return (one["kind"], one["metadata"]["name"]) == (other["kind"], other["metadata"]["name"])


def merged(old: Any, change: Any, key: str | None = None) -> Any:
    """A strategic merge: objects by field, lists with a merge key by entry, everything else replaced."""
    if isinstance(old, dict) and isinstance(change, dict):
        return old | {name: merged(old.get(name), value, MERGE_KEYS.get(name)) for name, value in change.items()}
    if isinstance(old, list) and isinstance(change, list) and key is not None:
        by_key = {entry[key]: entry for entry in old}
        return list((by_key | {entry[key]: merged(by_key.get(entry[key]), entry) for entry in change}).values())
    return change
