// Package deploy contains the files to deploy and monitor Lockstep, and tests that they match the program.
package deploy

import (
	"context"
	"encoding/json"
	"fmt"
	"maps"
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
	"lockstep/internal/follow"
	"lockstep/internal/git/wire"
	"lockstep/internal/hosts"
	"lockstep/internal/redistest"
	"lockstep/internal/schedule"
	"lockstep/internal/state"
	"lockstep/internal/telemetry"
	"lockstep/internal/testenv"
	"lockstep/internal/volume"
	"lockstep/locking"
)

const (
	rulesFile     = "prometheus/rules.yaml"
	rulesTestFile = "prometheus/rules_test.yaml"
	dashboardFile = "grafana/lockstep.json"
	operations    = "../docs/operations.md"
)

// tool returns the path of a program, or skips the test if it is not installed. With LOCKSTEP_TEST_NAME=real it fails the test.
func tool(t *testing.T, name string) string {
	t.Helper()
	path, err := exec.LookPath(name)
	switch {
	case err != nil && os.Getenv("LOCKSTEP_TEST_"+strings.ToUpper(name)) == "real":
		t.Fatalf("%s is not in PATH", name)
	case err != nil:
		t.Skipf("skipped: %s is not in PATH", name)
	}
	return path
}

// rule is an alerting rule.
type rule struct {
	Alert       string            `yaml:"alert"`
	Expr        string            `yaml:"expr"`
	Annotations map[string]string `yaml:"annotations"`
}

func readRules(t *testing.T) []rule {
	t.Helper()
	var file struct {
		Groups []struct {
			Rules []rule `yaml:"rules"`
		} `yaml:"groups"`
	}
	testenv.Must(0, yaml.Unmarshal(read(t, rulesFile), &file))(t)
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
	return testenv.Must(os.ReadFile(path))(t)
}

// TestQueriedMetricsExist records every metric and compares the exported ones with those in the rules, the dashboard and the
// runbook.
func TestQueriedMetricsExist(t *testing.T) {
	exported := scrapeAll(t)
	for _, r := range readRules(t) {
		exported.check(t, r.Alert, r.Expr)
	}
	var dashboard any
	testenv.Must(0, json.Unmarshal(read(t, dashboardFile), &dashboard))(t)
	found := 0
	walk(dashboard, func(key, text string) {
		if key == "expr" || key == "query" || key == "definition" {
			found += exported.check(t, dashboardFile, text)
		}
	})
	if found < 40 {
		t.Errorf("only %d metrics found in %s", found, dashboardFile)
	}
	for _, found := range regexp.MustCompile("`(lockstep_[a-z_]+)[`{]").FindAllStringSubmatch(string(read(t, operations)), -1) {
		exported.check(t, operations, found[1])
	}
}

// TestManualListsTheMetrics compares the rows of docs/metrics.md with the exported metrics, their types and their labels.
func TestManualListsTheMetrics(t *testing.T) {
	word := regexp.MustCompile(`\w+`)
	row := regexp.MustCompile("(?m)^\\| `(lockstep_\\w+)` \\| (\\w+) \\|([^|]*)\\|")
	listed, exported := map[string]string{}, map[string]string{}
	for _, cells := range row.FindAllStringSubmatch(string(read(t, "../docs/metrics.md")), -1) {
		labels := word.FindAllString(cells[3], -1)
		slices.Sort(labels)
		listed[cells[1]] = cells[2] + " " + strings.Join(labels, " ")
	}
	text := exposition(t)
	samples := samplesOf(text)
	for _, found := range regexp.MustCompile(`(?m)^# TYPE (lockstep_\w+) (\w+)$`).FindAllStringSubmatch(text, -1) {
		sample := found[1]
		if found[2] == "histogram" {
			sample += "_count"
		}
		exported[found[1]] = found[2] + " " + strings.Join(slices.Sorted(maps.Keys(samples[sample])), " ")
	}
	for name, want := range exported {
		if listed[name] != want {
			t.Errorf("docs/metrics.md lists %s as %q, want %q", name, listed[name], want)
		}
		delete(listed, name)
	}
	for name := range listed {
		t.Errorf("docs/metrics.md lists %s, which is not exported", name)
	}
}

// TestEachAlertHasARunbook checks that the link of each alert leads to its section.
func TestEachAlertHasARunbook(t *testing.T) {
	manual := string(read(t, operations))
	for _, r := range readRules(t) {
		if want := "docs/operations.md#" + strings.ToLower(r.Alert); r.Annotations["runbook"] != want || !strings.Contains(manual, "\n### "+r.Alert+"\n") {
			t.Errorf("%s: runbook %q, want %q, and the section", r.Alert, r.Annotations["runbook"], want)
		}
	}
}

func TestPromtool(t *testing.T) {
	promtool := tool(t, "promtool")
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
	testenv.Must(0, json.Unmarshal(read(t, dashboardFile), &dashboard))(t)
	variables := strings.NewReplacer("$__rate_interval", "5m", "$instance", ".*")
	var rules []map[string]string
	walk(dashboard, func(key, text string) {
		if key == "expr" {
			rules = append(rules, map[string]string{"record": fmt.Sprintf("query:%d", len(rules)), "expr": variables.Replace(text)})
		}
	})
	content := testenv.Must(yaml.Marshal(map[string]any{"groups": []any{map[string]any{"name": "dashboard", "rules": rules}}}))(t)
	path := filepath.Join(t.TempDir(), "queries.yaml")
	testenv.Must(0, os.WriteFile(path, content, 0o600))(t)
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

var (
	anyMetric  = regexp.MustCompile(`\b((?:lockstep|process|go)_\w+)\b(\{[^}]*\})?`)
	anyMatcher = regexp.MustCompile(`(\w+)\s*(?:=~|!~|!=|=)`)
)

// check fails the test unless each metric of an expression is exported with the labels that select it. It returns the number of metrics.
func (m metrics) check(t *testing.T, where, expr string) int {
	t.Helper()
	found := anyMetric.FindAllStringSubmatch(expr, -1)
	for _, metric := range found {
		labels, ok := m[metric[1]]
		if !ok {
			t.Errorf("%s: unknown metric %s", where, metric[1])
		}
		for _, matcher := range anyMatcher.FindAllStringSubmatch(metric[2], -1) {
			if label := matcher[1]; !labels[label] && label != "instance" && label != "job" {
				t.Errorf("%s: %s has no label %s", where, metric[1], label)
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
	all := samplesOf(text)
	if all["lockstep_stream_lag"] == nil || all["lockstep_volume_trees"] == nil {
		t.Fatalf("some metrics are not exported:\n%s", text)
	}
	return all
}

// samplesOf returns the samples of an exposition.
func samplesOf(text string) metrics {
	all, label := metrics{}, regexp.MustCompile(`(\w+)="`)
	for _, sample := range regexp.MustCompile(`(?m)^(\w+)(\{.*\})? `).FindAllStringSubmatch(text, -1) {
		if all[sample[1]] == nil {
			all[sample[1]] = map[string]bool{}
		}
		for _, l := range label.FindAllStringSubmatch(sample[2], -1) {
			all[sample[1]][l[1]] = true
		}
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
	one := map[string]int{"git.example": 1}
	t.Cleanup(m.Limiter(func() (inFlight, waiting map[string]int) { return one, one }))
	m.Delivered(changes, 1)
	m.Finished(changes, stream.Settled, time.Second)
	m.Lapsed(changes)
	m.Locks().WaitBegan()
	m.Locks().WaitEnded(locking.Acquired, time.Second)
	m.Locks().Released(time.Second)
	m.Locks().Lost(time.Second, false)
	m.Locks().InDoubt()
	m.Change("failed", string(events.ClassAuth))
	m.Circuit(state.CircuitOpen)
	m.Worked("sync", time.Second, 1, events.Errorf(events.Contention, events.ClassBusy, "a newer one"))
	m.Fenced()
	m.Missing(events.ClassAuth)
	m.Settled("synced", time.Second)
	m.Stage("queue", time.Second)
	m.Handlers(func() map[string]bool { return map[string]bool{"changes": true} })
	m.Build("v1.0.0", "revision")
	m.Trim(stream.Trim{Stream: changes, Lost: map[string]int64{"slow": 1}})
	m.Trim(stream.Trim{Dead: true})
	m.Notification("delivered", time.Second)
	t.Cleanup(m.Outbox(func() (int64, error) { return 1, nil }))
	m.Reconciled(schedule.Report{})
	hooks := m.Hooks(func() int64 { return 1 })
	hooks.Request("github", "accepted", time.Second)
	hooks.Drained("accepted")
	t.Cleanup(m.Follower(func() follow.Status { return follow.Status{} }))
	reading := m.Reading(func() int { return 1 })
	reading.Request("git", 200)
	reading.Sent("git", 1)
	reading.Pack(true)
	t.Cleanup(m.Volume(func() (telemetry.VolumeFigures, error) {
		return telemetry.VolumeFigures{
			Space: volume.Space{Size: 2, Free: 1, FreeInodes: 1}, Total: volume.Total{Collected: time.Now()},
		}, nil
	}))

	response := httptest.NewRecorder()
	m.Handler().ServeHTTP(response, httptest.NewRequest("GET", "/metrics", nil))
	return response.Body.String()
}

// askHost sends a request that the host refuses, after which another one has to wait.
func askHost(t *testing.T, client redis.UniversalClient, observe func(string, hosts.Outcome, hosts.Reason)) {
	t.Helper()
	limiter, err := hosts.New(hosts.Config{Redis: client, Prefix: string(events.DefaultNamespace), Observe: observe})
	if err != nil {
		t.Fatal(err)
	}
	done := testenv.Must(limiter.Job("acme/widgets", false).With("").Acquire(t.Context(), "git.example"))(t)
	done(wire.Answer{Status: http.StatusTooManyRequests, Header: http.Header{"Retry-After": {"60"}}})
	if err := limiter.Job("acme/gadgets", false).Enter(t.Context(), hosts.Target{Host: "git.example"}); err == nil {
		t.Fatal("a request was let in although the host has refused one")
	}
}
