package rig

import (
	"strings"
	"testing"

	"lockstep/internal/proctest"
)

func TestKillReportsAProcessThatEndedByItself(t *testing.T) {
	env := &Env{Dir: t.TempDir()}
	p := proctest.Must(env.StartProcess(t.Context(), nil, "/bin/sh", "-c", "echo out of order; exit 3"))(t)
	<-p.done
	if err := p.Kill(); err == nil || !strings.Contains(err.Error(), "out of order") {
		t.Errorf("got %v; want its output", err)
	}
	p = proctest.Must(env.StartProcess(t.Context(), nil, "/bin/sleep", "60"))(t)
	if err := p.Kill(); err != nil {
		t.Errorf("a process that was killed: %v", err)
	}
}
