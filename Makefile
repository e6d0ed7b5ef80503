# Two commands do all set-up on a fresh machine: `make demo` and `make test`. Run as root.
SHELL := /bin/bash
.DEFAULT_GOAL := help
PYTHON ?= python3
VENV := .venv
BIN := $(VENV)/bin
LAB := inventory/lab
export ANSIBLE_CONFIG := $(CURDIR)/ansible.cfg
export PATH := $(CURDIR)/$(BIN):$(PATH)
STACK ?= sglang-0.5.11-cu130
WHEELHOUSE ?= wheelhouse
CONTAINER_PYTHON ?= 3.12
GPU_OUT ?= .cache/gpu

help: ## Show this help
	@awk -F ':.*## ' '/^[a-z-]+:.*## / {printf "  %-16s %s\n", $$1, $$2}' Makefile

$(VENV)/.installed: requirements/dev.txt
	@command -v $(PYTHON) >/dev/null || apt-get install -y python3
	@$(PYTHON) -c 'import sys; sys.exit(sys.version_info < (3, 11))' || { echo "$(PYTHON) is older than 3.11; name another with PYTHON=..."; exit 1; }
	@$(PYTHON) -c 'import ensurepip' 2>/dev/null || { apt-get update -q && apt-get install -qy python3-venv; }
	$(PYTHON) -m venv $(VENV)
	$(BIN)/python -m pip install --quiet --require-hashes -r requirements/dev.txt
	@touch $@

setup: $(VENV)/.installed ## Install the project's own Python environment from its lock

demo: setup ## Make the lab, deploy eight servers, show them and a completion
	ansible-playbook -i $(LAB) playbooks/lab.yml
	ansible-playbook -i $(LAB) playbooks/site.yml
	ansible-playbook -i $(LAB) playbooks/status.yml -e sglang_status_json=$(CURDIR)/$(VENV)/demo.json
	$(BIN)/python lab/demo.py $(VENV)/demo.json

demo-clean: setup ## Remove the lab without a trace
	ansible-playbook -i $(LAB) playbooks/lab.yml -e lab_state=absent -e lab_purge_cache=true

lint: setup ## ansible-lint (profile production), yamllint, ruff, mypy
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .
	$(BIN)/mypy
	$(BIN)/yamllint --strict .
	$(BIN)/ansible-lint

packages: setup ## Install the Debian packages that lab and tests need, with their services off
	ansible-playbook -i $(LAB) playbooks/lab.yml -e lab_state=packages

unit: packages ## Unit tests, those in a real container too
	$(BIN)/pytest

molecule: setup ## The whole flow in a lab of its own
	molecule test

test-fleet: packages ## Bad input, kills, crashes and the days after on deployed fleets (tests/fleet)
	$(BIN)/pytest tests/fleet

test-faults: setup ## Named faults on a deployed fleet, each with the state that it must leave (molecule test -s faults)
	molecule test -s faults
	@cat .cache/faults

test-transport: packages ## The transport at its limits: many servers, big files, random words, sudo (tests/transport)
	$(BIN)/pytest tests/transport

test-staging: packages ## Staging in a deployed container: killed, cut short, restarted in the middle (tests/staging)
	$(BIN)/pytest tests/staging

test-kernels: setup ## Compile real kernels of the installed stack INSTALLED (a directory) for SM 12.0; needs no GPU
	@test -f "$(INSTALLED)/stack.json" || { echo "INSTALLED=$(INSTALLED) is no installed stack; name one, such as /opt/sglang/stacks/ID"; exit 1; }
	INSTALLED=$(INSTALLED) $(BIN)/pytest tests/kernels

# The lab's container has the Python of this machine's distribution. Not part of `make test`: the wheels are 3.6 GiB.
test-stack: CONTAINER_PYTHON = $(shell /usr/bin/python3 -c 'import sys; print("%d.%d" % sys.version_info[:2])')
test-stack: packages wheelhouse ## Install the real stack from WHEELHOUSE in a container, prove it, and break it five ways (molecule/stack)
	WHEELHOUSE=$(abspath $(WHEELHOUSE)) molecule test -s stack

# The summary of the unit tests comes last, so that whoever reads only the end knows that they ran.
test: lint molecule unit ## Everything a change must pass

bench-converge: setup ## Run site.yml twice in the lab and count the remote calls of the second run
	$(BIN)/python tests/bench/converge.py $(LAB)

fuzz: setup ## Compare the header parser with the safetensors library on FUZZ_CASES files of each kind (5000)
	FUZZ_CASES=$${FUZZ_CASES:-5000} $(BIN)/pytest tests/unit/test_checkpoint_header.py

bench-checkpoint: setup ## Structure check and SHA-256 of a checkpoint of 4.4 GiB, against sha256sum
	$(BIN)/python tests/bench/checkpoint.py

bench-rollback: setup ## Time a rollback of the lab's eight servers, and how long each of them does not answer
	$(BIN)/python tests/bench/going_back.py rollback $(LAB)

bench-rollout: setup ## The same for a release of changed flags
	$(BIN)/python tests/bench/going_back.py rollout $(LAB)

bench-status: setup ## Time status.yml on the lab's eight servers
	$(BIN)/python tests/bench/status.py $(LAB)

bench-transport: packages ## 40 calls over ssh, pct and community.proxmox's plugin in one run
	$(BIN)/python tests/bench/transport.py

bench-plan: setup ## The planner's pools and estimates against what the real engine said
	$(BIN)/python tests/bench/plan.py

bench-stage: setup ## Staging 4 GiB into memory beside copying and hashing the same files
	$(BIN)/python tests/bench/stage.py

# STACK and CONTAINER_PYTHON may name several: STACK="a b" CONTAINER_PYTHON=3.11,3.12
wheelhouse: setup ## Fill WHEELHOUSE with the wheels of STACK for CONTAINER_PYTHON; needs a network, can be run again
	$(BIN)/python stacks/wheelhouse.py $(WHEELHOUSE) $(CONTAINER_PYTHON) $(STACK)

lock: setup ## Resolve the lock of STACK again; the same inputs give the same file
	$(BIN)/python stacks/lock.py $(STACK)

flags: setup ## Write the flag table of STACK's engine from its wheel in WHEELHOUSE, read with CONTAINER_PYTHON
	$(BIN)/python stacks/flags.py $(STACK) $(WHEELHOUSE) python$(CONTAINER_PYTHON)

bench-stack: setup ## Install STACK from WHEELHOUSE with CONTAINER_PYTHON, beside a bare uv pip sync of the same lock
	$(BIN)/python tests/bench/stack.py $(STACK) $(WHEELHOUSE) python$(CONTAINER_PYTHON)

# What runs on the GPU machine itself is told in tests/gpu/README.md.
gpu-prepare: setup ## Write to GPU_OUT what a GPU machine needs to measure tests/gpu/cases.yml; MODEL_CONFIG is a config.json
	$(BIN)/python tests/gpu/prepare.py $(GPU_OUT) $(MODEL_CONFIG)

gpu-report: setup ## Write GPU_REPORT.md and .json from the result files in GPU_OUT
	$(BIN)/python tests/gpu/report.py $(GPU_OUT) $(GPU_REPORT)

docs: setup ## Write the roles' READMEs, docs/rules.md and docs/facts.md from what they describe
	$(BIN)/python docs/roles.py
	$(BIN)/python docs/rules.py

lock-dev: setup ## Resolve requirements/dev.in and hub.in again
	for name in dev hub; do $(BIN)/uv pip compile --no-config --universal --python-version 3.11 --generate-hashes \
	  --no-header --no-annotate requirements/$$name.in -o requirements/$$name.txt || exit; done

.PHONY: bench-checkpoint help setup packages demo demo-clean lint unit molecule test test-fleet test-faults test-transport test-staging test-kernels test-stack bench-converge bench-status bench-rollback bench-rollout bench-transport bench-stack bench-plan bench-stage fuzz wheelhouse lock flags gpu-prepare gpu-report docs lock-dev
