// Package validate only has tests: they check that Kubernetes, Compose and BuildKit accept the Kubernetes manifests, the
// Compose file and the Dockerfile, without running any of them. Package deploy tests the parts specific to Lockstep, such
// as settings and paths.
package validate
