// Package submodules puts the files of submodules into trees, for the watches that ask for it.
package submodules

import (
	"errors"
	"fmt"
	"slices"

	"lockstep/events"
	"lockstep/internal/watch"
)

// Name is the name of the extension.
const Name = "submodules"

const maxCredentials = 100

// Options say whether a watch's tree has the files of its submodules. Credentials names credentials for their remotes: of
// those of all watches of a ref, the one with the longest URL prefix that covers a remote is used, else the watch's own.
type Options struct {
	Mode        events.Submodules `json:"submodules,omitempty" yaml:"submodules,omitempty"`
	Credentials []string          `json:"submodule_credentials,omitempty" yaml:"submodule_credentials,omitempty"`
}

func init() {
	watch.Register(watch.Extension{Option: Options{}, Flags: []watch.Flag{
		{Name: "submodules", Field: "submodules", Default: "off",
			Usage: "`off, best-effort or required`: whether the tree has the files of its submodules"},
		{Name: "submodule-credential", Field: "submodule_credentials", Default: []string(nil),
			Usage: "`name` of a credential for the submodules below its urls; repeatable"},
	}})
}

// Of returns the options of a watch.
func Of(w watch.Watch) Options { return watch.OptionOf[Options](w) }

// Extension implements [watch.Option].
func (Options) Extension() string { return Name }

// Check implements [watch.Option].
func (o Options) Check(watch.Watch) (_ watch.Option, err error) {
	o.Mode, err = events.ParseSubmodules(string(o.Mode))
	switch {
	case err != nil:
		return nil, err
	case o.Mode == events.SubmodulesOff && len(o.Credentials) > 0:
		return nil, errors.New("submodule_credentials: only with submodules best-effort or required")
	case o.Mode == events.SubmodulesOff:
		return nil, nil
	case len(o.Credentials) > maxCredentials:
		return nil, fmt.Errorf("submodule_credentials: want at most %d", maxCredentials)
	}
	for i, name := range o.Credentials {
		if err := watch.CheckCredential("submodule_credentials", name); err != nil {
			return nil, err
		}
		if slices.Contains(o.Credentials[:i], name) {
			return nil, fmt.Errorf("submodule_credentials: %q is named twice", name)
		}
	}
	return o, nil
}
