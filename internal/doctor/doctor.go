package doctor

import (
	"context"
	"fmt"
	"io"
	"time"

	"lockstep/internal/config"
	"lockstep/internal/term"
)

// Verdicts of a check.
const (
	VerdictOK   = "ok"
	VerdictWarn = "warn" // works, but needs attention
	VerdictFail = "fail" // does not work
)

// Check is the outcome of one check.
type Check struct {
	Name    string `json:"name"`
	Verdict string `json:"verdict"`
	Text    string `json:"text"` // finding and advice
}

func passed(name, format string, args ...any) Check {
	return Check{name, VerdictOK, fmt.Sprintf(format, args...)}
}

func warned(name, format string, args ...any) Check {
	return Check{name, VerdictWarn, fmt.Sprintf(format, args...)}
}

func refused(name, format string, args ...any) Check {
	return Check{name, VerdictFail, term.OneLine(fmt.Errorf(format, args...))}
}

// partTimeout limits each part of the examination: a hanging file system is a finding.
const partTimeout = 20 * time.Second

// needsVolume reports whether a process with these roles needs the volume.
func needsVolume(cfg config.Config) bool {
	return cfg.Has(config.RoleWorker) || cfg.Has(config.RoleScheduler)
}

// Examine runs all checks. When a part times out, it abandons the part and its goroutine.
func Examine(ctx context.Context, cfg config.Config, environ []string) Checks {
	parts := []struct {
		name string
		run  func(context.Context) []Check
	}{
		{"redis", func(ctx context.Context) []Check { return examineRedis(ctx, cfg) }},
		{"volume", func(context.Context) []Check { return examineVolume(cfg) }},
		{"files", func(context.Context) []Check { return examineFiles(cfg, environ) }},
	}
	var all Checks
	for _, part := range parts {
		if part.name == "volume" && !needsVolume(cfg) {
			continue
		}
		ctx, cancel := context.WithTimeout(ctx, partTimeout)
		done := make(chan []Check, 1)
		go func() { done <- part.run(ctx) }()
		select {
		case checks := <-done:
			all = append(all, checks...)
		case <-ctx.Done():
			all = append(all, refused(part.name, "no answer within %v; is it a network file system with an unreachable server?", partTimeout))
		}
		cancel()
	}
	return all
}

// Checks prints as a table.
type Checks []Check

// Table prints one check per row.
func (l Checks) Table(w io.Writer) {
	marks := map[string]rune{VerdictOK: term.MarkGood, VerdictWarn: term.MarkWarn, VerdictFail: term.MarkBad}
	for _, c := range l {
		fmt.Fprintf(w, "%s\t%s\t%s\n", term.Paint(marks[c.Verdict], c.Verdict), c.Name, c.Text)
	}
}
