//go:build !race

package testenv

const underRace = false
