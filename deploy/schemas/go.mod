// What Kubernetes, the Prometheus operator, KEDA and GoReleaser take, as their own schemas say: ../validate reads them in these modules.
// Nothing is built from them, so do not run go mod tidy here.
module lockstep/deploy/schemas

go 1.26.0

require (
	github.com/goreleaser/goreleaser/v2 v2.14.0
	github.com/kedacore/keda/v2 v2.20.2
	github.com/prometheus-operator/prometheus-operator v0.85.0
	sigs.k8s.io/kubectl-validate v0.0.4
)
