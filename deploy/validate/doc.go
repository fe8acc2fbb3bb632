// Package validate has tests alone: that the Kubernetes manifests, the Compose file and the Dockerfile are what Kubernetes,
// Compose and BuildKit take them for, without any of these at hand. What they say of Lockstep itself, such as its settings
// and paths, is tested in the package deploy.
package validate
