# Every verb sets up first what it needs; `make help` lists them.
.DEFAULT_GOAL := help
.PHONY: help demo demo-llama llama test check kernel fuzz fuzz-files fuzz-parsers mutate system torture bench soak deb docs setup clean

PY := .venv/bin/python
FAST_TESTS := $(wildcard tests/unit tests/property tests/component tests/cases)

help: ## this list
	@sed -n 's/^\([a-z-]*\):.*## \(.*\)/  make \1\t\2/p' $(MAKEFILE_LIST) | expand -t 18

demo: setup ## an inference server under memory pressure, three times: bare, naive, guarded (under 3 minutes)
	@$(PY) -m tests.demo

demo-llama: setup ## a real llama-server and model, bare and guarded; builds the server first (docs/how-to/demo-llama.md)
	@tests/llama/setup.sh
	@$(PY) -m tests.llama --program "$${LLAMA_SERVER:-$${LLAMA_DIR:-.build/llama}/llama-server}" \
		--model "$${LLAMA_MODEL:-$${LLAMA_DIR:-.build/llama}/model.gguf}" $(LLAMA_OPTIONS)

llama: setup ## what the bridge takes llama-server to do, asked of a real one, as a router too; builds it first
	@tests/llama/setup.sh
	@LLAMA_SERVER="$$(realpath "$${LLAMA_SERVER:-$${LLAMA_DIR:-.build/llama}/llama-server}")" \
		LLAMA_MODEL="$$(realpath "$${LLAMA_MODEL:-$${LLAMA_DIR:-.build/llama}/model.gguf}")" $(PY) -m pytest -v tests/llama

# What fails beside others is run once more, alone: on two cores that are shared, a time limit somewhere may be passed
# without a defect. Both outcomes stay in the output; a failure that repeats fails the run.
ONCE_MORE := --last-failed --last-failed-no-failures none

test: check ## everything that must be green: check, then all tests, kernel tests included (under 10 minutes)
	$(PY) -m pytest -q --numprocesses 3 --dist worksteal $(FAST_TESTS) || $(PY) -m pytest -q $(ONCE_MORE) $(FAST_TESTS)
	$(PY) -m pytest -q tests/kernel || $(PY) -m pytest -q $(ONCE_MORE) tests/kernel

check: setup ## format, lint, types, layering
	.venv/bin/ruff check
	.venv/bin/ruff format --check
	.venv/bin/mypy
	.venv/bin/lint-imports

kernel: setup ## only the kernel tests, each by name; on this host's cgroup v2 or in user-mode Linux
	$(PY) -m pytest -v tests/kernel

fuzz: setup ## 1,000,000 mutated lines at the server, 100,000 at each client, with figures (about 2 minutes)
	@$(PY) -m tests.fuzz $(FUZZ_OPTIONS)

fuzz-files: setup ## the parsers of kernel logs and of units on made-up input, for long; units also against systemd's own
	EDGEGUARDD_FUZZ_EXAMPLES=$${EDGEGUARDD_FUZZ_EXAMPLES:-10000} EDGEGUARDD_FUZZ_UNITS=$${EDGEGUARDD_FUZZ_UNITS:-5000} \
		$(PY) -m pytest -q --timeout 3600 tests/property/test_oomlog.py tests/property/test_units.py tests/component/test_systemd_units.py

fuzz-parsers: setup ## any bytes at each parser, guided by coverage where atheris is; FUZZ_MINUTES (1) for each of nine
	@$(PY) -m tests.fuzz --part all --minutes $${FUZZ_MINUTES:-1} $(FUZZ_OPTIONS)

mutate: setup ## faults planted in policy, ledger and wire: at least 90 % have to be seen by the tests (about 20 minutes)
	@$(PY) -m pip install -qq --editable '.[dev,mutation]' </dev/null
	@$(PY) -m tests.mutation

docs: setup ## write the generated pages, man pages and shell completion again
	$(PY) -m edgeguardd.cli.reference docs/reference --example packaging/config/edgeguardd.toml --policy docs/explanation/policy.md \
		--man docs/man --completion packaging/completion

system: setup ## the package in a Debian guest with systemd, in QEMU; as root, builds the guest's disk first (some minutes)
	@$(PY) -m tests.system $(SYSTEM_OPTIONS)

torture: setup ## faults against a running daemon, with an oracle; a soak; enemies; writes docs/explanation (under 45 minutes)
	@$(PY) -m tests.torture $(TORTURE_OPTIONS)

bench: setup ## speed, cost and survival, beside a C loop and other guards; writes docs/explanation (under 45 minutes)
	@$(PY) -m tests.bench $(BENCH_OPTIONS)

soak: setup ## memory and descriptors under an hour of mixed load; SOAK_SECONDS=600 for less
	@$(PY) -m tests.bench soak

# What the build says on the way goes into its logs; what it says in the end is what there is and what to do with it.
deb: ## the Debian package, with every library inside: .build/deb/edgeguardd_*.deb
	@echo "building the package; the log is .build/deb/build.log"
	@said=$$(packaging/debian/build.sh 2>&1) || { printf '%s\n' "$$said" >&2; exit 1; }; deb=$$(printf '%s\n' "$$said" | tail -n 1); \
		echo "$$deb: version $$(dpkg-deb --field "$$deb" Version), $$(du -h --apparent-size "$$deb" | cut -f 1)"; \
		echo "next: sudo apt-get install ./$$deb"

setup: ## system packages, .venv and all it needs; says what it installs, quick when done
	@tests/support/setup.sh

clean: ## remove what setup, tests and builds made
	rm -rf .venv .build .mypy_cache .ruff_cache .pytest_cache .hypothesis .import_linter_cache build dist
