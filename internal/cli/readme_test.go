package cli

import (
	"flag"
	"os"
	"strings"
	"testing"

	"lockstep/internal/config"
)

var update = flag.Bool("update", false, "write the README's table of settings")

func TestREADMEListsTheSettings(t *testing.T) {
	const path, begin, end = "../../README.md", "-update -->\n", "<!-- end of settings -->"
	text, err := os.ReadFile(path)
	if err != nil {
		t.Fatal(err)
	}
	head, rest, ok := strings.Cut(string(text), begin)
	_, foot, found := strings.Cut(rest, end)
	if !ok || !found {
		t.Fatal("the README has no place for the settings")
	}
	want := head + begin + config.Table() + end + foot
	if *update {
		if err := os.WriteFile(path, []byte(want), 0o644); err != nil {
			t.Fatal(err)
		}
		return
	}
	if string(text) != want {
		t.Error("the README's table of settings is not today's; run go test ./cmd/lockstep -run README -update")
	}
}
