# Continuous integration calls these targets too; see .ci/run.

FUZZTIME  ?= 30s
TESTFLAGS ?=

# The packages whose tests run without the race detector: they compute, render, or start programs that are built without it.
WITHOUT_RACE = deploy|examples|internal/(archive|dashboard|measure|view|git/(checkout|lfs|object|signature|submodule|wildmatch))

# The end-to-end tests that run with the race detector, and not without it: processes die while they work on the same thing.
E2E_RACE = KilledAt|WhateverDies|LosesNothing|LoseNothing|SurvivesRedis|UnderKill9|StoppedWorker|InParallel|Redelivery|FollowerOfAFollower

.DEFAULT_GOAL := help
.PHONY: help build check test test-all test-race test-large test-soak test-forge test-matrix test-filesystems module bench test-bench bench-short bench-lock bench-hot bench-obstacles bench-stream bench-publish bench-availability measure fuzz lint fmt up

help: ## Show this list
	@awk -F ':.*## ' '/^[a-z-]+:.*## / {printf "  %-18s %s\n", $$1, $$2}' $(MAKEFILE_LIST)

build: ## Build the static binary bin/lockstep
	CGO_ENABLED=0 go build -trimpath -o bin/lockstep ./cmd/lockstep

check: ## Run gofmt, go mod tidy and go vet, and fail if they find or would change anything
	@files=$$(gofmt -l .); test -z "$$files" || { echo "not formatted, run make fmt:"; echo "$$files"; exit 1; }
	go mod tidy -diff
	go -C bench mod tidy -diff
	go vet ./...
	go -C bench vet ./...

test: ## Run the everyday tests
	go test ./... $(TESTFLAGS)

test-all: test test-race test-large test-bench ## Run all tests: everyday and long forms, race detector, memory, benchmarks

test-race: ## Run the tests of all that runs concurrently in their long form, in fewer rounds, with the race detector and real Redis
	LOCKSTEP_TEST=all go test -race -p 3 $$(go list ./... | grep -vE "^$$(go list -m)/($(WITHOUT_RACE)|internal/(cli|e2e|volume))(/|\$$)") $(TESTFLAGS)
	LOCKSTEP_TEST=all go test -race ./internal/e2e -run '$(E2E_RACE)' $(TESTFLAGS)
	LOCKSTEP_TEST=all go test -race ./internal/volume -run 'Adopt|Crash|Parallel|Pin|Place|Prepar|Progress|Readers|Slot|Stopped|Trash' $(TESTFLAGS)

test-large: ## Run the long forms of the rest, and the tests that the race detector makes too slow or too large, or fails
	LOCKSTEP_TEST=all go test $$(go list ./... | grep -E "^$$(go list -m)/($(WITHOUT_RACE))(/|\$$)") $(TESTFLAGS)
	LOCKSTEP_TEST=all go test ./internal/cli -run 'Demo|CommandsInDocuments|PublishAndWait|OtherFileSystems' $(TESTFLAGS)
	LOCKSTEP_TEST=all go test ./internal/volume -run 'TooLargeCommit|LFSObjects|AllLinks|ServerOfGitLFS|OfASync|CopiesAreCounted|NotRetried|OfSubmodules|InSubmodules|NestedSubmodules|ManySubmodules|RandomSubmodules|LimitOfLinks|LargePacks|ManyViews|ManyPushes|LargePushes|PushCosts|ManyLinks|DamageIsFound|TreesOfMany' $(TESTFLAGS)
	LOCKSTEP_TEST=all go test ./events/stream ./handlers ./internal/git/serve ./internal/git/wire -run 'Conformance|TrimKeepsUnsettled|HugeEntries|HugeSiblings|LargeLetters|LargeDeadLetters|ManyKeysAreUnparked|ViewTreesAgainstOracle|ManyLines|HugeRequests|PackSize|RandomHistories' $(TESTFLAGS)
	LOCKSTEP_TEST=all go test ./internal/e2e -skip '$(E2E_RACE)' $(TESTFLAGS)
	GIT_DEFAULT_HASH=sha256 go test ./internal/git/object ./internal/git/checkout ./internal/git/submodule ./internal/git/wire ./tree $(TESTFLAGS)

test-soak: ## Run the soak tests: 1,000 pushes, 1,000 commits for eight Git clients, 10,000 views, odd and real repositories, 1,000 killed workers, a fifth cell for 10,000 repositories, 100 power cuts of Redis under load, an hour with a forge that fails
	LOCKSTEP_SOAK=1 LOCKSTEP_TEST=all go test -count=1 -timeout 30m ./internal/volume -run 'ManyPushes|RandomSubmodules|OneVersionOfSubmodules|PushCosts' -v $(TESTFLAGS)
	LOCKSTEP_SOAK=1 LOCKSTEP_TEST=all go test -count=1 -timeout 30m ./internal/git/serve -run RandomHistories -v $(TESTFLAGS)
	LOCKSTEP_SOAK=1 LOCKSTEP_TEST=all go test -count=1 -timeout 30m ./handlers -run 'ViewsAgainstOracle|NamesMatchModel' -v $(TESTFLAGS)
	LOCKSTEP_SOAK=1 LOCKSTEP_TEST=all go test -count=1 -timeout 120m ./internal/e2e -run 'MatchGitClone|AlteredTrees|GitClientsOfAReader|ManyFollowers|CellJoins|PushCosts' -v $(TESTFLAGS)
	LOCKSTEP_SOAK=1 LOCKSTEP_TEST=all go test -count=1 -timeout 90m ./internal/e2e -run ForgeThatFails -v $(TESTFLAGS)
	LOCKSTEP_SOAK=1 LOCKSTEP_TEST=all go test -race -count=1 -timeout 60m ./internal/e2e ./internal/volume ./internal/cli $(TESTFLAGS)
	GIT_DEFAULT_HASH=sha256 go test -count=1 -timeout 60m ./internal/git/... ./internal/volume $(TESTFLAGS)
	LOCKSTEP_SOAK=1 go test -count=1 -timeout 20m ./internal/gitea -v $(TESTFLAGS)

test-forge: ## Test with a real forge, Gitea, built from the Go module proxy into the cache: minutes, once
	internal/gitea/build.sh
	LOCKSTEP_SOAK=1 go test -count=1 -timeout 20m ./internal/gitea -v $(TESTFLAGS)

test-matrix: ## Test with several Redis and Valkey servers: those of Debian releases, and SERVERS="redis-6.2.14=/path/of/redis-server …"
	internal/redistest/matrix.sh $(SERVERS)

test-filesystems: ## Test the volume on ext4, XFS, btrfs, tmpfs, overlay and FUSE, by loop mounts; needs root
	internal/volume/filesystems.sh

module: ## Move the tree to the module path MODULE
	@test -n '$(MODULE)' || { echo "usage: make module MODULE=github.com/YOU/lockstep"; exit 1; }
	old=$$(go list -m) && git ls-files -z '*.go' '*go.mod' .golangci.yml | xargs -0 sed -i -E \
		-e "s#(^|[^[:alnum:]./_-])$$old/(bench|cmd|events|examples|handlers|internal|locking|router|tree)#\1$(MODULE)/\2#g" \
		-e "s#^(module |replace |	)$$old( =>| v0|\$$)#\1$(MODULE)\2#; s#pkg: $$old,#pkg: $(MODULE),#"
	go vet ./...
	go -C bench vet ./...

test-bench: ## Run each benchmark for about a second
	go -C bench test ./... $(TESTFLAGS)

bench: ## Build the benchmarks and the programs that they compare with: bin/bench, bin/peers
	CGO_ENABLED=0 go build -C bench -trimpath -o ../bin/bench .
	CGO_ENABLED=0 go build -C bench/peers -trimpath -o ../../bin/peers .
	npm ci --prefix bench/peers/node --ignore-scripts --no-audit --no-fund

bench-short: ## Compare with another binary, AGAINST=/path/to/lockstep, in six minutes
	CGO_ENABLED=0 go build -C bench -trimpath -o ../bin/bench .
	bin/bench hot --serve --rounds 3 --duration 4s --against '$(AGAINST)'
	bin/bench stream --serve --against '$(AGAINST)'
	bin/bench publish --sizes 60,1700 --pushes 10 --rounds 3 --against '$(AGAINST)'
	bin/bench availability --duration 12s --against '$(AGAINST)'

bench-lock: bench ## Measure the lock, side by side with others, and through faults: 4 minutes
	bin/bench lock --peer 'redsync=bin/peers redsync' --peer 'etcd=bin/peers etcd'
	bin/bench lock --faults --duration 15s

bench-hot: bench ## Measure what hot repositories cost the others, side by side with other queues: 15 minutes
	bin/bench hot --peer 'hashed streams=bin/peers hashed' --peer 'GroupMQ=node bench/peers/node/groupmq.mjs' --peer 'JetStream=bin/peers jetstream' \
		--peer 'BullMQ=node bench/peers/node/bullmq.mjs'

bench-obstacles: bench ## Measure what hosts that hang or limit, a Redis that hangs and huge entries cost: 7 minutes
	bin/bench hot --serve --beside hung,hung-hosts,limited --duration 60s --limit 5m --rounds 1
	bin/bench hot --serve --beside redishang,huge

bench-stream: bench ## Measure events a second, and what appendfsync always costs: 3 minutes
	bin/bench stream
	bin/bench stream --settle --events 5000
	bin/bench stream --publishers 1,16,256

bench-publish: bench ## Measure how long a push takes to its readers, side by side with git: 15 minutes
	bin/bench publish
	bin/bench publish burst
	bin/bench publish open

bench-availability: bench ## Measure how often readers meet a complete tree while pushes go on: 1 minute
	bin/bench availability

measure: ## Count lines, exported names, scripts, settings and words; functions, files and packages that one push crosses
	go run ./internal/measure
	LOCKSTEP_MEASURE=1 go test -vet=off -count=1 -v -run PathOfAPush -timeout 30m ./internal/measure

fuzz: ## Fuzz each target for FUZZTIME
	@set -e; for file in $$(grep -rl --include='*_test.go' '^func Fuzz' .); do \
		for target in $$(sed -n 's/^func \(Fuzz[A-Za-z0-9_]*\)(.*/\1/p' $$file); do \
			echo "fuzz $$(dirname $$file) $$target"; \
			go test -run '^$$' -fuzz "^$$target$$" -fuzztime $(FUZZTIME) -fuzzminimizetime 10x $$(dirname $$file); \
		done; \
	done

lint: ## Run golangci-lint
	golangci-lint run ./...
	cd bench && golangci-lint run ./...

fmt: ## Format all Go files
	golangci-lint fmt ./...

# The file is mounted into the container, where user 65532 reads it; the folder is closed to others.
deploy/secrets/api-token:
	@chmod 700 deploy/secrets
	@head -c 32 /dev/urandom | od -An -tx1 | tr -d ' \n' > $@
	@chmod 444 $@

up: deploy/secrets/api-token ## Start Redis, two workers and a receiver with docker compose
	docker compose up --build --detach
