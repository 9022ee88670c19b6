# The commands of this repository. `make demo` and `make test` do their own set-up on a fresh machine
# that has Rust and Node; `make help` lists the rest.

SHELL := /bin/bash
.DEFAULT_GOAL := help
.PHONY: help setup build test demo demo-replication picture bench vm-test kvm-test fmt fmt-check clippy nextest nextest-runsc doctest schema deny dashboard dashboard-test browser-test fuzz soak

STEP := @scripts/step
HOST := $(shell rustc -vV 2>/dev/null | sed -n 's/^host: //p')
# scripts/setup.sh unpacks it.
LATER_RUNSC := /usr/lib/belljar/runsc-20240729/runsc
TARGET_DIR := $(or $(CARGO_TARGET_DIR),target)

help: ## list the commands
	@sed -n 's/^\([a-z-]*\):.*## /\1\t/p' $(MAKEFILE_LIST) | awk -F'\t' '{ printf "  make %-16s %s\n", $$1, $$2 }'

setup: ## install what the tests need and this machine lacks
	$(STEP) setup scripts/setup.sh test

# A copy, not a link: a linker leaves its file to the kernel in small pieces, and it starts a tenth slower.
build: dashboard ## the static release binary: target/release/belljar
	$(STEP) build cargo build --release --locked --package belljar
	@install -D --mode 755 $(TARGET_DIR)/$(HOST)/release/belljar $(TARGET_DIR)/release/belljar

# One after the other, cheapest first, so that the first failure is the last thing on the screen.
test: ## everything that must hold before a merge
	$(STEP) setup scripts/setup.sh test
	@$(MAKE) --no-print-directory fmt-check
	@$(MAKE) --no-print-directory dashboard
	@$(MAKE) --no-print-directory dashboard-test
	@$(MAKE) --no-print-directory clippy
	@$(MAKE) --no-print-directory nextest
	@$(MAKE) --no-print-directory nextest-runsc
	@$(MAKE) --no-print-directory doctest
	@$(MAKE) --no-print-directory schema
	@$(MAKE) --no-print-directory deny
	@$(MAKE) --no-print-directory browser-test
	@$(MAKE) --no-print-directory vm-test
	@$(MAKE) --no-print-directory kvm-test

demo: ## build, then watch examples/agent.py meet the walls
	$(STEP) setup scripts/setup.sh demo
	@$(MAKE) --no-print-directory build
	@BELLJAR=$(TARGET_DIR)/release/belljar scripts/demo.sh

picture: ## draw the demo again for the README: docs/demo.svg
	@mkdir -p docs
	@$(MAKE) --no-print-directory build
	@set -o pipefail; script --quiet --return --command 'BELLJAR=$(TARGET_DIR)/release/belljar scripts/demo.sh' /dev/null \
		</dev/null | scripts/demo_picture.py >$(TARGET_DIR)/demo.svg
	@mv $(TARGET_DIR)/demo.svg docs/demo.svg

demo-replication: ## a family of agents within a contract, its refusals and its end
	$(STEP) setup scripts/setup.sh demo
	@$(MAKE) --no-print-directory build
	@BELLJAR=$(TARGET_DIR)/release/belljar examples/replication/demo.sh

bench: ## launch time against bare processes and bubblewrap; replication from memory to real boxes; egress against mitmproxy
	$(STEP) setup scripts/setup.sh bench
	@$(MAKE) --no-print-directory build
	$(STEP) bench cargo xtask bench launch
	$(STEP) bench-replication cargo xtask bench replication
	$(STEP) bench-egress cargo xtask bench egress
	$(STEP) bench-supervisor cargo xtask bench supervisor
	$(STEP) bench-evolve cargo xtask bench evolve
	$(STEP) bench-image cargo xtask bench image

# Every run draws new cases; `make test` has some of each, always the same.
fuzz: ## random input for whatever reads files and the wire, again and again (FOR=10m)
	$(STEP) fuzz cargo nextest run --locked --stress-duration $(or $(FOR),10m) --package belljar-api --package belljar-policy \
		--package belljar-manifest --package belljar-egress --package belljar-ledger --package belljar-web \
		--package belljar-supervisor --package belljar-sandbox \
		-E 'test(/fuzz|prop|any_|random|nonsense|whatever|hostile|never/) - package(belljar-supervisor) - package(belljar-sandbox) + binary(fuzz) + binary(lattice) + binary(hostile) + test(/::(any|hostile)_/) & (package(belljar-supervisor) + package(belljar-sandbox))'

soak: ## the tests with real boxes, again and again, to find what fails seldom (FOR=1h)
	$(STEP) soak cargo nextest run --locked --package belljar --package belljar-supervisor --stress-duration $(or $(FOR),1h)

vm-test: ## the limit tests in a guest with cgroup v2 and an older kernel
	$(STEP) vm-test cargo xtask vm-test

kvm-test: ## the microvm tier with KVM, in a guest whose emulated processor has virtualisation
	$(STEP) kvm-test cargo xtask vm-test --kvm

# What is there and newer than all it is made of is not built again.
dashboard: dashboard/dist/index.html ## the web pages that the binary holds: dashboard/dist

dashboard/node_modules/.package-lock.json: dashboard/package.json dashboard/package-lock.json
	$(STEP) dashboard-packages npm --prefix dashboard ci --no-audit --no-fund --silent
	@touch $@

dashboard/dist/index.html: dashboard/node_modules/.package-lock.json dashboard/index.html dashboard/vite.config.ts \
		$(shell find dashboard/src dashboard/public -type f)
	$(STEP) dashboard npm --prefix dashboard run --silent build
	@touch $@

dashboard-test: dashboard/node_modules/.package-lock.json ## types, lint and unit tests of the dashboard
	$(STEP) dashboard-test npm --prefix dashboard test --silent

browser-test: dashboard ## the dashboard in Chromium, with a made-up fleet and with a real supervisor
	$(STEP) browser-test npm --prefix dashboard run --silent test:browser
	$(STEP) browser-test-supervisor scripts/browser.sh

fmt: ## format the code
	cargo fmt --all

fmt-check:
	$(STEP) fmt cargo fmt --all --check

clippy:
	$(STEP) clippy cargo clippy --workspace --all-targets --locked -- -D warnings
	$(STEP) clippy-guest cargo clippy --package xtask --test guest --test kvm --locked -- -D warnings

# One more at a time than there are processors: many tests wait for a limit to be hit. Properties are tried with the same cases
# each time, so that a red run is the change's doing; new ones are `make fuzz`'s to draw.
nextest:
	$(STEP) tests env PROPTEST_RNG_SEED=20260918 cargo nextest run --workspace --locked --no-fail-fast --test-threads $$(($$(nproc) + 1))

# Boxes on a later release of gVisor's, which runs programs in another way: what its kernel decides, as one of the two users.
nextest-runsc:
	$(STEP) tests-runsc env BELLJAR_RUNSC=$(LATER_RUNSC) cargo nextest run --workspace --locked --no-fail-fast \
		--test-threads $$(($$(nproc) + 1)) \
		-E 'test(/^gvisor::as_user::/) & (binary(walls_kernel) | binary(limits) | binary(egress_evasions) | binary(egress_secrets))'

doctest:
	$(STEP) doc-tests cargo test --workspace --locked --doc

schema: ## check that the committed JSON schemas are what the binary prints
	$(STEP) schema scripts/schema.sh

deny: ## licences, bans, sources and advisories of the dependencies
	$(STEP) deny scripts/deny.sh
