package backup

import (
	"os"
	"reflect"
	"regexp"
	"strings"
	"testing"

	"lockstep/events"
)

const prefix = "lockstep:{0}:"

// kinds returns the kind that each key belongs to, and fails for keys of none.
func kinds(t *testing.T, keys []string) map[string]Key {
	t.Helper()
	found := map[string]Key{}
	for _, key := range keys {
		kind, ok := KeyOf(strings.TrimPrefix(key, prefix))
		if !ok {
			t.Errorf("the key %s is neither exported nor left out: add it to backup.Keys", key)
		}
		found[kind.Pattern] = kind
	}
	return found
}

// TestEveryKeyIsExportedOrLeftOut covers each method of events.Namespace, and each key in the table of docs/architecture.md.
func TestEveryKeyIsExportedOrLeftOut(t *testing.T) {
	t.Parallel()
	repo, err := events.ParseRepoPath("acme/widgets")
	if err != nil {
		t.Fatal(err)
	}
	var keys []string
	namespace := reflect.ValueOf(events.DefaultNamespace)
	for i := range namespace.NumMethod() {
		var args []reflect.Value
		if namespace.Method(i).Type().NumIn() == 1 {
			args = append(args, reflect.ValueOf(repo))
		}
		if key := namespace.Method(i).Call(args)[0].String(); key != prefix+"watch:" { // a prefix of the next ones
			keys = append(keys, key)
		}
	}
	listed := architecture(t)
	found := kinds(t, append(keys, listed...))
	for _, kind := range Keys {
		if _, ok := found[kind.Pattern]; !ok {
			t.Errorf("docs/architecture.md does not list the key %s", kind.Pattern)
		}
		if kind.Exported == "" && kind.Reason == "" {
			t.Errorf("%s is left out without a reason", kind.Pattern)
		}
	}
}

// architecture returns the keys in the table of docs/architecture.md, and compares its column with what is exported.
func architecture(t *testing.T) (keys []string) {
	t.Helper()
	text, err := os.ReadFile("../../docs/architecture.md")
	if err != nil {
		t.Fatal(err)
	}
	_, table, _ := strings.Cut(string(text), "## Redis keys")
	table, _, _ = strings.Cut(table, "\n## ")
	for line := range strings.Lines(table) {
		cells := strings.Split(strings.Trim(strings.TrimSpace(line), "|"), "|")
		if !strings.HasPrefix(line, "| `") || len(cells) < 4 {
			continue
		}
		var column []string
		last := ""
		for _, quoted := range regexp.MustCompile("`([^`]*)`").FindAllStringSubmatch(cells[0], -1) {
			key := regexp.MustCompile(`\{[^}]*\}|…`).ReplaceAllString(quoted[1], "x")
			if strings.HasPrefix(key, ":") {
				key = last + key
			} else {
				last = key
			}
			keys = append(keys, key)
			kind, _ := KeyOf(key)
			if says := what(kind); len(column) == 0 || column[len(column)-1] != says {
				column = append(column, says)
			}
		}
		if want := strings.Join(column, "; "); strings.TrimSpace(cells[3]) != want {
			t.Errorf("docs/architecture.md has %q in the column export of %s, want %q", strings.TrimSpace(cells[3]), cells[0], want)
		}
	}
	if len(keys) < len(Keys) {
		t.Errorf("docs/architecture.md lists %d keys, want %d or more", len(keys), len(Keys))
	}
	return keys
}

// what is the text of the column export.
func what(kind Key) string {
	switch {
	case kind.Exported == "":
		return "no: " + kind.Reason
	case kind.Reason == "":
		return "yes"
	}
	return "yes; " + kind.Reason
}
