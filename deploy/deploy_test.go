// Package deploy contains the files to deploy and monitor Lockstep, and tests that they match the program.
package deploy

import (
	"context"
	"encoding/json"
	"fmt"
	"net/http"
	"net/http/httptest"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/redis/go-redis/v9"
	"go.yaml.in/yaml/v3"

	"lockstep/events"
	"lockstep/events/stream"
	"lockstep/internal/hosts"
	"lockstep/internal/redistest"
	"lockstep/internal/schedule"
	"lockstep/internal/state"
	"lockstep/internal/telemetry"
	"lockstep/locking"
)

const (
	rulesFile     = "prometheus/rules.yaml"
	rulesTestFile = "prometheus/rules_test.yaml"
	dashboardFile = "grafana/lockstep.json"
	operations    = "../docs/operations.md"
)

// rule is an alerting rule.
type rule struct {
	Alert       string            `yaml:"alert"`
	Expr        string            `yaml:"expr"`
	Labels      map[string]string `yaml:"labels"`
	Annotations map[string]string `yaml:"annotations"`
}

func readRules(t *testing.T) []rule {
	t.Helper()
	var file struct {
		Groups []struct {
			Rules []rule `yaml:"rules"`
		} `yaml:"groups"`
	}
	if err := yaml.Unmarshal(read(t, rulesFile), &file); err != nil {
		t.Fatal(err)
	}
	var rules []rule
	for _, group := range file.Groups {
		rules = append(rules, group.Rules...)
	}
	if len(rules) == 0 {
		t.Fatal("no rules")
	}
	return rules
}

func read(t *testing.T, path string) []byte {
	t.Helper()
	content, err := os.ReadFile(path)
	if err != nil {
		t.Fatal(err)
	}
	return content
}

// TestQueriedMetricsExist records every metric and compares the exported ones with those in the rules, the dashboard and the
// documents.
func TestQueriedMetricsExist(t *testing.T) {
	exported := scrapeAll(t)
	for _, r := range readRules(t) {
		exported.check(t, r.Alert, r.Expr)
	}
	var dashboard any
	if err := json.Unmarshal(read(t, dashboardFile), &dashboard); err != nil {
		t.Fatal(err)
	}
	found := 0
	walk(dashboard, func(key, text string) {
		if key == "expr" || key == "query" || key == "definition" {
			found += exported.check(t, dashboardFile, text)
		}
	})
	if found < 40 {
		t.Errorf("only %d metrics found in %s", found, dashboardFile)
	}
	for _, found := range regexp.MustCompile(`lockstep_[a-z_]+\*?`).FindAllString(string(read(t, operations)), -1) {
		prefix, all := strings.CutSuffix(found, "*")
		if !slices.ContainsFunc(exported.names(), func(name string) bool { return name == found || all && strings.HasPrefix(name, prefix) }) {
			t.Errorf("%s: unknown metric %s", operations, found)
		}
	}
}

func TestEachAlertHasARunbookAndTests(t *testing.T) {
	var tests struct {
		Tests []struct {
			Cases []struct {
				Alert string `yaml:"alertname"`
				Want  []any  `yaml:"exp_alerts"`
			} `yaml:"alert_rule_test"`
		} `yaml:"tests"`
	}
	if err := yaml.Unmarshal(read(t, rulesTestFile), &tests); err != nil {
		t.Fatal(err)
	}
	fires, silent := map[string]bool{}, map[string]bool{}
	for _, test := range tests.Tests {
		for _, c := range test.Cases {
			fires[c.Alert] = fires[c.Alert] || len(c.Want) > 0
			silent[c.Alert] = silent[c.Alert] || len(c.Want) == 0
		}
	}
	manual := "\n" + string(read(t, operations))
	for _, r := range readRules(t) {
		if !fires[r.Alert] || !silent[r.Alert] {
			t.Errorf("%s: want a test in which it fires (has: %t), and one in which it is silent (has: %t)", r.Alert, fires[r.Alert], silent[r.Alert])
		}
		if s := r.Labels["severity"]; s != "warning" && s != "critical" {
			t.Errorf("%s: severity %q", r.Alert, s)
		}
		if r.Annotations["summary"] == "" {
			t.Errorf("%s has no summary", r.Alert)
		}
		if want := "docs/operations.md#" + strings.ToLower(r.Alert); r.Annotations["runbook"] != want {
			t.Errorf("%s: runbook %q, want %q", r.Alert, r.Annotations["runbook"], want)
		}
		if !strings.Contains(manual, "\n### "+r.Alert+"\n") {
			t.Errorf("%s has no section in %s", r.Alert, operations)
		}
	}
	for _, link := range regexp.MustCompile(`\]\(#([a-z-]+)\)`).FindAllStringSubmatch(manual, -1) {
		heading := regexp.MustCompile(`(?im)^#+ ` + strings.ReplaceAll(link[1], "-", "[ -]") + `$`)
		if !heading.MatchString(manual) {
			t.Errorf("%s links to #%s, but has no such section", operations, link[1])
		}
	}
}

func TestPromtool(t *testing.T) {
	promtool, err := exec.LookPath("promtool")
	switch {
	case err != nil && os.Getenv("LOCKSTEP_TEST_PROMTOOL") == "real":
		t.Fatal("LOCKSTEP_TEST_PROMTOOL=real, but promtool is not in PATH; on Debian, install the package prometheus")
	case err != nil:
		t.Skip("promtool is not in PATH; on Debian, install the package prometheus")
	}
	queries := dashboardAsRules(t)
	for _, args := range [][]string{{"check", "rules", rulesFile}, {"test", "rules", rulesTestFile}, {"check", "rules", queries}} {
		if out, err := exec.CommandContext(t.Context(), promtool, args...).CombinedOutput(); err != nil {
			t.Errorf("promtool %s: %v\n%s", strings.Join(args, " "), err, out)
		}
	}
}

// dashboardAsRules writes the dashboard's queries, with its variables filled in, to a file of rules, because promtool does
// not read dashboards.
func dashboardAsRules(t *testing.T) string {
	t.Helper()
	var dashboard any
	if err := json.Unmarshal(read(t, dashboardFile), &dashboard); err != nil {
		t.Fatal(err)
	}
	variables := strings.NewReplacer("$__rate_interval", "5m", "$instance", ".*")
	var rules []map[string]string
	walk(dashboard, func(key, text string) {
		if key == "expr" {
			rules = append(rules, map[string]string{"record": fmt.Sprintf("query:%d", len(rules)), "expr": variables.Replace(text)})
		}
	})
	content, err := yaml.Marshal(map[string]any{"groups": []any{map[string]any{"name": "dashboard", "rules": rules}}})
	if err != nil {
		t.Fatal(err)
	}
	path := filepath.Join(t.TempDir(), "queries.yaml")
	if err := os.WriteFile(path, content, 0o600); err != nil {
		t.Fatal(err)
	}
	return path
}

// walk calls fn with each string of a JSON document and its key.
func walk(node any, fn func(key, text string)) {
	switch node := node.(type) {
	case []any:
		for _, child := range node {
			walk(child, fn)
		}
	case map[string]any:
		for key, child := range node {
			if text, ok := child.(string); ok {
				fn(key, text)
			}
			walk(child, fn)
		}
	}
}

// metrics maps the names of exported metrics to their labels.
type metrics map[string]map[string]bool

func (m metrics) names() []string {
	names := make([]string, 0, len(m))
	for name := range m {
		names = append(names, name)
	}
	return names
}

var (
	anyMetric  = regexp.MustCompile(`\b((?:lockstep|process|go)_\w+)\b(\{[^}]*\})?`)
	anyMatcher = regexp.MustCompile(`(\w+)\s*(?:=~|!~|!=|=)`)
	anyBy      = regexp.MustCompile(`\bby \(([^)]*)\)`)
)

// check fails the test unless each metric of an expression is exported with the labels used there. It returns the number
// of metrics.
func (m metrics) check(t *testing.T, where, expr string) int {
	t.Helper()
	known := map[string]bool{"instance": true, "job": true}
	found := anyMetric.FindAllStringSubmatch(expr, -1)
	for _, metric := range found {
		labels, ok := m[metric[1]]
		if !ok {
			t.Errorf("%s: unknown metric %s", where, metric[1])
		}
		for label := range labels {
			known[label] = true
		}
		for _, matcher := range anyMatcher.FindAllStringSubmatch(metric[2], -1) {
			if label := matcher[1]; !labels[label] && label != "instance" && label != "job" {
				t.Errorf("%s: %s has no label %s", where, metric[1], label)
			}
		}
	}
	for _, by := range anyBy.FindAllStringSubmatch(expr, -1) {
		for _, label := range strings.Split(by[1], ",") {
			if label = strings.TrimSpace(label); !known[label] {
				t.Errorf("%s: no metric in %s has the label %s", where, expr, label)
			}
		}
	}
	return len(found)
}

// scrapeAll returns the metrics of a process with all roles that has recorded everything once. The embedded Redis does not
// report the memory of a stream.
func scrapeAll(t *testing.T) metrics {
	t.Helper()
	text := exposition(t)
	all, label := metrics{}, regexp.MustCompile(`(\w+)="`)
	for line := range strings.Lines(text) {
		sample := regexp.MustCompile(`^(\w+)(\{.*\})? `).FindStringSubmatch(line)
		if sample == nil {
			continue // a comment
		}
		if all[sample[1]] == nil {
			all[sample[1]] = map[string]bool{}
		}
		for _, l := range label.FindAllStringSubmatch(sample[2], -1) {
			all[sample[1]][l[1]] = true
		}
	}
	if all["lockstep_stream_lag"] == nil || all["lockstep_volume_trees"] == nil {
		t.Fatalf("some metrics are not exported:\n%s", text)
	}
	return all
}

// exposition returns the metrics of a process, as a scrape would.
func exposition(t *testing.T) string {
	t.Helper()
	ctx := context.Background()
	client, changes := redistest.StartReal(t).Client(), events.DefaultNamespace.Changes()
	for range 2 {
		client.XAdd(ctx, &redis.XAddArgs{Stream: changes, Values: []string{"a", "1"}})
	}
	client.XGroupCreate(ctx, changes, "workers", "0")
	if err := client.XReadGroup(ctx, &redis.XReadGroupArgs{Group: "workers", Consumer: "w1", Streams: []string{changes, ">"}, Block: -1}).Err(); err != nil {
		t.Fatal(err)
	}
	m := telemetry.New()
	m.Export(telemetry.NewStreams(client, string(events.DefaultNamespace), changes))
	m.ExportHosts(telemetry.NewHosts(hosts.Reader{Redis: client, Prefix: string(events.DefaultNamespace)}))
	askHost(t, client, m.HostRequests())
	m.Stream().Delivered(changes, 1, 1)
	m.Stream().Finished(changes, stream.Settled, time.Second)
	m.Stream().Lapsed(changes, "w2")
	m.Locks().WaitBegan()
	m.Locks().WaitEnded(locking.Acquired, time.Second)
	m.Locks().Released(time.Second)
	m.Locks().Lost(time.Second, false)
	m.Locks().InDoubt()
	m.Change("failed", string(events.ClassAuth))
	m.Circuit(state.CircuitOpen)
	m.Worked("sync", time.Second, 1, events.Errorf(events.Contention, events.ClassStale, "a newer one"))
	m.MissingSubmodule(events.ClassAuth)
	m.Settled("synced", time.Second)
	m.Stage("queue", time.Second)
	m.Handlers(func() map[string]bool { return map[string]bool{"changes": true} })
	m.Build("v1.0.0", "revision")
	m.Trim(stream.Trim{Stream: changes, Lost: map[string]int64{"slow": 1}})
	m.Trim(stream.Trim{Dead: true})
	m.Notification("delivered", time.Second)
	t.Cleanup(m.Outbox(func() (int64, error) { return 1, nil }))
	m.Reconciled(schedule.Report{})
	hooks := m.Hooks(func() (int, int64) { return 1, 1 })
	hooks.Request("github", "accepted", time.Second)
	hooks.Drained("accepted")
	t.Cleanup(m.Follower(func() telemetry.FollowerFigures { return telemetry.FollowerFigures{} }))
	reading := m.Reading(func() int { return 1 })
	reading.Request("git", 200, 1)
	reading.Pack(true)
	t.Cleanup(m.Volume(func() (telemetry.VolumeFigures, error) {
		return telemetry.VolumeFigures{Size: 2, Free: 1, FreeInodes: 1, Patrolled: time.Now()}, nil
	}))

	response := httptest.NewRecorder()
	m.Handler().ServeHTTP(response, httptest.NewRequest("GET", "/metrics", nil))
	return response.Body.String()
}

// askHost sends one request to a host, and another one that has to wait.
func askHost(t *testing.T, client redis.UniversalClient, observer hosts.Observer) {
	t.Helper()
	budgets, err := hosts.New(hosts.Config{Redis: client, Prefix: string(events.DefaultNamespace), Process: "w1", Observer: observer})
	if err != nil {
		t.Fatal(err)
	}
	repo, err := events.ParseRepoPath("acme/widgets")
	if err != nil {
		t.Fatal(err)
	}
	request := hosts.Request{Host: "git.example", Repo: repo, Kind: hosts.Push}
	permit, err := budgets.Enter(t.Context(), request)
	if err != nil {
		t.Fatal(err)
	}
	permit.Done(t.Context(), hosts.Answer{Status: http.StatusTooManyRequests})
	if _, err := budgets.Enter(t.Context(), request); err == nil {
		t.Fatal("a limited credential got a permit")
	}
}
