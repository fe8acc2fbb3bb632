//go:build !race

package object

const underRace = false
