package config_test

import (
	"maps"
	"slices"
	"strings"
	"testing"

	"lockstep/internal/config"
)

func TestCommandsOfApps(t *testing.T) {
	for text, want := range map[string]map[string]string{
		"":                              {},
		"docs=/bin/reindex":             {"docs": "/bin/reindex"},
		" docs = , ":                    nil,
		"docs=/bin/reindex  --all=x":    {"docs": "/bin/reindex|--all=x"},
		"docs=/bin/a, site=b --c":       {"docs": "/bin/a", "site": "b|--c"},
		"/bin/reindex --all=x":          {"": "/bin/reindex|--all=x"},
		"reindex --all=x":               {"": "reindex|--all=x"},
		"docs=":                         nil,
		"docs=a,docs=b":                 nil,
		"reindex,other":                 nil,
		"docs=/bin/sh /opt/hook.sh a=b": {"docs": "/bin/sh|/opt/hook.sh|a=b"},
	} {
		c, err := config.Load(nil, "", []string{"LOCKSTEP_EXEC=" + text})
		if (err == nil) != (want != nil) || err != nil && !strings.HasPrefix(err.Error(), "exec ") {
			t.Errorf("%q: error %v", text, err)
		}
		got := map[string]string{}
		for app, words := range c.Commands() {
			got[app] = strings.Join(words, "|")
		}
		if err == nil && !maps.Equal(got, want) {
			t.Errorf("%q: %v, want %v; apps %q", text, got, want, slices.Collect(maps.Keys(got)))
		}
	}
}
