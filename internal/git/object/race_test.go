//go:build race

package object

const underRace = true
