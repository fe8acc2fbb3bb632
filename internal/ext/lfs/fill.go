package lfs

import (
	"lockstep/events"
	"lockstep/internal/ext"
	"lockstep/internal/git/lfs"
	"lockstep/internal/volume"
	"lockstep/internal/watch"
)

// New returns the extension.
func New() ext.Extension {
	return ext.Extension{
		Name: Name, Join: func(s ext.Sync) ext.Part { return part(s) },
		Asks: func(s ext.Sync) bool { return len(s.Published.LFS) > 0 },
	}
}

type part ext.Sync

// Fill implements [ext.Filler].
func (p part) Fill(req *volume.SyncRequest, _ string, ref events.Ref, isDefault bool) error {
	req.LFS = p.wanted(ref, isDefault)
	return nil
}

// IsFilled implements [ext.Filler].
func (p part) IsFilled(_ watch.Watch, ref events.Ref, isDefault bool) bool {
	return p.Published.LFS[ref].String() == p.wanted(ref, isDefault).String()
}

// wanted returns the files that any watch of a ref selects: a pointer is of no use to an app that asked for the content,
// while the content harms none.
func (p part) wanted(ref events.Ref, isDefault bool) (wanted lfs.Selection) {
	for _, w := range p.Watches {
		if o := Of(w); o.Mode == Fetch && w.Selects(ref, isDefault) {
			wanted = append(wanted, lfs.Filter{Include: o.Include, Exclude: o.Exclude})
		}
	}
	return wanted
}
