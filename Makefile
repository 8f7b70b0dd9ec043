# What developers, CI and the demo run. `make help` lists it.
SHELL := /bin/bash
# A link in bin/ counts with its own time, not that of the program it leads to.
MAKEFLAGS += --check-symlink-times
BIN := $(CURDIR)/bin
VERSION ?= $(shell git describe --tags --always --dirty 2>/dev/null || echo dev)
IMG ?= fleet-controller:$(VERSION)
FUZZTIME ?= 10s

# An envtest folder that the developer has; tests get bin/, where hack/part links what it found there.
ASSETS := $(KUBEBUILDER_ASSETS)
TEST_ENV := KUBEBUILDER_ASSETS=$(BIN)

.DEFAULT_GOAL := help
.PHONY: help
help: ## Show this.
	@awk -F ':.*## ' '/^[a-z0-9-]+:.*## /{printf "  %-18s %s\n", $$1, $$2}' $(MAKEFILE_LIST)

##### The code

.PHONY: generate fmt vet lint verify-generated
generate: bin/controller-gen bin/crd-ref-docs ## Write deepcopy functions, CRDs, RBAC and docs/api from the Go code.
	bin/controller-gen object paths=./api/...
	bin/controller-gen crd paths=./api/... output:crd:dir=config/crd/bases
	bin/controller-gen rbac:roleName=fleet-controller paths=./controllers/... output:rbac:dir=config/rbac
	@mkdir -p docs/api
	bin/crd-ref-docs --log-level=ERROR --max-depth=20 --source-path=api --config=hack/api-docs.yaml --renderer=markdown --output-mode=group --output-path=docs/api

fmt: ## Format the Go code.
	gofmt -l -w $$(git ls-files --cached --others --exclude-standard '*.go')

vet: ## Run go vet.
	go vet ./...
	cd e2e && go vet ./...

lint: bin/golangci-lint ## Run the linters.
	$(BIN)/golangci-lint run ./...
	cd e2e && $(BIN)/golangci-lint run --config ../.golangci.yml ./...

generated_sum = find api config/crd config/rbac docs/api -type f -exec sha256sum {} + | sort | sha256sum
verify-generated: ## Fail if `make generate` changes anything.
	@before=$$($(generated_sum)); $(MAKE) --no-print-directory generate || exit 1; \
	if [ "$$before" != "$$($(generated_sum))" ]; then \
		git status --short api config docs/api; echo "generated files are out of date: run make generate and commit"; exit 1; fi

##### The programs

go_build = CGO_ENABLED=0 go build -trimpath -ldflags "-s -w -X main.version=$(VERSION)"
.PHONY: build docker-build
build: ## Build bin/fleet-controller and bin/fleetwright.
	$(go_build) -o bin/ ./cmd/fleet-controller ./cmd/fleetwright

docker-build: ## Build the image IMG.
	docker build --build-arg VERSION=$(VERSION) -t $(IMG) .

##### The parts: what tests and the demo run against, built from Go modules apart from the product's

PARTS := etcd kube-apiserver kube-controller-manager kube-scheduler kubectl kwok source-controller kustomize-controller flux kyverno kyverno-reports
.PHONY: parts
parts: $(PARTS:%=bin/%) bin/crds bin/kwok-stages.yaml bin/kyverno-crds ## Build (or find) Kubernetes, etcd, Flux and Kyverno; about 20 minutes the first time.

kubernetes_version := $(shell sed -En 's,.*k8s.io/kubernetes v([0-9.]+).*,\1,p' hack/tools/kubernetes/go.mod)
kubernetes_ldflags := $(foreach p,k8s.io/component-base/version k8s.io/client-go/pkg/version,\
	-X $p.gitVersion=v$(kubernetes_version) -X $p.gitMajor=$(word 1,$(subst ., ,$(kubernetes_version))) -X $p.gitMinor=$(word 2,$(subst ., ,$(kubernetes_version))))
flux_version := $(shell sed -En 's,.*flux2/v2 v([0-9.]+).*,\1,p' hack/tools/flux/go.mod)

# bin/NAME from hack/tools/MODULE: NAME, MODULE, package, minutes, linker flags.
define part
bin/$1: hack/tools/$2/go.mod hack/tools/$2/go.sum | bin
	@ASSETS=$(ASSETS) hack/part $1 $2 $3 $4 "$5"
endef
$(eval $(call part,etcd,etcd,go.etcd.io/etcd/server/v3,1))
$(eval $(call part,kube-apiserver,kubernetes,k8s.io/kubernetes/cmd/kube-apiserver,4,$(kubernetes_ldflags)))
$(eval $(call part,kube-controller-manager,kubernetes,k8s.io/kubernetes/cmd/kube-controller-manager,1,$(kubernetes_ldflags)))
$(eval $(call part,kube-scheduler,kubernetes,k8s.io/kubernetes/cmd/kube-scheduler,1,$(kubernetes_ldflags)))
$(eval $(call part,kubectl,kubernetes,k8s.io/kubernetes/cmd/kubectl,1,$(kubernetes_ldflags)))
$(eval $(call part,kwok,kwok,sigs.k8s.io/kwok/cmd/kwok,3))
$(eval $(call part,source-controller,flux,github.com/fluxcd/source-controller,4))
$(eval $(call part,kustomize-controller,flux,github.com/fluxcd/kustomize-controller,1))
$(eval $(call part,flux,flux,github.com/fluxcd/flux2/v2/cmd/flux,2,-X main.VERSION=$(flux_version)))
$(eval $(call part,kyverno,kyverno,github.com/kyverno/kyverno/cmd/kyverno,4))
$(eval $(call part,kyverno-reports,kyverno,github.com/kyverno/kyverno/cmd/reports-controller,1))
$(eval $(call part,controller-gen,codegen,sigs.k8s.io/controller-tools/cmd/controller-gen,1))
$(eval $(call part,crd-ref-docs,codegen,github.com/elastic/crd-ref-docs,1))
$(eval $(call part,golangci-lint,lint,github.com/golangci/golangci-lint/v2/cmd/golangci-lint,3))

bin:
	@mkdir bin

# Flux's CRDs, from the API modules that the product is built with.
bin/crds: go.mod bin/controller-gen
	@rm -rf $@
	bin/controller-gen crd $(foreach p,source-controller/api/v1 kustomize-controller/api/v1 helm-controller/api/v2,paths=github.com/fluxcd/$p) output:crd:dir=$@

# What kwok's nodes and pods do: become ready at once, and end when they are deleted.
bin/kwok-stages.yaml: hack/tools/kwok/go.mod | bin
	@cd hack/tools/kwok && go mod download sigs.k8s.io/kwok && stages=$$(go list -m -f '{{.Dir}}' sigs.k8s.io/kwok)/kustomize/stage && \
	for f in node/fast/node-initialize pod/fast/pod-ready pod/fast/pod-complete pod/fast/pod-delete; do \
		cat $$stages/$$f.yaml && echo --- || exit 1; done > $(CURDIR)/$@.new && mv $(CURDIR)/$@.new $(CURDIR)/$@

# Kyverno's CRDs, which are in its module.
bin/kyverno-crds: hack/tools/kyverno/go.mod | bin
	@rm -rf $@ $@.new && mkdir $@.new && cd hack/tools/kyverno && go mod download github.com/kyverno/kyverno && \
	cp --no-preserve=mode $$(go list -m -f '{{.Dir}}' github.com/kyverno/kyverno)/config/crds/*/*.yaml $(CURDIR)/$@.new && mv $(CURDIR)/$@.new $(CURDIR)/$@

# Stands in for helm-controller where $HELM_CONTROLLER names none.
bin/helm-standin: $(wildcard e2e/helm-standin/*.go) e2e/go.mod e2e/go.sum
	cd e2e && CGO_ENABLED=0 go build -o $(BIN)/ ./helm-standin

##### Tests

.PHONY: test test-unit test-e2e chromium bench fuzz
test: test-unit test-e2e ## Run all tests.

test-unit: bin/etcd bin/kube-apiserver bin/crds ## Run the tests of the product's module; those with an API server too.
	$(TEST_ENV) go test -parallel 6 ./... # those with an API server wait more than they work

test-e2e: parts build bin/helm-standin chromium ## Run the tests against real API servers, Flux and Git.
	cd e2e && $(TEST_ENV) go test -count=1 -p 1 -timeout 45m ./...

chromium: ## Find the browser that opens the HTML page in tests, or install Debian's if we may.
	@if command -v "$${CHROMIUM:-chromium}" chromium-browser google-chrome >/dev/null; then :; \
	elif [ "$$(id -u)" = 0 ] && command -v apt-get >/dev/null; then \
		echo "chromium: installing Debian's package"; export DEBIAN_FRONTEND=noninteractive; \
		apt-get -qq update; apt-get -qq install -y --no-install-recommends chromium fonts-dejavu-core >/dev/null || echo "chromium: not installed; the tests that need it say so"; \
	else echo "no browser: set CHROMIUM to a Chromium or Chrome, or install one; the tests that need it are left out"; fi

bench: parts build bin/helm-standin ## Run the benchmarks.
	go test -run '^$$' -bench BenchmarkDiff -benchtime 1x ./cmd/fleetwright
	cd e2e && $(TEST_ENV) go test -run '^$$' -bench . -timeout 60m ./bench/...

fuzz: ## Run each fuzz test for FUZZTIME (10s).
	@grep -rHoE --include='*_test.go' '^func Fuzz\w+' . | while IFS=: read -r file func; do \
		go test "$$(dirname "$$file")" -run '^$$' -fuzz "^$${func#func }$$" -fuzztime $(FUZZTIME) -fuzzminimizetime 1s || exit 1; done

##### Use

.PHONY: demo install uninstall deploy undeploy
demo: parts build bin/helm-standin ## Start a hub, two members, Flux and Fleetwright on this machine; DEMO_ONCE=1 ends by itself.
	cd e2e && go run ./demo

install: bin/kubectl ## Apply the CRDs to the cluster of the current kubeconfig.
	bin/kubectl apply --server-side -k config/crd

uninstall: bin/kubectl ## Delete the CRDs, and with them all their objects.
	bin/kubectl delete --ignore-not-found -k config/crd

deploy: bin/kubectl ## Apply Fleetwright to the cluster of the current kubeconfig.
	bin/kubectl apply --server-side -k config/default

undeploy: bin/kubectl ## Delete Fleetwright, CRDs and all.
	bin/kubectl delete --ignore-not-found -k config/default
