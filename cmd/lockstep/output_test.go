package main

import (
	"bytes"
	"context"
	"encoding/json"
	"io"
	"reflect"
	"strings"
	"testing"
	"time"

	"go.yaml.in/yaml/v3"
	"pgregory.net/rapid"

	"lockstep/internal/redistest"
)

func TestYAMLSaysWhatJSONSays(t *testing.T) {
	var value func(depth int) *rapid.Generator[any]
	value = func(depth int) *rapid.Generator[any] {
		kinds := []*rapid.Generator[any]{
			rapid.String().AsAny(), rapid.Int64().AsAny(), rapid.Float64().AsAny(), rapid.Bool().AsAny(), rapid.Just[any](nil),
			rapid.SampledFrom([]string{"", "yes", "null", "0x10", "1e3", "~", "- a", "a: b", "#", "\x7f", "\u0085", " x ", "\ta\nb", "2026-11-22", "<<"}).AsAny(),
		}
		if depth > 0 {
			inner := rapid.Deferred(func() *rapid.Generator[any] { return value(depth - 1) })
			kinds = append(kinds, rapid.SliceOfN(inner, 0, 4).AsAny(), rapid.MapOfN(rapid.String(), inner, 0, 4).AsAny())
		}
		return rapid.OneOf(kinds...)
	}
	rapid.Check(t, func(t *rapid.T) {
		var asJSON, asYAML bytes.Buffer
		data := value(3).Draw(t, "data")
		if err := (&output{formJSON}).document(&asJSON, data); err != nil {
			t.Fatal(err)
		}
		if err := (&output{formYAML}).document(&asYAML, data); err != nil {
			t.Fatal(err)
		}
		var read any
		if err := yaml.Unmarshal(asYAML.Bytes(), &read); err != nil {
			t.Fatalf("%v in\n%s", err, asYAML.String())
		}
		again, err := json.Marshal(read)
		if err != nil {
			t.Fatal(err)
		}
		var one, two any
		if json.Unmarshal(asJSON.Bytes(), &one) != nil || json.Unmarshal(again, &two) != nil {
			t.Fatal("one of them is no JSON")
		}
		if !reflect.DeepEqual(one, two) {
			t.Fatalf("JSON says %v, YAML %v:\n%s", one, two, asYAML.String())
		}
	})
}

func TestYAMLKeepsTheOrderOfKeysAndTheDigitsOfNumbers(t *testing.T) {
	var b bytes.Buffer
	data := json.RawMessage(`{"z":1795223511284000999,"a":[],"m":{"y":{},"b":[1.50,"1.50"]}}`)
	if err := (&output{formYAML}).document(&b, data); err != nil {
		t.Fatal(err)
	}
	const want = "z: 1795223511284000999\na: []\nm:\n  y: {}\n  b:\n    - 1.50\n    - \"1.50\"\n"
	if b.String() != want {
		t.Errorf("%q, want %q", b.String(), want)
	}
}

func TestColumnsAreAlignedWithAndWithoutColours(t *testing.T) {
	text := "NAME\tVERDICT\tTEXT\nα\t" + paint(markGood, "ok") + "\tfine\nlonger\t" + paint(markBad, "fail") + "\tnot fine\nno cells here\n" + "a\tb\n"
	const plain = "NAME    VERDICT  TEXT\nα       ok       fine\nlonger  fail     not fine\nno cells here\na  b\n"
	if got := align(text, false); got != plain {
		t.Errorf("%q, want %q", got, plain)
	}
	coloured := align(text, true)
	if !strings.Contains(coloured, "\x1b[32mok\x1b[0m       fine") || !strings.Contains(coloured, "\x1b[31mfail\x1b[0m     not fine") {
		t.Errorf("%q", coloured)
	}
	if got := align("\t\tempty\nfull\t\t\n", false); got != "        empty\nfull\n" {
		t.Errorf("%q", got)
	}
}

func TestNobodyElseCommandsTheTerminal(t *testing.T) {
	const hostile = "\x1b[2J\x1b]0;owned\a\u009b31mred\r\b\x7f"
	for _, colours := range []bool{false, true} {
		if got := align("worker\t"+hostile+"\n", colours); got != "worker  [2J]0;owned31mred\n" {
			t.Errorf("%q", got)
		}
	}
	if got := shown("synced", hostile); strings.ContainsAny(got, "\x1b\a\r\b\x7f\u009b") {
		t.Errorf("%q", got)
	}
}

func TestHelpIsAsWideAsTheTerminal(t *testing.T) {
	help := func(w io.Writer) {
		run(t.Context(), []string{"serve", "--help"}, streams{stdout: w, stderr: io.Discard})
	}
	terminal := openPTY(t)
	help(terminal.file)
	_ = terminal.file.Close()
	<-terminal.done
	var piped bytes.Buffer
	help(&piped)
	seen := strings.ReplaceAll(terminal.seen.String(), "\r\n", "\n")
	_, flags, _ := strings.Cut(seen, "\nFlags:\n")
	if strings.Join(strings.Fields(seen), " ") != strings.Join(strings.Fields(piped.String()), " ") || !strings.Contains(flags, "--root") {
		t.Errorf("not the same help:\n%s", seen)
	}
	for line := range strings.Lines(flags) {
		if len([]rune(line)) > 101 { // 100, and its end
			t.Errorf("%q is wider than the terminal", line)
		}
	}
}

func TestColoursAreForTerminalsAlone(t *testing.T) {
	root := t.TempDir()
	doctor := func(stdout io.Writer, environ ...string) {
		t.Helper()
		if code := run(context.Background(), []string{"doctor", "--root", root}, streams{stdout, io.Discard, environ}); code != exitDone {
			t.Fatalf("exit code %d", code)
		}
	}
	for _, tc := range []struct {
		environ  []string
		coloured bool
	}{{nil, true}, {[]string{"NO_COLOR=1"}, false}, {[]string{"NO_COLOR="}, true}, {[]string{"TERM=dumb"}, false}} {
		terminal := openPTY(t)
		doctor(terminal.file, tc.environ...)
		eventually(t, func() bool { return strings.Contains(terminal.seen.String(), "open files") }, "the doctor's last check")
		if got := strings.Contains(terminal.seen.String(), "\x1b[32mok\x1b[0m"); got != tc.coloured {
			t.Errorf("%q: coloured %v, want %v:\n%q", tc.environ, got, tc.coloured, terminal.seen.String())
		}
	}
	var b bytes.Buffer
	if doctor(&b); strings.Contains(b.String(), "\x1b") {
		t.Errorf("colours in a pipe: %q", b.String())
	}
}

func TestStatusIsShownAgainAndAgain(t *testing.T) {
	if testing.Short() {
		t.Skip("takes long, and is no different with another Redis")
	}
	server := redistest.Start(t)
	terminal := openPTY(t)
	ctx, interrupt := context.WithCancel(context.Background())
	defer interrupt()
	ended := make(chan int, 1)
	args := []string{"status", "--watch", "--redis", server.URL()}
	go func() { ended <- run(ctx, args, streams{terminal.file, io.Discard, nil}) }()
	eventually(t, func() bool { return strings.Count(terminal.seen.String(), "\x1b[H") >= 2 }, "a second screen")
	if seen := terminal.seen.String(); !strings.Contains(seen, "no worker takes changes") || !strings.HasPrefix(seen, "\x1b[2J") {
		t.Errorf("%q", seen)
	}
	if server.Real { // away for a while: the screen says so, and comes back
		server.Stop()
		eventually(t, func() bool { return strings.Contains(terminal.seen.String(), "unavailable") }, "a screen without Redis")
		before := strings.Count(terminal.seen.String(), "no worker takes changes")
		server.Restart()
		eventually(t, func() bool { return strings.Count(terminal.seen.String(), "no worker takes changes") > before }, "a screen with Redis")
	}
	interrupt()
	if code := <-ended; code != exitDone {
		t.Errorf("exit code %d", code)
	}
	eventually(t, func() bool { return strings.HasSuffix(terminal.seen.String(), "\x1b[?7h") }, "lines that wrap again")

	follower := start(t, "status", "--watch", "-o", "json", "--redis", server.URL())
	follower.awaitLog("}\n{")
	if code := follower.terminate(); code != exitDone {
		t.Errorf("exit code %d", code)
	}
	if line, _, _ := strings.Cut(follower.log.String(), "\n"); decodeJSON(t, line)["health"] != "attention" {
		t.Errorf("%s", line)
	}
}

func TestDurationsAreSpelled(t *testing.T) {
	for d, want := range map[time.Duration]string{
		-1: "0s", 0: "0s", 1500 * time.Microsecond: "2ms", 1234 * time.Millisecond: "1.2s", 75 * time.Second: "1m15s",
		3*time.Hour + 4*time.Minute + 5*time.Second: "3h4m", 50 * time.Hour: "2d2h",
	} {
		if got := spell(d); got != want {
			t.Errorf("%v is spelled %q, want %q", d, got, want)
		}
	}
}
