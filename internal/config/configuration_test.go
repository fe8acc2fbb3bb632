package config_test

import (
	"flag"
	"os"
	"strings"
	"testing"

	"lockstep/internal/config"
)

var update = flag.Bool("update", false, "write the tables of docs/configuration.md")

func TestConfigurationListsEverySetting(t *testing.T) {
	const path = "../../docs/configuration.md"
	text, err := os.ReadFile(path)
	if err != nil {
		t.Fatal(err)
	}
	basic, advanced, limits := config.Tables()
	want := string(text)
	for name, table := range map[string]string{"basic": basic, "advanced": advanced, "limit": limits} {
		want = replaceTable(t, want, name, table)
	}
	if *update {
		if err := os.WriteFile(path, []byte(want), 0o644); err != nil {
			t.Fatal(err)
		}
		return
	}
	if string(text) != want {
		t.Error("docs/configuration.md is out of date; run go test ./internal/config -run Configuration -update")
	}
}

// replaceTable replaces the named table in a document.
func replaceTable(t *testing.T, text, name, table string) string {
	t.Helper()
	head, rest, begins := strings.Cut(text, "<!-- "+name+" settings -->\n")
	_, foot, ends := strings.Cut(rest, "<!-- end -->")
	if !begins || !ends {
		t.Fatalf("docs/configuration.md has no table of %s settings", name)
	}
	return head + "<!-- " + name + " settings -->\n" + table + "<!-- end -->" + foot
}
