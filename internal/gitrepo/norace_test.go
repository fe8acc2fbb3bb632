//go:build !race

package gitrepo

const underRace = false
