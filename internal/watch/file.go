package watch

import (
	"errors"
	"fmt"
	"io"
	"strings"

	"go.yaml.in/yaml/v3"

	"lockstep/events"
	"lockstep/internal/view"
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
	Verify       string   `yaml:"verify,omitempty"`
	VerifyKeys   string   `yaml:"verify_keys,omitempty"`
	NoRewind     bool     `yaml:"no_rewind,omitempty"`
	FollowMoves  bool     `yaml:"follow_moves,omitempty"`
	LFS          LFSMode  `yaml:"lfs,omitempty"`
	LFSInclude   []string `yaml:"lfs_include,omitempty"`
	LFSExclude   []string `yaml:"lfs_exclude,omitempty"`
	Auto         bool     `yaml:"auto,omitempty"`

	Submodules           events.Submodules   `yaml:"submodules,omitempty"`
	SubmoduleCredentials []string            `yaml:"submodule_credentials,omitempty"`
	Views                map[string][]string `yaml:"views,omitempty"`
	ViewTrees            bool                `yaml:"view_trees,omitempty"`
}

// WriteFile writes watches as YAML that [ReadFile] reads. It omits Silenced.
func WriteFile(w io.Writer, watches []Watch) error {
	out := file{Watches: make([]entry, len(watches))}
	for i, w := range watches {
		out.Watches[i] = entry{
			App: w.App, Repo: w.Repo.String(), URL: w.URL, Ref: w.Ref.String(), MaxRefs: w.MaxRefs, Credential: w.Credential,
			Depth: w.Depth.String(), Poll: w.Poll.String(), NotifyURL: w.NotifyURL, NotifySecret: w.NotifySecret,
			Paths: w.Paths, Verify: w.Verify.String(), VerifyKeys: w.VerifyKeys, NoRewind: w.NoRewind,
			FollowMoves: w.FollowMoves,
			LFS:         w.LFS, LFSInclude: w.LFSInclude, LFSExclude: w.LFSExclude, Auto: w.Auto,
			Submodules: w.Submodules, SubmoduleCredentials: w.SubmoduleCredentials, Views: w.Views.Map(), ViewTrees: w.ViewTrees,
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
		if watches[i], err = e.watch(); err != nil {
			failed = append(failed, fmt.Errorf("line %d: %w", nodes.Watches[i].Line, err))
		}
	}
	if len(failed) > 0 {
		return nil, errors.Join(failed...)
	}
	return watches, checkCompatible(watches, func(i int) string { return fmt.Sprintf("line %d", nodes.Watches[i].Line) })
}

func (e entry) watch() (Watch, error) {
	w := Watch{
		App: e.App, URL: e.URL, MaxRefs: e.MaxRefs, Credential: e.Credential, NotifyURL: e.NotifyURL,
		NotifySecret: e.NotifySecret,
		Paths:        e.Paths, VerifyKeys: e.VerifyKeys, NoRewind: e.NoRewind, FollowMoves: e.FollowMoves, LFS: e.LFS,
		LFSInclude: e.LFSInclude, LFSExclude: e.LFSExclude, Auto: e.Auto,
		Submodules: e.Submodules, SubmoduleCredentials: e.SubmoduleCredentials, ViewTrees: e.ViewTrees,
	}
	for _, f := range []struct {
		name, text string
		into       interface{ UnmarshalText(text []byte) error }
	}{{"repo", e.Repo, &w.Repo}, {"ref", e.Ref, &w.Ref}, {"depth", e.Depth, &w.Depth}, {"poll", e.Poll, &w.Poll},
		{"verify", e.Verify, &w.Verify}} {
		if err := f.into.UnmarshalText([]byte(f.text)); err != nil {
			return Watch{}, fmt.Errorf("%s: %w", f.name, err)
		}
	}
	var err error
	if w.Views, err = view.New(e.Views); err != nil {
		return Watch{}, fmt.Errorf("views: %w", err)
	}
	return New(w)
}
