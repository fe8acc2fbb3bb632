package watch

import (
	"errors"
	"fmt"
	"io"
	"maps"
	"slices"
	"strings"

	"go.yaml.in/yaml/v3"
)

const maxFile = 16 << 20

type file struct {
	Watches []entry `yaml:"watches"`
}

type entry struct {
	Watch  `yaml:",inline"`
	Fields map[string]yaml.Node `yaml:",inline"` // of options of extensions
}

// WriteFile writes watches as YAML that [ReadFile] reads. It omits Silenced.
func WriteFile(w io.Writer, watches []Watch) error {
	out := file{Watches: make([]entry, len(watches))}
	for i, w := range watches {
		out.Watches[i] = entry{Watch: w, Fields: map[string]yaml.Node{}}
		for _, option := range w.Options {
			var node yaml.Node
			if err := node.Encode(option); err != nil {
				return err
			}
			for field := 0; field+1 < len(node.Content); field += 2 {
				out.Watches[i].Fields[node.Content[field].Value] = *node.Content[field+1]
			}
		}
	}
	encoder := yaml.NewEncoder(w)
	encoder.SetIndent(2)
	if err := encoder.Encode(out); err != nil {
		return err
	}
	return encoder.Close()
}

// plainYAML removes Go types and prefixes from the YAML library's errors.
var plainYAML = strings.NewReplacer("yaml: unmarshal errors:\n  ", "", "\n  ", "\n", "yaml: ", "",
	" in type watch.document", "", "[]yaml.Node", "a list", "watch.entry", "a watch",
	"watch.document", "a file of watches")

// ReadFile reads the watches of a YAML file: a list named watches, whose entries use the JSON field names. Errors name
// the line of an unknown field, an invalid or duplicate watch, a path with two remotes, and a path inside another one.
func ReadFile(r io.Reader) ([]Watch, error) {
	text, err := io.ReadAll(io.LimitReader(r, maxFile+1))
	if err != nil {
		return nil, err
	}
	if len(text) > maxFile {
		return nil, fmt.Errorf("longer than %d MiB", maxFile>>20)
	}
	decoder := yaml.NewDecoder(strings.NewReader(string(text)))
	decoder.KnownFields(true)
	var parsed document
	if err := decoder.Decode(&parsed); err != nil && !errors.Is(err, io.EOF) {
		return nil, errors.New(plainYAML.Replace(err.Error()))
	}
	if err := decoder.Decode(new(any)); !errors.Is(err, io.EOF) {
		return nil, errors.New("more than one YAML document; put all watches into one")
	}
	watches := make([]Watch, len(parsed.Watches))
	var failed []error
	for i := range parsed.Watches {
		if watches[i], err = watchOf(&parsed.Watches[i]); err != nil {
			failed = append(failed, err)
		}
	}
	if len(failed) > 0 {
		return nil, errors.Join(failed...)
	}
	return watches, checkCompatible(watches, func(i int) string { return fmt.Sprintf("line %d", parsed.Watches[i].Line) })
}

// document is a file whose watches are not decoded yet.
type document struct{ Watches []yaml.Node }

// watchOf returns the watch of an entry in a file. Its error names the line.
func watchOf(node *yaml.Node) (Watch, error) {
	var e entry
	err := node.Decode(&e)
	var unknown []error
	for _, name := range slices.Sorted(maps.Keys(e.Fields)) {
		if owners[name].Option == nil {
			unknown = append(unknown, fmt.Errorf("line %d: field %s not found", e.Fields[name].Line, name))
		}
	}
	if err == nil && len(unknown) > 0 {
		return Watch{}, errors.Join(unknown...)
	}
	if err == nil {
		err = e.decodeOptions(slices.Sorted(maps.Keys(e.Fields)), node.Decode)
	}
	if err == nil {
		e.Watch, err = New(e.Watch)
	}
	switch {
	case errors.As(err, new(*yaml.TypeError)):
		return Watch{}, errors.New(plainYAML.Replace(err.Error())) // it names the line
	case err != nil:
		return Watch{}, fmt.Errorf("line %d: %w", node.Line, err)
	}
	return e.Watch, nil
}
