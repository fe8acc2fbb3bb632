package state

import (
	"os"
	"regexp"
	"strings"
	"testing"
)

// TestEveryFieldIsExportedOrLeftOut compares fieldKinds with the fields in the package documentation, which lists all.
func TestEveryFieldIsExportedOrLeftOut(t *testing.T) {
	t.Parallel()
	text, err := os.ReadFile("state.go")
	if err != nil {
		t.Fatal(err)
	}
	about, _, _ := strings.Cut(string(text), "package state\n")
	listed := map[string]bool{}
	for _, field := range regexp.MustCompile(`(?m)^//\t([a-z_]+)`).FindAllStringSubmatch(about, -1) {
		listed[field[1]] = true
		if _, ok := fieldKinds[field[1]]; !ok {
			t.Errorf("the field %s is neither exported nor left out: add it to fieldKinds", field[1])
		}
	}
	for kind := range fieldKinds {
		if !listed[kind] {
			t.Errorf("the package documentation does not list the field %s", kind)
		}
	}
}
