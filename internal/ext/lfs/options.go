// Package lfs puts the content of files in Git LFS into trees, for the watches that ask for it.
package lfs

import (
	"errors"
	"fmt"

	"lockstep/internal/watch"
)

// Name is the name of the extension.
const Name = "lfs"

// Options select the files whose content a watch wants. Include and Exclude are globs, by default those of .lfsconfig, else
// all and none.
type Options struct {
	Mode    Mode     `json:"lfs,omitempty" yaml:"lfs,omitempty"`
	Include []string `json:"lfs_include,omitempty" yaml:"lfs_include,omitempty"`
	Exclude []string `json:"lfs_exclude,omitempty" yaml:"lfs_exclude,omitempty"`
}

// Mode selects pointers or content for files in Git LFS. The zero mode is Pointers.
type Mode string

// The modes.
const (
	Pointers Mode = "pointers" // the pointers that the commit has
	Fetch    Mode = "fetch"    // their content
)

func init() {
	watch.Register(watch.Extension{Option: Options{}, Flags: []watch.Flag{
		{Name: "lfs", Field: "lfs", Default: string(Pointers),
			Usage: "`pointers or fetch`: whether the tree has the pointers or the content of files in Git LFS"},
		{Name: "lfs-include", Field: "lfs_include", Default: []string(nil),
			Usage: "`glob` of files to fetch from Git LFS; repeatable (default: as .lfsconfig says, else all)"},
		{Name: "lfs-exclude", Field: "lfs_exclude", Default: []string(nil),
			Usage: "`glob` of files to leave as pointers; repeatable (default: as .lfsconfig says, else none)"},
	}})
}

// Of returns the options of a watch.
func Of(w watch.Watch) Options { return watch.OptionOf[Options](w) }

// Extension implements [watch.Option].
func (Options) Extension() string { return Name }

// Check implements [watch.Option].
func (o Options) Check(watch.Watch) (watch.Option, error) {
	switch {
	case o.Mode != "" && o.Mode != Pointers && o.Mode != Fetch:
		return nil, fmt.Errorf("lfs %.20q: want pointers or fetch", o.Mode)
	case o.Mode != Fetch && len(o.Include)+len(o.Exclude) > 0:
		return nil, errors.New("lfs_include, lfs_exclude: only with lfs fetch")
	case o.Mode != Fetch:
		return nil, nil
	}
	if err := watch.CheckGlobs(o.Include); err != nil {
		return nil, fmt.Errorf("lfs_include: %w", err)
	}
	if err := watch.CheckGlobs(o.Exclude); err != nil {
		return nil, fmt.Errorf("lfs_exclude: %w", err)
	}
	return o, nil
}
