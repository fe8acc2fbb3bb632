package operate

import (
	"slices"
	"testing"
	"time"

	"lockstep/events"
	"lockstep/internal/cells"
	"lockstep/internal/hosts"
	"lockstep/internal/state"
)

func TestVerdict(t *testing.T) {
	now := time.Date(2026, 11, 30, 12, 0, 0, 0, time.UTC)
	soon := now.Add(time.Minute)
	fails := func(repo string, class events.Class, next *time.Time) state.Summary {
		return state.Summary{Repo: repo, Failing: []state.Trouble{{Class: class, Next: next}, {Class: class, Next: next}}}
	}
	limited := hosts.Host{Host: "git.example", Reason: "rate limit", Waiting: 6, Until: soon}
	for name, tc := range map[string]struct {
		facts        Facts
		health       Health
		needs, waits []string
		well         string
	}{
		"nothing is wrong": {
			Facts{Watched: 3, Workers: 1, Hosts: []hosts.Host{{Host: "git.example"}}}, HealthOK, nil, nil,
			"3 repositories are watched, none fails",
		},
		"what waits for one host is one thing": {
			Facts{Watched: 9, Workers: 1, Lost: []Worker{{Name: "pod-1-x", Heard: now, State: WorkerMissing}, {Name: "pod-1-y", State: WorkerUnheard}}, Hosts: []hosts.Host{limited}, Failing: []state.Summary{
				fails("a/1", events.ClassBusy, &soon), fails("a/2", events.ClassBusy, &soon),
				fails("a/3", events.ClassNetwork, &soon),
			}}, HealthWaiting, nil, []string{
				"1 worker is missing: pod-1-x since 2026-11-30T12:00:00Z", "git.example: rate limit until 12:01:00Z, 6 repositories wait", "network, retried: 1 repository, a/3",
			}, "9 repositories are watched, 3 fail",
		},
		"what fails for good, by cause": {
			Facts{Watched: 1, Workers: 1, More: 1, Missing: []string{"eu-2"}, Failing: []state.Summary{
				fails("a/1", events.ClassAuth, nil), fails("a/2", events.ClassAuth, nil), fails("a/3", events.ClassAuth, nil),
				fails("a/4", events.ClassAuth, nil), fails("a/5", events.ClassNotFound, nil),
				{Repo: "a/8", Failing: []state.Trouble{{Scope: events.ScopeCredential, Class: events.ClassAuth, Credential: "robot"}}},
				{Repo: "a/9", Failing: []state.Trouble{{Scope: events.ScopeRepo, Class: events.ClassServer, Credential: "robot"}}},
				{Repo: "a/6", Refused: []string{"refs/heads/main"}},
				{Repo: "a/7", Failing: []state.Trouble{{Class: events.ClassServer, Until: &soon}}}, // the scope waits, no change
			}}, HealthAttention, []string{
				"no answer from cell eu-2", "auth: 4 repositories, a/1, a/2, a/3 and others", "auth, credential robot: 1 repository, a/8",
				"not_found: 1 repository, a/5", "server: 2 repositories, a/9, a/7", "commits refused: 1 repository, a/6",
			}, []string{"1 more repository fails"}, "1 repository is watched, 9 fail",
		},
		"the rest": {
			Facts{
				Dead: 2, Lost: []Worker{{}}, Full: true, Unasked: Unasked{3, now}, Boxes: 7, Apps: []string{"ci", "docs", "scan", "search"},
				Groups: []Group{{Group: "workers", OldestMS: 240_000, Oldest: "1-0"}, {Group: "indexer", OldestMS: 360_000, Oldest: "2-0"}},
			}, HealthAttention, []string{"no worker takes changes",
				"no scheduler polls: 3 repositories are overdue, since 2026-11-30T12:00:00Z", "the volume is nearly full", "2 dead letters"}, []string{
				"notifications to ci, docs, scan and others about 7 repositories", "group indexer has not settled entry 2-0 for 6m0s",
			}, "0 repositories are watched, none fails",
		},
	} {
		t.Run(name, func(t *testing.T) {
			v := tc.facts.Verdict()
			texts := func(list []Concern) (texts []string) {
				for _, c := range list {
					texts = append(texts, c.Text)
				}
				return texts
			}
			if v.Health != tc.health || !slices.Equal(texts(v.Needs), tc.needs) || !slices.Equal(texts(v.Waits), tc.waits) || v.Well != tc.well {
				t.Errorf("%+v", v)
			}
		})
	}
}

func TestVerdictOfSeveralCells(t *testing.T) {
	t.Parallel()
	until := time.Date(2026, 11, 30, 12, 5, 0, 0, time.UTC)
	one := []hosts.Host{{Host: "git.example:8443", Reason: "rate", Until: until, Waiting: 3}}
	two := []hosts.Host{{Host: "git.example:8443", Reason: "rate", Until: until, Waiting: 4}, {Host: "hub.example", Reason: "rate", Until: until}}
	v := MergeVerdicts(map[string]Verdict{
		"eu-1": Facts{Watched: 1, Workers: 1, Dead: 1, Hosts: one}.Verdict(), "eu-2": Facts{Workers: 1, Hosts: two}.Verdict(),
	}, []cells.Missing{{Cell: "eu-3"}})
	want := []Concern{{"no answer from cell eu-3", LookWorkers}, {"eu-1: 1 dead letter", LookDead}}
	waits := []Concern{
		{"eu-1: git.example:8443: rate until 12:05:00Z, 3 repositories wait", LookHosts},
		{"eu-2: hub.example: rate until 12:05:00Z, 0 repositories wait", LookHosts},
	}
	if v.Health != HealthAttention || !slices.Equal(v.Needs, want) || !slices.Equal(v.Waits, waits) ||
		v.Well != "eu-1: 1 repository is watched, none fails; eu-2: 0 repositories are watched, none fails" {
		t.Errorf("%+v", v)
	}
	if v := MergeVerdicts(map[string]Verdict{"eu-1": Facts{Workers: 1}.Verdict()}, nil); v.Health != HealthOK {
		t.Errorf("%+v", v)
	}
}
