package term

import (
	"bytes"
	"encoding/json"
	"fmt"
	"io"
	"slices"
	"strings"
	"time"
	"unicode"

	"github.com/spf13/cobra"
	"go.yaml.in/yaml/v3"
)

// Output forms.
const (
	formTable = "table"
	formJSON  = "json"
	FormYAML  = "yaml"
	formWide  = "wide"  // a table with all columns and full times
	formName  = "name"  // names only
	FormEvent = "event" // a result with its CloudEvents envelope, as JSON
)

// Forms lists the output forms that each command has.
var Forms = []string{formTable, formJSON, FormYAML}

// Output is the form selected by --output. The zero value is a table.
type Output struct {
	Form string
	more []string // forms beyond Forms
}

// Forms returns the forms of this output.
func (o *Output) Forms() []string { return slices.Concat(Forms, o.more) }

// AddList adds the flags of a list: those of Add, with the forms wide and name, and -q.
func (o *Output) AddList(cmd *cobra.Command) {
	o.Add(cmd, formWide, formName)
	cmd.Flags().BoolFuncP("quiet", "q", "names only, short for -o name", func(text string) error {
		if text == "true" {
			o.Form = formName
		}
		return nil
	})
	cmd.MarkFlagsMutuallyExclusive("output", "json", "quiet")
}

// Add adds --output and its shorthand --json to a subcommand. more are forms beyond table, JSON and YAML.
func (o *Output) Add(cmd *cobra.Command, more ...string) {
	o.more = more
	forms := o.Forms()
	last := len(forms) - 1
	cmd.Flags().VarP(o, "output", "o", "output `form`: "+strings.Join(forms[:last], ", ")+" or "+forms[last])
	cmd.Flags().BoolFunc("json", "JSON output, short for -o json", func(text string) error {
		if text == "true" {
			o.Form = formJSON
		}
		return nil
	})
	cmd.MarkFlagsMutuallyExclusive("output", "json")
	// the flag exists
	_ = cmd.RegisterFlagCompletionFunc("output", cobra.FixedCompletions(forms, cobra.ShellCompDirectiveNoFileComp))
}

// Set is part of [pflag.Value].
func (o *Output) Set(text string) error {
	if !slices.Contains(o.Forms(), text) {
		return fmt.Errorf("want %s", strings.Join(o.Forms(), ", "))
	}
	o.Form = text
	return nil
}

// String is part of [pflag.Value].
func (o *Output) String() string {
	if o.Form == "" {
		return formTable
	}
	return o.Form
}

// Type is part of [pflag.Value].
func (o *Output) Type() string { return "form" }

// Table is data that prints as a table.
type Table interface{ Table(w io.Writer) }

// Forever is the timeout of commands that run until interrupted.
const Forever = 100 * 365 * 24 * time.Hour

// IsTable reports whether the output is a table, not JSON.
func (o *Output) IsTable() bool { return !o.isDocument() && o.Form != formName }

func (o *Output) isDocument() bool {
	return o.Form == formJSON || o.Form == FormYAML || o.Form == FormEvent
}

// Show prints data, or its table: one row per line, cells separated by tabs.
func (o *Output) Show(std Streams, data any, table func(io.Writer)) error {
	if !o.IsTable() {
		return o.Document(std.Stdout, data)
	}
	var rows bytes.Buffer
	table(&rows)
	_, err := io.WriteString(std.Stdout, Align(rows.String()))
	return err
}

// Document prints data as JSON on one line, or as YAML with the same keys in the same order.
func (o *Output) Document(w io.Writer, data any) error {
	document, err := json.Marshal(data)
	if err != nil {
		return err
	}
	if o.Form == FormYAML {
		if document, err = jsonToYAML(document); err != nil {
			return err
		}
	} else {
		document = append(document, '\n')
	}
	_, err = w.Write(document)
	return err
}

// Next prints one document of a series.
func (o *Output) Next(w io.Writer, data any) error {
	if o.Form == FormYAML {
		if _, err := io.WriteString(w, "---\n"); err != nil {
			return err
		}
	}
	return o.Document(w, data)
}

// jsonToYAML keeps the order of keys and the digits of numbers: JSON is YAML in another style.
func jsonToYAML(document []byte) ([]byte, error) {
	var escaped bytes.Buffer
	for _, r := range string(document) {
		if r == 0x7f || r > 0x7f && !unicode.IsPrint(r) { // YAML has some of these only as escapes
			fmt.Fprintf(&escaped, `\U%08x`, r)
			continue
		}
		escaped.WriteRune(r)
	}
	var node yaml.Node
	if err := yaml.Unmarshal(escaped.Bytes(), &node); err != nil {
		return nil, fmt.Errorf("print as YAML: %w", err)
	}
	inBlocks(&node)
	var text bytes.Buffer
	encoder := yaml.NewEncoder(&text)
	encoder.SetIndent(2)
	if err := encoder.Encode(&node); err != nil {
		return nil, fmt.Errorf("print as YAML: %w", err)
	}
	return text.Bytes(), encoder.Close()
}

// inBlocks replaces the style of JSON, except that of empty collections and of strings that would not parse as a block.
func inBlocks(node *yaml.Node) {
	if len(node.Content) > 0 || node.Kind == yaml.ScalarNode && !strings.ContainsFunc(node.Value, unicode.IsControl) {
		node.Style = 0
	}
	for _, child := range node.Content {
		inBlocks(child)
	}
}
