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

test-fleet: packages ## Bad input, kills and crashes on a deployed fleet of its own (tests/fleet)
	$(BIN)/pytest tests/fleet

test-transport: packages ## The transport at its limits: many servers, big files, random words, sudo (tests/transport)
	$(BIN)/pytest tests/transport

# The summary of the unit tests comes last, so that whoever reads only the end knows that they ran.
test: lint molecule unit ## Everything a change must pass

bench-converge: setup ## Run site.yml twice in the lab and count the remote calls of the second run
	$(BIN)/python tests/bench/converge.py $(LAB)

# The container's Python decides which wheels are wanted; the platforms are those of glibc 2.34 and older.
PLATFORMS := $(foreach n,34 31 28 27 26 25 24 18 17 12 5,manylinux_2_$(n)_x86_64) manylinux2014_x86_64 manylinux2010_x86_64 manylinux1_x86_64
DOWNLOAD = $(BIN)/python -m pip download --no-deps --require-hashes --only-binary :all: --dest $(WHEELHOUSE) \
  --python-version $(CONTAINER_PYTHON) --implementation cp $(PLATFORMS:%=--platform %)

bench-transport: packages ## 40 calls over ssh, pct and community.proxmox's plugin in one run
	$(BIN)/python tests/bench/transport.py

wheelhouse: setup ## Fill WHEELHOUSE with the wheels of STACK for CONTAINER_PYTHON; needs a network, can be run again
	$(DOWNLOAD) -r stacks/$(STACK)/lock.txt
	awk '/^uv==/,/[^\\]$$/' requirements/dev.txt > $(VENV)/uv.txt && $(DOWNLOAD) -r $(VENV)/uv.txt

docs: setup ## Write the roles' READMEs, docs/rules.md and docs/facts.md from what they describe
	$(BIN)/python docs/roles.py
	$(BIN)/python docs/rules.py

lock-dev: setup ## Resolve requirements/dev.in again
	$(BIN)/uv pip compile --no-config --universal --python-version 3.11 --generate-hashes --no-header --no-annotate \
	  requirements/dev.in -o requirements/dev.txt

.PHONY: help setup packages demo demo-clean lint unit molecule test test-fleet test-transport bench-converge bench-transport wheelhouse docs lock-dev
