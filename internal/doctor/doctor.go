// Package doctor checks whether Redis, the volume and the machine suit the service, and advises what to change.
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

func passed(format string, args ...any) Check {
	return Check{Verdict: VerdictOK, Text: fmt.Sprintf(format, args...)}
}

func warned(format string, args ...any) Check {
	return Check{Verdict: VerdictWarn, Text: fmt.Sprintf(format, args...)}
}

func refused(format string, args ...any) Check {
	return Check{Verdict: VerdictFail, Text: term.OneLine(fmt.Errorf(format, args...))}
}

// Checks prints as a table.
type Checks []Check

func (l Checks) with(name string, c Check) Checks {
	c.Name = name
	return append(l, c)
}

// Table prints one check per row.
func (l Checks) Table(w io.Writer) {
	for _, c := range l {
		fmt.Fprintf(w, "%s\t%s\t%s\n", c.Verdict, c.Name, c.Text)
	}
}

// partTimeout limits each part of the examination: a hanging file system is a finding.
const partTimeout = 20 * time.Second

// Examine runs all checks. When a part times out, it abandons the part and its goroutine.
func Examine(ctx context.Context, cfg config.Config, environ []string) (all Checks) {
	part := func(name string, run func(context.Context) Checks) {
		ctx, cancel := context.WithTimeout(ctx, partTimeout)
		defer cancel()
		done := make(chan Checks, 1)
		go func() { done <- run(ctx) }()
		select {
		case checks := <-done:
			all = append(all, checks...)
		case <-ctx.Done():
			all = all.with(name, refused("no answer within %v; is it a network file system with an unreachable server?",
				partTimeout))
		}
	}
	needsVolume := cfg.Has(config.RoleWorker) || cfg.Has(config.RoleScheduler)
	part("redis", func(ctx context.Context) Checks { return examineRedis(ctx, cfg, needsVolume) })
	if needsVolume {
		part("volume", func(context.Context) Checks { return examineVolume(cfg) })
	}
	part("files", func(context.Context) Checks { return examineFiles(cfg, environ) })
	return all
}
