package watch

import (
	"errors"
	"fmt"
	"io"
	"strings"

	"go.yaml.in/yaml/v3"
)

// maxFile is how many bytes a file of watches may have.
const maxFile = 16 << 20

// file is a file of watches.
type file struct {
	Watches []entry `yaml:"watches"`
}

// entry is a watch in a file.
type entry struct {
	App          string   `yaml:"app"`
	Repo         string   `yaml:"repo,omitempty"`
	URL          string   `yaml:"url"`
	Ref          string   `yaml:"ref,omitempty"`
	Credential   string   `yaml:"credential,omitempty"`
	Depth        string   `yaml:"depth,omitempty"`
	Poll         string   `yaml:"poll,omitempty"`
	NotifyURL    string   `yaml:"notify_url,omitempty"`
	NotifySecret string   `yaml:"notify_secret,omitempty"`
	Paths        []string `yaml:"paths,omitempty"`
	Auto         bool     `yaml:"auto,omitempty"`
}

// WriteFile writes watches as YAML that [ReadFile] reads. Whether an app is still notified is not in it.
func WriteFile(w io.Writer, watches []Watch) error {
	out := file{Watches: make([]entry, len(watches))}
	for i, w := range watches {
		out.Watches[i] = entry{
			App: w.App, Repo: w.Repo.String(), URL: w.URL, Ref: w.Ref.String(), Credential: w.Credential,
			Depth: w.Depth.String(), Poll: w.Poll.String(), NotifyURL: w.NotifyURL, NotifySecret: w.NotifySecret,
			Paths: w.Paths, Auto: w.Auto,
		}
	}
	encoder := yaml.NewEncoder(w)
	encoder.SetIndent(2)
	if err := encoder.Encode(out); err != nil {
		return err
	}
	return encoder.Close()
}

// ofYAML takes what only a programmer knows out of what the YAML library says.
var ofYAML = strings.NewReplacer("yaml: unmarshal errors:\n  ", "", "\n  ", "\n", "yaml: ", "",
	" in type watch.file", "", " in type watch.entry", "", "[]watch.entry", "a list", "watch.entry", "a watch", "watch.file", "a file of watches")

// ReadFile reads the watches of a YAML file: a list called watches, of entries with the names of the JSON form.
// It refuses, with the line, an unknown name, an unsound watch, one that is there twice, two remotes at one
// path, and paths of which one lies in the other.
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
		return nil, errors.New(ofYAML.Replace(err.Error()))
	}
	if err := decoder.Decode(new(any)); !errors.Is(err, io.EOF) {
		return nil, errors.New("more than one YAML document; want one, with all watches")
	}
	var places struct{ Watches []yaml.Node }
	if err := yaml.Unmarshal(text, &places); err != nil {
		return nil, err
	}
	watches := make([]Watch, len(parsed.Watches))
	var failed []error
	for i, e := range parsed.Watches {
		if watches[i], err = e.watch(); err != nil {
			failed = append(failed, fmt.Errorf("line %d: %w", places.Watches[i].Line, err))
		}
	}
	if len(failed) > 0 {
		return nil, errors.Join(failed...)
	}
	return watches, compatible(watches, func(i int) string { return fmt.Sprintf("line %d", places.Watches[i].Line) })
}

func (e entry) watch() (Watch, error) {
	w := Watch{
		App: e.App, URL: e.URL, Credential: e.Credential, NotifyURL: e.NotifyURL, NotifySecret: e.NotifySecret,
		Paths: e.Paths, Auto: e.Auto,
	}
	for _, f := range []struct {
		name, text string
		into       interface{ UnmarshalText(text []byte) error }
	}{{"repo", e.Repo, &w.Repo}, {"ref", e.Ref, &w.Ref}, {"depth", e.Depth, &w.Depth}, {"poll", e.Poll, &w.Poll}} {
		if err := f.into.UnmarshalText([]byte(f.text)); err != nil {
			return Watch{}, fmt.Errorf("%s: %w", f.name, err)
		}
	}
	return New(w)
}
