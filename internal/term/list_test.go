package term

import (
	"bytes"
	"strings"
	"testing"
	"time"
)

type animal struct {
	name string
	born time.Time
	legs string
}

var now = time.Date(2026, 11, 24, 12, 0, 0, 0, time.UTC)

var animals = List[animal]{
	Columns: []Column[animal]{
		{Head: "NAME", Text: func(a animal) string { return a.name }},
		{Head: "BORN", Time: func(a animal) time.Time { return a.born }},
		{Head: "LEGS", Text: func(a animal) string { return a.legs }, Wide: true},
	},
	Name: func(a animal) string { return a.name }, Empty: "there are no animals; add one",
}

func TestListForms(t *testing.T) {
	rows := []animal{{"cat", now.Add(-3 * time.Minute), "4"}, {"cat", time.Time{}, ""}, {"dog\x1b[2J", now, "4"}}
	for _, wide := range []bool{false, true} {
		var b bytes.Buffer
		animals.Table(&b, rows, wide, now)
		want := "NAME      BORN\ncat       3m ago\ncat       never\ndog[2J    0s ago\n"
		if wide {
			want = "NAME    BORN                  LEGS\ncat     2026-11-24T11:57:00Z  4\ncat     never                 -\ndog[2J  2026-11-24T12:00:00Z  4\n"
		}
		if got := Align(b.String()); strings.Join(strings.Fields(got), " ") != strings.Join(strings.Fields(want), " ") {
			t.Errorf("wide %v:\n%s\nwant\n%s", wide, got, want)
		}
	}
	for form, want := range map[string]string{formName: "cat\ndog [2J\n", formJSON: "[{},{},{}]\n", FormYAML: "- {}\n- {}\n- {}\n"} {
		var stdout, stderr bytes.Buffer
		if err := ShowList(Streams{Stdout: &stdout, Stderr: &stderr}, &Output{Form: form}, rows, animals); err != nil || stdout.String() != want || stderr.Len() > 0 {
			t.Errorf("%s: %q, %q, %v, want %q", form, stdout.String(), stderr.String(), err, want)
		}
	}
}

func TestEmptyListSaysWhatToDoOnStandardError(t *testing.T) {
	for form, want := range map[string][2]string{
		"": {"", "lockstep: there are no animals; add one\n"}, formWide: {"", "lockstep: there are no animals; add one\n"}, formName: {"", ""}, formJSON: {"[]\n", ""},
	} {
		var stdout, stderr bytes.Buffer
		err := ShowList(Streams{Stdout: &stdout, Stderr: &stderr}, &Output{Form: form}, []animal{}, animals)
		if err != nil || stdout.String() != want[0] || stderr.String() != want[1] {
			t.Errorf("%q: %q, %q, %v, want %q", form, stdout.String(), stderr.String(), err, want)
		}
	}
}

func TestRelativeTimes(t *testing.T) {
	for d, want := range map[time.Duration]string{
		0: "0s ago", 119 * time.Second: "119s ago", 2 * time.Minute: "2m ago", 119 * time.Minute: "119m ago", 47 * time.Hour: "47h ago", 50 * time.Hour: "2d ago", 800 * 24 * time.Hour: "800d ago",
		-90 * time.Second: "in 90s", -3 * time.Hour: "in 3h",
	} {
		if got := Relative(now.Add(-d), now); got != want {
			t.Errorf("%v: %q, want %q", d, got, want)
		}
	}
	if got := Absolute(now.In(time.FixedZone("x", 3600))); got != "2026-11-24T12:00:00Z" {
		t.Errorf("%q", got)
	}
}
