package term

import (
	"bytes"
	"encoding/json"
	"fmt"
	"io"
	"slices"
	"strconv"
	"strings"
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
	_ = cmd.RegisterFlagCompletionFunc("output", cobra.FixedCompletions(forms, cobra.ShellCompDirectiveNoFileComp)) // the flag exists
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

func jsonToYAML(document []byte) ([]byte, error) {
	decoder := json.NewDecoder(bytes.NewReader(document))
	decoder.UseNumber()
	node, err := yamlNode(decoder)
	if err != nil {
		return nil, fmt.Errorf("print as YAML: %w", err)
	}
	var text bytes.Buffer
	encoder := yaml.NewEncoder(&text)
	encoder.SetIndent(2)
	if err := encoder.Encode(node); err != nil {
		return nil, fmt.Errorf("print as YAML: %w", err)
	}
	return text.Bytes(), encoder.Close()
}

// yamlNode reads the next value. It keeps the order of keys and the digits of numbers.
func yamlNode(decoder *json.Decoder) (*yaml.Node, error) {
	token, err := decoder.Token()
	if err != nil {
		return nil, err
	}
	scalar := func(tag, value string) (*yaml.Node, error) {
		return &yaml.Node{Kind: yaml.ScalarNode, Tag: tag, Value: value}, nil
	}
	switch token := token.(type) {
	case string:
		node, err := scalar("!!str", token)
		if strings.ContainsFunc(token, unicode.IsControl) {
			node.Style = yaml.DoubleQuotedStyle // a block with a line that starts with a tab would not parse
		}
		return node, err
	case bool:
		return scalar("!!bool", fmt.Sprint(token))
	case nil:
		return scalar("!!null", "null")
	case json.Number:
		_, signed := strconv.ParseInt(token.String(), 10, 64)
		_, unsigned := strconv.ParseUint(token.String(), 10, 64)
		if signed != nil && unsigned != nil {
			return scalar("!!float", token.String())
		}
		return scalar("!!int", token.String())
	}
	node := &yaml.Node{Kind: yaml.SequenceNode, Tag: "!!seq"}
	if token == json.Delim('{') {
		node.Kind, node.Tag = yaml.MappingNode, "!!map"
	}
	for decoder.More() { // keys and values of an object alternate
		child, err := yamlNode(decoder)
		if err != nil {
			return nil, err
		}
		node.Content = append(node.Content, child)
	}
	if len(node.Content) == 0 {
		node.Style = yaml.FlowStyle // [] or {}
	}
	_, err = decoder.Token() // closing bracket
	return node, err
}
