package rig

import (
	"os"
	"strings"
)

// CountLog returns how many lines of the process's output contain the text.
func (p *Process) CountLog(text string) (int, error) {
	log, err := os.ReadFile(p.logPath)
	if err != nil {
		return 0, err
	}
	n := 0
	for line := range strings.Lines(string(log)) {
		if strings.Contains(line, text) {
			n++
		}
	}
	return n, nil
}
