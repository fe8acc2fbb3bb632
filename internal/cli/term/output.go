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

// The forms in which a subcommand prints data.
const (
	formTable = "table"
	formJSON  = "json"
	FormYAML  = "yaml"
)

var Forms = []string{formTable, formJSON, FormYAML}

// Output is the form that --output asks for. The zero value is a table.
type Output struct{ Form string }

// Add adds --output and its shorthand --json to a subcommand.
func (o *Output) Add(cmd *cobra.Command) {
	cmd.Flags().VarP(o, "output", "o", "`form` of what is printed: table, json or yaml")
	cmd.Flags().BoolFunc("json", "print JSON: short for -o json", func(text string) error {
		if text == "true" {
			o.Form = formJSON
		}
		return nil
	})
	cmd.MarkFlagsMutuallyExclusive("output", "json")
}

// Set is part of [pflag.Value].
func (o *Output) Set(text string) error {
	if !slices.Contains(Forms, text) {
		return fmt.Errorf("want %s", strings.Join(Forms, ", "))
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

// IsTable reports whether people are to read what is printed, and not programs.
func (o *Output) IsTable() bool { return o.String() == formTable }

// Show prints data, or the table that stands for it: cells with tabs between them, a row a line.
func (o *Output) Show(std Streams, data any, table func(io.Writer)) error {
	if !o.IsTable() {
		return o.Document(std.Stdout, data)
	}
	var rows bytes.Buffer
	table(&rows)
	_, err := io.WriteString(std.Stdout, Align(rows.String(), std.Colours(std.Stdout)))
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

// Next prints one of several documents that follow each other.
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

// yamlNode reads the decoder's next value: keys keep their order, and numbers their digits.
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
			node.Style = yaml.DoubleQuotedStyle // as a block, a line that begins with a tab would not be read again
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
	for decoder.More() { // of an object keys and values by turns
		child, err := yamlNode(decoder)
		if err != nil {
			return nil, err
		}
		node.Content = append(node.Content, child)
	}
	if len(node.Content) == 0 {
		node.Style = yaml.FlowStyle // [] or {}
	}
	_, err = decoder.Token() // the bracket that closes it
	return node, err
}
