package main

import (
	"context"
	"fmt"
	"io"
	"time"

	"lockstep/internal/config"
)

// The verdicts of a check.
const (
	verdictOK   = "ok"
	verdictWarn = "warn" // it works, but see to it
	verdictFail = "fail" // it will not work
)

// check is one thing that was looked at.
type check struct {
	Name    string `json:"name"`
	Verdict string `json:"verdict"`
	Text    string `json:"text"` // what was found, and what to do
}

func passed(name, format string, args ...any) check {
	return check{name, verdictOK, fmt.Sprintf(format, args...)}
}

func warned(name, format string, args ...any) check {
	return check{name, verdictWarn, fmt.Sprintf(format, args...)}
}

func refused(name, format string, args ...any) check {
	return check{name, verdictFail, oneLine(fmt.Errorf(format, args...))}
}

// doctorTimeout bounds each part of the examination: a file system that hangs is a finding.
const doctorTimeout = 20 * time.Second

// needsVolume reports whether a process with these roles has the volume at its root.
func needsVolume(cfg config.Config) bool {
	return cfg.Has(config.RoleWorker) || cfg.Has(config.RoleScheduler)
}

// examine makes all checks. A part that does not end in time is given up, and its goroutine with it.
func examine(ctx context.Context, cfg config.Config, environ []string) checkList {
	parts := []struct {
		name string
		run  func(context.Context) []check
	}{
		{"redis", func(ctx context.Context) []check { return examineRedis(ctx, cfg) }},
		{"volume", func(context.Context) []check { return examineVolume(cfg) }},
		{"files", func(context.Context) []check { return examineFiles(cfg, environ) }},
	}
	var all checkList
	for _, part := range parts {
		if part.name == "volume" && !needsVolume(cfg) {
			continue
		}
		ctx, cancel := context.WithTimeout(ctx, doctorTimeout)
		done := make(chan []check, 1)
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

type checkList []check

func (l checkList) table(w io.Writer) {
	marks := map[string]rune{verdictOK: markGood, verdictWarn: markWarn, verdictFail: markBad}
	for _, c := range l {
		fmt.Fprintf(w, "%s\t%s\t%s\n", paint(marks[c.Verdict], c.Verdict), c.Name, c.Text)
	}
}
