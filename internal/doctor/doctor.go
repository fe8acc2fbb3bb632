package doctor

import (
	"context"
	"fmt"
	"io"
	"time"

	"lockstep/internal/cli/term"
	"lockstep/internal/config"
)

// The verdicts of a check.
const (
	VerdictOK   = "ok"
	VerdictWarn = "warn" // it works, but see to it
	VerdictFail = "fail" // it will not work
)

// Check is one thing that was looked at.
type Check struct {
	Name    string `json:"name"`
	Verdict string `json:"verdict"`
	Text    string `json:"text"` // what was found, and what to do
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

// doctorTimeout bounds each part of the examination: a file system that hangs is a finding.
const doctorTimeout = 20 * time.Second

// needsVolume reports whether a process with these roles has the volume at its root.
func needsVolume(cfg config.Config) bool {
	return cfg.Has(config.RoleWorker) || cfg.Has(config.RoleScheduler)
}

// Examine makes all checks. A part that does not end in time is given up, and its goroutine with it.
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
		ctx, cancel := context.WithTimeout(ctx, doctorTimeout)
		done := make(chan []Check, 1)
		go func() { done <- part.run(ctx) }()
		select {
		case checks := <-done:
			all = append(all, checks...)
		case <-ctx.Done():
			all = append(all, refused(part.name, "no answer within %v; is it a network file system whose server is away?", doctorTimeout))
		}
		cancel()
	}
	return all
}

type Checks []Check

func (l Checks) Table(w io.Writer) {
	marks := map[string]rune{VerdictOK: term.MarkGood, VerdictWarn: term.MarkWarn, VerdictFail: term.MarkBad}
	for _, c := range l {
		fmt.Fprintf(w, "%s\t%s\t%s\n", term.Paint(marks[c.Verdict], c.Verdict), c.Name, c.Text)
	}
}
