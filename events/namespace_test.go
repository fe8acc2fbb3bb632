package events_test

import (
	"strings"
	"testing"

	"lockstep/events"
)

func TestNamespaceNamesTheKeys(t *testing.T) {
	p, n := repo(t, "Acme/Widgets"), events.DefaultNamespace
	for got, want := range map[string]string{
		n.Changes():         "lockstep:{0}:changes",
		n.Results():         "lockstep:{0}:results",
		n.Dead():            "lockstep:{0}:dead",
		n.Repo(p):           "lockstep:{0}:repo:acme/widgets",
		n.Locks() + p.Key(): "lockstep:{0}:lock:acme/widgets",
		n.Volume():          "lockstep:{0}:volume",
		n.GC():              "lockstep:{0}:gc",
		n.Working():         "lockstep:{0}:working",
	} {
		if got != want {
			t.Errorf("got %s, want %s", got, want)
		}
	}
}

func TestParseNamespaceRequiresOneHashTag(t *testing.T) {
	for name, tc := range map[string]struct {
		in string
		ok bool
	}{
		"the default":          {"lockstep:{0}:", true},
		"another shard":        {"lockstep:{17}:", true},
		"a tag alone":          {"{x}", true},
		"the longest":          {strings.Repeat("a", 125) + "{0}", true},
		"nothing":              {"", false},
		"no tag":               {"lockstep:", false},
		"an empty tag":         {"lockstep:{}:", false},
		"two tags":             {"a{0}b{1}", false},
		"a nested tag":         {"a{{0}}", false},
		"a tag left open":      {"a{0", false},
		"a tag closed first":   {"a}0{", false},
		"a space":              {"a {0}", false},
		"a newline at the end": {"a{0}\n", false},
		"a glob":               {"a*{0}", false},
		"too long":             {strings.Repeat("a", 126) + "{0}", false},
	} {
		t.Run(name, func(t *testing.T) {
			n, err := events.ParseNamespace(tc.in)
			if (err == nil) != tc.ok || tc.ok && string(n) != tc.in || !tc.ok && n != "" {
				t.Errorf("got %q, %v", n, err)
			}
		})
	}
	if _, err := events.ParseNamespace(strings.Repeat("\x01", 1<<20)); len(err.Error()) > 1000 {
		t.Errorf("the error has %d bytes", len(err.Error()))
	}
}
