"""Where each command of the documents is run. A command that is in no row here fails tests/component/test_documents.py.

Three kinds of rows:
- Here: run by that test, in order with the page's others, in a place with a daemon (tests/support/documents/place.py);
- ByTest: a test of its own runs it;
- Untestable: no test can; the reason is for whoever asks.
A command means the same wherever it stands in ANYWHERE; PAGES are for one page, and go before. A translation below
docs/zh-CN has the rows of its original.

Must not: do anything; rows only. Downstream: tests.component.test_documents.
"""

import dataclasses


@dataclasses.dataclass(frozen=True, slots=True)
class Here:
    """It ends with one of these exit statuses, without a traceback.

    `forever`: it goes on until it is interrupted. `stays`: so does this one, in a terminal of its own, while the rest of
    the page is typed.
    """

    statuses: tuple[int, ...] = (0,)
    forever: bool = False
    stays: bool = False


@dataclasses.dataclass(frozen=True, slots=True)
class ByTest:
    """By this test: FILE::FUNCTION, or a file whose program it is."""

    by: str


@dataclasses.dataclass(frozen=True, slots=True)
class Untestable:
    """Why no test runs it."""

    why: str


Row = Here | ByTest | Untestable

_UNTIL_INTERRUPTED = Here((0, 130, -2), forever=True)  # -2: the shell itself is ended by SIGINT
_DOCTOR = ByTest("tests/component/test_docs.py::test_each_command_for_checking_a_machine_works")
_INSTALLED = ByTest("tests/system/guest/first/test_a_install.py::test_the_package_installs_without_a_network")
_PLACED = ByTest("tests/component/test_docs.py::test_the_units_are_placed_as_printed")
_OOMD = ByTest("tests/system/guest/first/test_e_beside.py::test_systemd_oomd_beside_it_does_no_harm")
_WATCHER = ByTest("tests/system/guest/first/test_e_beside.py::test_an_sd_event_service_hears_of_pressure")
_SCORES = ByTest("tests/system/guest/first/test_scores.py::test_the_commands_of_the_page_set_it_up")
_ROLLOUT = ByTest("tests/component/test_ten_boxes.py::test_the_commands_of_the_page")
_BOARD = ByTest("tests/component/test_board_docs.py::test_each_command_works_on_such_a_board")
_DOCKER = ByTest("tests/component/test_container_docs.py::test_each_docker_command_names_what_is_there")
_KUBECTL = ByTest("tests/component/test_container_docs.py::test_each_kubectl_command_names_what_is_there")
_AUDIT = ByTest("tests/component/test_audit.py::test_each_command_of_the_how_to_runs")
_BRIDGE = ByTest("tests/component/test_bridge_docs.py::test_each_command_starts_a_bridge")
_HAPROXY = ByTest("tests/component/test_proxies.py::test_haproxy_cuts_the_batch_at_high")
_PROVISION = ByTest("tests/kernel/test_provision.py::test_the_page_does_what_it_says")
_SCRIPT = ByTest("tests/kernel/test_provision.py::test_provision_builds_what_the_script_builds")
_OOM = ByTest("tests/component/test_oom.py::test_each_command_of_the_how_to_works")
_ONNX = ByTest("tests/component/test_docs_subscribe.py::test_the_example_is_started_and_asked_as_printed")
_TUNE = ByTest("tests/component/test_recorder.py::test_each_command_of_the_page_does_what_it_shows")
_C_CLIENT = ByTest("tests/component/test_c_client.py::test_the_example_works_as_its_page_shows")
_CONFORMANCE = ByTest("tests/component/test_conformance.py::test_each_command_of_the_page_on_writing_clients_works")
_CLIENT = ByTest("tests/component/test_package.py::test_the_client_alone_needs_one_library")
_SETUP = ByTest("tests/support/setup.sh")  # the same into .venv, before any test
_ALERTS = ByTest("tests/component/test_prometheus.py::test_the_commands_of_the_page_set_it_up")
_ANOTHER_MACHINE = Untestable("needs another machine, reached by ssh")
_INDEX = Untestable("fetches from the package index, which tests do without")

ANYWHERE: dict[str, Row] = {
    "make demo": ByTest("tests/demo/__main__.py"),
    "make test": ByTest(".ci/run"),
    "make deb": ByTest("tests/system/__main__.py"),
    "make torture": ByTest("tests/torture/__main__.py"),
    "make demo-llama": ByTest("tests/llama/__main__.py"),
    "make llama": ByTest("tests/llama/test_contract.py"),
    "edgeguardctl status": Here(),
    "edgeguardctl watch": _UNTIL_INTERRUPTED,
    "edgeguardctl subscribe": _UNTIL_INTERRUPTED,
    "edgeguardctl doctor": Here((0, 1)),  # whatever this machine is
    "edgeguardctl check-config": Here(),
    "edgeguardctl check-config --example": Here(),
    "python3 -m venv /opt/edgeguardd && /opt/edgeguardd/bin/pip install .": _SETUP,
    "ln -sf /opt/edgeguardd/bin/edgeguard* /usr/local/bin/ && groupadd --force --system edgeguardd": Untestable(
        "makes a group on the machine that tests run on"
    ),
    "apt-get install ./.build/deb/edgeguardd_*.deb": _INSTALLED,
    "systemctl daemon-reload": _SCORES,
    "systemctl restart edgeguardd": _SCORES,
    "systemctl status edgeguardd": _INSTALLED,
    "journalctl -u edgeguardd -f": Untestable("systemd's own, which goes on until it is interrupted"),
}

PAGES: dict[str, dict[str, Row]] = {
    "docs/how-to/pressure-watch.md": dict.fromkeys(
        (
            "systemctl enable edgeguardd-pressure.socket",
            "systemctl stop edgeguardd.socket edgeguardd.service",
            "systemctl start edgeguardd.socket edgeguardd-pressure.socket edgeguardd.service",
        ),
        _WATCHER,
    ),
    "docs/tutorial/first-pressure.md": {
        "python3 -m venv practice/venv && practice/venv/bin/pip install .": _SETUP,
        ". practice/venv/bin/activate": _SETUP,
        "python packaging/examples/practice-server/practice.py --alone": Here((137,)),
        "python packaging/examples/practice-server/practice.py": Here(stays=True),
        "edgeguardd run --config practice.toml": Here(stays=True),
        "edgeguardctl status --config practice.toml": Here(),
        "edgeguardctl watch --config practice.toml": _UNTIL_INTERRUPTED,
        "curl -s http://127.0.0.1:9464/metrics | grep '^edgeguardd_target_l\\|^edgeguardd_freed'": Here(),
        "edgeguardctl incidents --directory practice/state/recordings": Here(),
        "edgeguardctl incidents 1 --directory practice/state/recordings": Here(),
        "python packaging/examples/practice-server/practice.py --beside mine.py": Here(stays=True),
    },
    "docs/how-to/beside-systemd-oomd.md": {"oomctl": _OOMD},
    "README.md": {
        "make deb && sudo apt-get install ./.build/deb/edgeguardd_*.deb": _INSTALLED,
    },
    "docs/CONTRIBUTING.md": {
        "make setup": _SETUP,
        "make check": ByTest(".ci/run"),
        ".venv/bin/python -m pytest -q tests/unit/core/test_policy.py": ByTest(".ci/run"),
    },
    "docs/how-to/alert.md": {
        "curl -s http://127.0.0.1:9464/metrics | promtool check metrics": _ALERTS,
        "install -m 644 /usr/share/edgeguardd/prometheus/edgeguardd.rules.yml /etc/prometheus/": _ALERTS,
        "promtool check rules /etc/prometheus/edgeguardd.rules.yml": _ALERTS,
        "promtool test rules /usr/share/edgeguardd/prometheus/tests.yml": _ALERTS,
        "promtool check config /etc/prometheus/prometheus.yml": _ALERTS,
        "systemctl reload prometheus": _ALERTS,
        "sed -i 's|runbook_url: |&https://wiki.example/edgeguardd/|' /etc/prometheus/edgeguardd.rules.yml": _ALERTS,
        "amtool check-config /etc/prometheus/alertmanager.yml": _ALERTS,
    },
    "docs/how-to/audit-units.md": {
        "edgeguardctl audit ./llama.service": _AUDIT,
        "edgeguardctl audit --all --search-path etc/systemd/system:usr/lib/systemd/system --memtotal-kb 8000000": _AUDIT,
        "edgeguardctl audit llama.service --search-path etc/systemd/system:usr/lib/systemd/system"
        " --memtotal-kb 8000000 --json": _AUDIT,
        "edgeguardctl audit --all --root image --memtotal-kb 8000000 --brief": _AUDIT,
        "edgeguardctl audit --all --search-path etc/systemd/system --memtotal-kb 8000000"
        " --format sarif > audit.sarif": _AUDIT,
        "edgeguardctl audit --all --search-path etc/systemd/system --memtotal-kb 8000000"
        " --format junit > audit.xml": _AUDIT,
        "edgeguardctl audit --all --search-path etc/systemd/system --memtotal-kb 8000000 --fail-on warning": _AUDIT,
        "edgeguardctl audit --all --search-path etc/systemd/system --memtotal-kb 8000000"
        " --rules-file audit.toml": _AUDIT,
        'edgeguardctl adr adr --new "Bounded tasks"': _AUDIT,
        "edgeguardctl adr adr --rules-file audit.toml": _AUDIT,
        "edgeguardctl audit llama.service": _AUDIT,
    },
    "docs/how-to/bridges.md": {
        "edgeguardctl bridge llama-server --target llm --unit llama.service --url http://127.0.0.1:8081"
        " --listen http://127.0.0.1:8080": _BRIDGE,
        "edgeguardctl bridge vllm --target llm --unit vllm.service --url http://127.0.0.1:8001"
        " --listen http://127.0.0.1:8000": _BRIDGE,
        "edgeguardctl bridge llama-server --target llm --cgroup /llm --url http://127.0.0.1:8081"
        " --listen http://127.0.0.1:8080 -- llama-server --model /srv/model.gguf --port 8081": _BRIDGE,
    },
    "docs/how-to/check-a-machine.md": {
        "edgeguardctl doctor --strict": _DOCTOR,
        "edgeguardctl doctor --json": _DOCTOR,
        "edgeguardctl doctor --root DIR": _DOCTOR,
    },
    "docs/how-to/docker.md": {
        "docker compose version": _DOCKER,
        "docker build -f packaging/oci/Containerfile -t localhost/edgeguardd .": _DOCKER,
        "docker build -f packaging/examples/practice-server/Containerfile -t localhost/practice-server"
        " packaging/examples/practice-server": _DOCKER,
        "docker run --rm --user 0 -v /:/host:ro --entrypoint edgeguardctl localhost/edgeguardd:latest"
        " doctor --root /host": _DOCKER,
        "pip wheel --no-deps --wheel-dir dist .": _CLIENT,
        "docker compose -f packaging/oci/compose.yml logs llm": _DOCKER,
        "docker compose -f packaging/oci/compose.yml down --volumes": _DOCKER,
        "docker image rm localhost/practice-server:latest localhost/edgeguardd:latest": _DOCKER,
        "docker rm --force llm edgeguardd": _DOCKER,
        "docker volume rm guard state": _DOCKER,
        "docker compose -f packaging/oci/compose.yml up -d": _DOCKER,
        "docker compose -f packaging/oci/compose.yml exec edgeguardd edgeguardctl status": _DOCKER,
        "docker compose -f packaging/oci/compose.yml logs edgeguardd": _DOCKER,
        "docker run -d --name edgeguardd --pid host --cgroupns host --user 65532:65532"
        " --read-only --cap-drop ALL --security-opt no-new-privileges:true"
        " --memory 96m --memory-swap 96m --pids-limit 64 --oom-score-adj -900 --restart unless-stopped"
        " -v /sys/fs/cgroup:/sys/fs/cgroup:ro -v guard:/run/edgeguardd -v state:/var/lib/edgeguardd"
        " -p 127.0.0.1:9464:9464 localhost/edgeguardd:latest": _DOCKER,
        "docker run -d --name llm --group-add 65532 --memory 256m --memory-swap 256m --restart unless-stopped"
        " -v guard:/run/edgeguardd:ro localhost/practice-server:latest": _DOCKER,
        "edgeguardctl check-config edgeguardd.toml": Here(),
        "docker compose -f packaging/oci/compose.yml kill -s HUP edgeguardd": _DOCKER,
    },
    "docs/how-to/gate.md": {
        "curl -i 'http://127.0.0.1:9464/admit?mode=direct&target=llm'": ByTest(
            "tests/component/test_gate.py::test_the_question_on_the_page_is_answered_as_printed"
        ),
        'echo "disable agent llm/llm; set server llm/llm state maint" | socat - /run/haproxy/admin.sock': _HAPROXY,
        'echo "enable agent llm/llm" | socat - /run/haproxy/admin.sock': _HAPROXY,
        'echo "set server llm/llm agent up; set server llm/llm state ready" | socat - /run/haproxy/admin.sock': _HAPROXY,
    },
    "docs/how-to/isolate-a-server.md": {
        "edgeguardctl size model.gguf --ram 8G --others 1G --ctx-size 8192": ByTest(
            "tests/component/test_provision.py::test_size_says_what_the_page_shows"
        ),
        "edgeguardctl size --measured 3400M --unit my-server.service --ram 8G --others 1G": Here(),
        "edgeguardctl provision --dry-run": _PROVISION,
        "edgeguardctl provision": _PROVISION,
        "edgeguardctl provision --undo": _PROVISION,
        "echo $$ > /sys/fs/cgroup/inference.slice/llama-server.service/cgroup.procs && exec llama-server …": ByTest(
            "tests/kernel/test_provision.py::test_a_start_script_puts_the_server_into_its_own_cgroup"
        ),
        "cd /sys/fs/cgroup": _SCRIPT,
        'echo "+memory" > cgroup.subtree_control': _SCRIPT,
        "mkdir -p inference.slice/llama-server.service": _SCRIPT,
        'echo "+memory" > inference.slice/cgroup.subtree_control': _SCRIPT,
        "echo 314572800 > inference.slice/memory.max": _SCRIPT,
        "echo 209715200 > inference.slice/llama-server.service/memory.high": _SCRIPT,
        "echo 262144000 > inference.slice/llama-server.service/memory.max": _SCRIPT,
        "echo 1 > inference.slice/llama-server.service/memory.oom.group": _SCRIPT,
    },
    "docs/how-to/jetson-orin.md": {
        "cat /sys/fs/cgroup/system.slice/llama-server.service/memory.current": _BOARD,
        "grep NvMapMemUsed /proc/meminfo": _BOARD,
        "tail -n 1 /sys/kernel/debug/nvmap/iovmm/clients": _BOARD,
        "edgeguardctl check-config edgeguardd.toml": _BOARD,
        "edgeguardctl doctor": _BOARD,
        "nvpmodel -q": _BOARD,
    },
    "docs/how-to/keep-oom-scores.md": {
        "mkdir -p /etc/systemd/system/edgeguardd.service.d": _SCORES,
        "cp /usr/share/doc/edgeguardd/drop-ins/oom-scores.conf /etc/systemd/system/edgeguardd.service.d/": _SCORES,
        "sysctl -w kernel.task_delayacct=1": _SCORES,
    },
    "docs/how-to/kubernetes.md": {
        "docker save localhost/edgeguardd:latest localhost/practice-server:latest | k3s ctr images import -": _KUBECTL,
        "kubectl apply -f packaging/kubernetes/examples/practice.yaml": _KUBECTL,
        "kubectl --namespace practice logs deployment/practice": _KUBECTL,
        "kubectl delete -f packaging/kubernetes/examples/practice.yaml": _KUBECTL,
        "kubectl debug node/NODE -it --image localhost/edgeguardd:latest --image-pull-policy IfNotPresent"
        " -- edgeguardctl doctor --root /host": _KUBECTL,
        "kubectl delete -k packaging/kubernetes/base": _KUBECTL,
        "kubectl apply -k packaging/kubernetes/base": _KUBECTL,
        "kubectl apply -k packaging/kubernetes/limits": _KUBECTL,
        "kubectl apply -k .": _KUBECTL,
        "kubectl --namespace edgeguardd rollout status daemonset/edgeguardd": _KUBECTL,
        "kubectl --namespace edgeguardd rollout restart daemonset/edgeguardd": _KUBECTL,
        "kubectl --namespace edgeguardd exec daemonset/edgeguardd -- edgeguardctl status": _KUBECTL,
        "ls -d /sys/fs/cgroup/kubepods*": ByTest(
            "tests/component/test_container_docs.py::test_the_layout_of_a_node_is_seen_as_printed"
        ),
    },
    "docs/how-to/raspberry-pi.md": {
        "sed -i '1 s/$/ cgroup_enable=memory psi=1/' /boot/firmware/cmdline.txt": _BOARD,
        "reboot": _BOARD,
        "cat /sys/fs/cgroup/cgroup.controllers": _BOARD,
        "edgeguardctl doctor": _BOARD,
        "edgeguardctl check-config edgeguardd.toml": _BOARD,
    },
    "docs/how-to/read-an-oom-report.md": {
        "edgeguardctl oom": _OOM,
        "edgeguardctl oom kern.log": _OOM,
        "journalctl -k -b -1 | edgeguardctl oom -": _OOM,
        "edgeguardctl oom --follow": _OOM,
        "edgeguardctl oom --json kern.log": _OOM,
    },
    "docs/how-to/rk3588.md": {
        "edgeguardctl doctor": _BOARD,
        "grep -w CONFIG_MEMCG /boot/config-$(uname -r)": _BOARD,
        "sed -i 's/^extraargs=/&psi=1 /' /boot/armbianEnv.txt": _BOARD,
        "reboot": _BOARD,
        "edgeguardctl check-config edgeguardd.toml": _BOARD,
        "grep Cma /proc/meminfo": _BOARD,
    },
    "docs/how-to/run-as-a-service.md": {
        "UV_PYTHON_INSTALL_DIR=/opt/python uv venv --python 3.12 /opt/edgeguardd": _INDEX,
        "uv pip install --python /opt/edgeguardd/bin/python .": _INDEX,
        "install -D -m 644 -t /etc/sysusers.d systemd/sysusers.d/edgeguardd.conf": _PLACED,
        "install -D -m 644 -t /etc/tmpfiles.d systemd/tmpfiles.d/edgeguardd.conf": _PLACED,
        "install -D -m 644 -t /etc/systemd/system systemd/*.service systemd/*.socket systemd/*.slice": _PLACED,
        "sed -i 's,/usr/bin/edgeguard,/opt/edgeguardd/bin/edgeguard,' /etc/systemd/system/edgeguardd*.service": _PLACED,
        "systemd-sysusers && systemd-tmpfiles --create edgeguardd.conf && systemctl daemon-reload": _INSTALLED,
        "systemctl enable --now edgeguardd.socket edgeguardd.service": _INSTALLED,
        "systemctl restart NAME.service": Untestable("systemd's own, with the reader's server"),
        "edgeguardctl audit NAME.service": ByTest(
            "tests/component/test_docs_units.py::test_a_unit_with_the_drop_in_passes_the_audit"
        ),
    },
    "docs/how-to/several-servers.md": {
        "edgeguardctl check-config edgeguardd.toml": Here(),
    },
    "docs/how-to/subscribe.md": {
        "systemd-run --scope -p MemoryHigh=1700M -p MemoryMax=2G python server.py": Untestable(
            "systemd's own, with the reader's server"
        ),
        "pip install .": ByTest("tests/component/test_package.py::test_a_fresh_environment_runs_it"),
        "pip install msgspec && pip install --no-deps .": _CLIENT,
        "pip install '.[example]'": _SETUP,
        "python packaging/examples/onnx-server/server.py": _ONNX,
        """curl -d '{"input": "a text"}' http://127.0.0.1:8000/v1/embeddings""": _ONNX,
    },
    "docs/how-to/ten-boxes.md": {
        "edgeguardctl check-config fleet.toml": Here(),
        "packaging/fleet/rollout.sh -c fleet.toml -d prometheus.conf -o edgeguardd.json .build/deb/edgeguardd_*.deb boxes": _ROLLOUT,
        'SUDO="sudo -n" packaging/fleet/rollout.sh -c fleet.toml .build/deb/edgeguardd_*.deb boxes': _ROLLOUT,
        "cp edgeguardd.json /etc/prometheus/edgeguardd.json": _ROLLOUT,
    },
    "docs/how-to/tune.md": {
        "scp -r root@box:/var/lib/edgeguardd/recordings .": _ANOTHER_MACHINE,
        "edgeguardctl incidents --directory recordings": _TUNE,
        "edgeguardctl incidents 1 --directory recordings": _TUNE,
        "edgeguardctl incidents 1 --directory recordings --html incident.html": _TUNE,
        "edgeguardctl check-config other.toml": _TUNE,
        "edgeguardctl replay recordings --config other.toml": _TUNE,
        "edgeguardctl replay recordings --config other.toml --target llm --decisions": _TUNE,
        "edgeguardctl replay recordings": _TUNE,
        "edgeguardctl replay recordings --config other.toml --json": _TUNE,
        "scp other.toml root@box:/etc/edgeguardd/edgeguardd.toml": _ANOTHER_MACHINE,
        "ssh root@box systemctl reload edgeguardd": _ANOTHER_MACHINE,
    },
    "docs/how-to/use-the-c-client.md": {
        "cc -std=c99 -O2 example.c edgeguardd.c -o example": _C_CLIENT,
        "./example 1000": _C_CLIENT,
    },
    "docs/how-to/write-a-client.md": {
        "edgeguardctl conformance --exec ./my-server --its --own=options": _CONFORMANCE,
        "edgeguardctl conformance --list": _CONFORMANCE,
        "edgeguardctl conformance --only utf-8,long-line --exec ./my-server": _CONFORMANCE,
        "edgeguardctl conformance --json --exec ./my-server": _CONFORMANCE,
        "edgeguardctl conformance --protocol-only --exec ./my-server": _CONFORMANCE,
    },
    "docs/how-to/x86.md": {
        "edgeguardctl doctor": _BOARD,
        "grubby --update-kernel=ALL --args=psi=1": _BOARD,
        "mkdir -p /etc/default/grub.d": _BOARD,
        """echo 'GRUB_CMDLINE_LINUX="$GRUB_CMDLINE_LINUX psi=1"' > /etc/default/grub.d/psi.cfg && update-grub""": _BOARD,
        "reboot": _BOARD,
        "/opt/edgeguardd/bin/pip install '.[nvml]'": _BOARD,
        "edgeguardctl check-config edgeguardd.toml": _BOARD,
    },
    "docs/reference/config.md": {"edgeguardctl check-config FILE": Here()},
    "docs/reference/protocol.md": {
        """(echo '{"type":"hello","name":"me","role":"observer"}'; cat) | nc -U /run/edgeguardd/edgeguardd.sock""": _UNTIL_INTERRUPTED,
    },
}

# Files that a page's commands take for granted, beside those that it prints with their name in the first line.
FILES: dict[str, dict[str, str]] = {
    "docs/reference/config.md": {"FILE": ""},
}

# Pages that start the daemon themselves.
OWN_DAEMON = {"docs/tutorial/first-pressure.md"}


def row_of(page: str, command: str) -> Row | None:
    """Where a command of a page is run; None where nobody has said."""
    original = page.replace("docs/zh-CN/README.md", "README.md").replace("docs/zh-CN/", "docs/")
    return PAGES.get(original, {}).get(command) or ANYWHERE.get(command)
