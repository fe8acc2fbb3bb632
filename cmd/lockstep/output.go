package main

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
	formYAML  = "yaml"
)

var forms = []string{formTable, formJSON, formYAML}

// output is the form that --output asks for. The zero value is a table.
type output struct{ form string }

// add adds --output and its shorthand --json to a subcommand.
func (o *output) add(cmd *cobra.Command) {
	cmd.Flags().VarP(o, "output", "o", "`form` of what is printed: table, json or yaml")
	cmd.Flags().BoolFunc("json", "print JSON: short for -o json", func(text string) error {
		if text == "true" {
			o.form = formJSON
		}
		return nil
	})
	cmd.MarkFlagsMutuallyExclusive("output", "json")
}

// Set is part of [pflag.Value].
func (o *output) Set(text string) error {
	if !slices.Contains(forms, text) {
		return fmt.Errorf("want %s", strings.Join(forms, ", "))
	}
	o.form = text
	return nil
}

// String is part of [pflag.Value].
func (o *output) String() string {
	if o.form == "" {
		return formTable
	}
	return o.form
}

// Type is part of [pflag.Value].
func (o *output) Type() string { return "form" }

// isTable reports whether people are to read what is printed, and not programs.
func (o *output) isTable() bool { return o.String() == formTable }

// show prints data, or the table that stands for it: cells with tabs between them, a row a line.
func (o *output) show(std streams, data any, table func(io.Writer)) error {
	if !o.isTable() {
		return o.document(std.stdout, data)
	}
	var rows bytes.Buffer
	table(&rows)
	_, err := io.WriteString(std.stdout, align(rows.String(), std.colours(std.stdout)))
	return err
}

// document prints data as JSON on one line, or as YAML with the same keys in the same order.
func (o *output) document(w io.Writer, data any) error {
	document, err := json.Marshal(data)
	if err != nil {
		return err
	}
	if o.form == formYAML {
		if document, err = jsonToYAML(document); err != nil {
			return err
		}
	} else {
		document = append(document, '\n')
	}
	_, err = w.Write(document)
	return err
}

// next prints one of several documents that follow each other.
func (o *output) next(w io.Writer, data any) error {
	if o.form == formYAML {
		if _, err := io.WriteString(w, "---\n"); err != nil {
			return err
		}
	}
	return o.document(w, data)
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
