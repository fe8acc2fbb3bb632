package status

import (
	"encoding/json"
	"net/http"
	"strings"
	"testing"
	"time"

	"lockstep/events"
	"lockstep/internal/config"
	"lockstep/internal/git/wire"
	"lockstep/internal/hosts"
	"lockstep/internal/proctest"
	"lockstep/internal/redistest"
	"lockstep/internal/term"
)

func TestReadListsLimitedHosts(t *testing.T) {
	t.Parallel()
	redisServer := redistest.Start(t)
	client := redisServer.Client()
	limiter := proctest.Must(hosts.New(hosts.Config{Redis: client, Prefix: string(events.DefaultNamespace)}))(t)
	ask := func(host, repo, credential string, answer wire.Answer) {
		job := limiter.Job(repo, false)
		defer job.Leave(t.Context())
		if done, err := job.With(credential).Acquire(t.Context(), host); err == nil {
			done(answer)
		}
	}
	screen := func() (Service, string) {
		t.Helper()
		cfg := config.Config{Redis: redisServer.URL(), Prefix: string(events.DefaultNamespace)}
		s := proctest.Must(read(t.Context(), client, cfg, nil, searchTimeout))(t)
		var rows strings.Builder
		s.Table(&rows)
		return s, term.Align(rows.String())
	}
	ask("idle.example", "acme/1", "", wire.Answer{Status: http.StatusOK})
	if s, text := screen(); len(s.Hosts) != 0 || strings.Contains(text, "HOST") || strings.Contains(string(proctest.Must(json.Marshal(s))(t)), `"hosts"`) {
		t.Errorf("%+v\n%s\nwant no hosts", s.Hosts, text)
	}
	ask("git.example", "acme/1", "robot", wire.Answer{Status: http.StatusTooManyRequests, Header: http.Header{"Retry-After": {"3600"}}})
	ask("git.example", "acme/2", "robot", wire.Answer{})
	s, text := screen()
	if len(s.Hosts) != 1 || s.Hosts[0].Host != "git.example" || s.Hosts[0].Waiting != 2 || len(s.Waits) != 1 || !strings.HasPrefix(s.Waits[0].Text, "git.example: rate limit until ") {
		t.Errorf("%+v, %+v", s.Hosts, s.Verdict)
	}
	fields := map[string]string{}
	for line := range strings.Lines(text) {
		if name, rest, _ := strings.Cut(line, " "); strings.HasSuffix(name, ".example") {
			fields[name] = strings.Join(strings.Fields(rest), " ")
		}
	}
	if got := fields["git.example"]; got != "2 rate limit in 60m robot" && got != "2 rate limit in 59m robot" {
		t.Errorf("git.example: %s", got)
	}
}

func TestHostRowsFitTheScreen(t *testing.T) {
	t.Parallel()
	now := time.Now()
	until := now.Add(42 * time.Second)
	s := Service{local: now, Hosts: []hosts.Host{
		{Host: "gitlab.example.com:8443", Waiting: 9871, Reason: "rate limit", Until: until, Limited: []hosts.Limited{
			{Credential: "robot", Until: until}, {Credential: "\x1b[2J", Until: until}, {Until: until}}},
		{Host: "github.com", Waiting: 12, Reason: "slow start", Limited: []hosts.Limited{}},
	}}
	var rows strings.Builder
	s.HostRows(&rows)
	screen := term.Align(rows.String())
	for _, want := range []string{
		"HOST                     WAITING  REASON      UNTIL   CREDENTIALS",
		"gitlab.example.com:8443  9871     rate limit  in 42s  robot,  [2J, (anonymous)",
		"github.com               12       slow start  -       -",
	} {
		if !strings.Contains(screen, want+"\n") {
			t.Errorf("no %q in\n%s", want, screen)
		}
	}
}
