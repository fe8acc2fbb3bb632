// Webhook payloads that others recorded, as test data of their modules: ../recorded_test.go reads them
// there. Nothing is built from these modules, so do not run go mod tidy here.
module lockstep/internal/forge/recorded

go 1.26

require (
	github.com/drone/go-scm v1.39.1
	github.com/go-playground/webhooks/v6 v6.4.0
	github.com/jenkins-x/go-scm v1.15.1
	gitlab.com/gitlab-org/api/client-go v1.46.0
)
