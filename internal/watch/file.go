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
	App          string   `yaml:"app"`
	Repo         string   `yaml:"repo,omitempty"`
	URL          string   `yaml:"url"`
	Ref          string   `yaml:"ref,omitempty"`
	MaxRefs      int      `yaml:"max_refs,omitempty"`
	Credential   string   `yaml:"credential,omitempty"`
	Depth        string   `yaml:"depth,omitempty"`
	Poll         string   `yaml:"poll,omitempty"`
	NotifyURL    string   `yaml:"notify_url,omitempty"`
	NotifySecret string   `yaml:"notify_secret,omitempty"`
	Paths        []string `yaml:"paths,omitempty"`
	FollowMoves  bool     `yaml:"follow_moves,omitempty"`
	Auto         bool     `yaml:"auto,omitempty"`

	Fields map[string]yaml.Node `yaml:",inline"` // of options of extensions
}

// WriteFile writes watches as YAML that [ReadFile] reads. It omits Silenced.
func WriteFile(w io.Writer, watches []Watch) error {
	out := file{Watches: make([]entry, len(watches))}
	for i, w := range watches {
		out.Watches[i] = entry{
			App: w.App, Repo: w.Repo.String(), URL: w.URL, Ref: w.Ref.String(), MaxRefs: w.MaxRefs, Credential: w.Credential,
			Depth: w.Depth.String(), Poll: w.Poll.String(), NotifyURL: w.NotifyURL, NotifySecret: w.NotifySecret,
			Paths: w.Paths, FollowMoves: w.FollowMoves, Auto: w.Auto, Fields: map[string]yaml.Node{},
		}
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
	" in type watch.file", "", " in type watch.entry", "", "[]watch.entry", "a list", "watch.entry", "a watch",
	"watch.file", "a file of watches")

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
	var parsed file
	if err := decoder.Decode(&parsed); err != nil && !errors.Is(err, io.EOF) {
		return nil, errors.New(plainYAML.Replace(err.Error()))
	}
	if err := decoder.Decode(new(any)); !errors.Is(err, io.EOF) {
		return nil, errors.New("more than one YAML document; put all watches into one")
	}
	var nodes struct{ Watches []yaml.Node }
	if err := yaml.Unmarshal(text, &nodes); err != nil {
		return nil, err
	}
	watches := make([]Watch, len(parsed.Watches))
	var failed []error
	for i, e := range parsed.Watches {
		if unknown := e.unknown(); len(unknown) > 0 {
			failed = append(failed, unknown...)
			continue
		}
		if watches[i], err = e.watch(&nodes.Watches[i]); errors.As(err, new(*yaml.TypeError)) {
			failed = append(failed, errors.New(plainYAML.Replace(err.Error()))) // it names the line
		} else if err != nil {
			failed = append(failed, fmt.Errorf("line %d: %w", nodes.Watches[i].Line, err))
		}
	}
	if len(failed) > 0 {
		return nil, errors.Join(failed...)
	}
	return watches, checkCompatible(watches, func(i int) string { return fmt.Sprintf("line %d", nodes.Watches[i].Line) })
}

// unknown returns an error for each field that no extension has.
func (e entry) unknown() (failed []error) {
	for _, name := range slices.Sorted(maps.Keys(e.Fields)) {
		if owners[name].Option == nil {
			failed = append(failed, fmt.Errorf("line %d: field %s not found", e.Fields[name].Line, name))
		}
	}
	return failed
}

// watch returns the watch of an entry, which is that of a node.
func (e entry) watch(node *yaml.Node) (Watch, error) {
	w := Watch{
		App: e.App, URL: e.URL, MaxRefs: e.MaxRefs, Credential: e.Credential, NotifyURL: e.NotifyURL,
		NotifySecret: e.NotifySecret, Paths: e.Paths, FollowMoves: e.FollowMoves, Auto: e.Auto,
	}
	for _, f := range []struct {
		name, text string
		into       interface{ UnmarshalText(text []byte) error }
	}{{"repo", e.Repo, &w.Repo}, {"ref", e.Ref, &w.Ref}, {"depth", e.Depth, &w.Depth}, {"poll", e.Poll, &w.Poll}} {
		if err := f.into.UnmarshalText([]byte(f.text)); err != nil {
			return Watch{}, fmt.Errorf("%s: %w", f.name, err)
		}
	}
	if err := w.decodeOptions(slices.Sorted(maps.Keys(e.Fields)), node.Decode); err != nil {
		return Watch{}, err
	}
	return New(w)
}
