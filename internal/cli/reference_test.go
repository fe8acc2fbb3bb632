package cli

import (
	"cmp"
	"fmt"
	"os"
	"strings"
	"testing"

	"github.com/spf13/cobra"
	"github.com/spf13/pflag"

	"lockstep/internal/config"
	"lockstep/internal/proctest"
)

// TestReferenceIsUpToDate compares docs/cli.md with the commands.
func TestReferenceIsUpToDate(t *testing.T) {
	t.Parallel()
	const path = "../../docs/cli.md"
	want := reference()
	if *update {
		if err := os.WriteFile(path, []byte(want), 0o644); err != nil {
			t.Fatal(err)
		}
		return
	}
	if text := proctest.Must(os.ReadFile(path))(t); string(text) != want {
		t.Error("docs/cli.md is out of date; run go test ./internal/cli -run Reference -update")
	}
}

// reference returns docs/cli.md.
func reference() string {
	var b strings.Builder
	b.WriteString("# Command line\n\n" +
		"Generated from the help texts by `go test ./internal/cli -run Reference -update`.\n\n" +
		"- Commands that use Redis accept `--redis`, `--redis-password-file`, `--prefix`, `--log-level` and `--log-format`; all accept `--config`.\n" +
		"  These and the flags listed as *settings* are described in [configuration.md](configuration.md). The examples assume `LOCKSTEP_REDIS`.\n" +
		"- Commands that print data accept `-o table`, `json` or `yaml`, and `--json`. Data goes to standard output, logs and errors to standard\n" +
		"  error. With `-o json` each document is one line.\n" +
		"- Lists also accept `-o wide`, with all columns and full times, and `-o name` or `-q`, with names only. An empty table is replaced by a line on\n" +
		"  standard error; JSON is then `[]`.\n" +
		"- `ls` is also `list`; `rm` and `drop` are also `remove` and `delete`. Sizes are numbers of bytes or have a unit: `8GiB`.\n" +
		"- `-o json` of `sync` and `publish --wait` has the fields of the result's data on one level. `-o event` has the result as in the stream and in\n" +
		"  the HTTP API, a CloudEvent.\n" +
		"- `source <(lockstep completion bash)` completes commands and flags.\n\n" +
		"| exit code | meaning |\n|---|---|\n")
	for _, c := range exitCodes {
		fmt.Fprintf(&b, "| %d | %s |\n", c.code, c.what)
	}
	everyCommand(func(path string, cmd *cobra.Command) {
		if path == "lockstep" {
			return
		}
		about := cmp.Or(cmd.Long, cmd.Short+".")
		fmt.Fprintf(&b, "\n## %s\n\n%s\n", path, about)
		if cmd.HasSubCommands() {
			return
		}
		example := cmp.Or(cmd.Example, "  "+cmd.UseLine()+"\n")
		fmt.Fprintf(&b, "\n%s\n", indented(strings.ReplaceAll(example, " --redis redis://127.0.0.1:6379", "")))
		describeFlags(&b, cmd)
	})
	return b.String()
}

// describeFlags lists the flags of a command, and the names of those that are settings. It omits the common flags described
// at the top of the document.
func describeFlags(b *strings.Builder, cmd *cobra.Command) {
	known := pflag.NewFlagSet("", pflag.ContinueOnError)
	config.AddFlags(known, allSettings|config.Reading|config.Keeping)
	common := pflag.NewFlagSet("", pflag.ContinueOnError)
	config.AddFlags(common, config.Common)
	var own, named []string
	cmd.LocalNonPersistentFlags().VisitAll(func(f *pflag.Flag) {
		if s := known.Lookup(f.Name); s != nil && s.Usage == f.Usage {
			if !f.Hidden && common.Lookup(f.Name) == nil {
				named = append(named, "`--"+f.Name+"`")
			}
			return
		}
		if f.Name == "help" || f.Name == "json" || f.Name == "quiet" || f.Name == "output" && f.DefValue == "table" || f.Hidden {
			return
		}
		value, usage := pflag.UnquoteUsage(f)
		flag := "--" + f.Name
		if f.Shorthand != "" {
			flag = "-" + f.Shorthand + ", " + flag
		}
		if def := defaultOf(f); def != "" {
			usage += " (default " + def + ")"
		}
		own = append(own, fmt.Sprintf("- `%s`: %s", strings.TrimSpace(flag+" "+value), usage))
	})
	if len(own) > 0 {
		fmt.Fprintf(b, "\n%s\n", strings.Join(own, "\n"))
	}
	switch {
	case len(named) > 20:
		fmt.Fprintf(b, "\nSettings: `%s --help` lists them.\n", cmd.CommandPath())
	case len(named) > 0:
		fmt.Fprintf(b, "\nSettings: %s.\n", strings.Join(named, ", "))
	}
}

// defaultOf returns the default of a flag, or "" if it is a zero value.
func defaultOf(f *pflag.Flag) string {
	switch f.DefValue {
	case "", "false", "[]", "0":
		return ""
	}
	return f.DefValue
}

func indented(example string) string {
	var b strings.Builder
	for line := range strings.Lines(example) {
		b.WriteString("  " + line)
	}
	return b.String()
}
