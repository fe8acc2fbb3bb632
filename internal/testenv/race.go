//go:build race

package testenv

const underRace = true
