// Package validate only has tests: they check that Kubernetes, Compose, BuildKit and GoReleaser accept the Kubernetes
// manifests, the Compose file, the Dockerfile and the release configuration, without running any of them. Package deploy
// tests the parts specific to Lockstep, such as settings and paths.
package validate
