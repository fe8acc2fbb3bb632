package server

import (
	"cmp"
	"context"
	"encoding/base64"
	"errors"
	"fmt"
	"net/http"
	"time"
	"unicode/utf8"

	"lockstep/events"
	"lockstep/internal/access"
	"lockstep/internal/archive"
)

// VisibleRef is a ref that the sender of a request may read.
type VisibleRef struct {
	Ref     string       `json:"ref"`
	Commit  string       `json:"commit"`
	Default bool         `json:"default,omitempty"` // it is the default branch
	Depth   events.Depth `json:"depth,omitempty"`   // history that is kept; absent for one commit

	// What a copy by Git lacks. For the operator only.
	LFS        bool              `json:"lfs,omitempty"`        // files in Git LFS have their content
	Submodules events.Submodules `json:"submodules,omitempty"` // the files of submodules
}

// listRefs lists the refs that the sender may read.
func (s *Reading) listRefs(w http.ResponseWriter, r *http.Request, from request) error {
	visible, err := s.visible(r, from)
	if err != nil {
		return err
	}
	refs, err := s.readableRefs(r.Context(), visible)
	if err != nil {
		return err
	}
	if from.who.Operator {
		if err := s.describeExtras(r.Context(), visible, refs); err != nil {
			return err
		}
	}
	shown := struct {
		Repo string       `json:"repo"`
		Refs []VisibleRef `json:"refs"`
	}{visible.Repo.String(), refs}
	reply(w, http.StatusOK, shown)
	return nil
}

// describeExtras sets what the published trees have that a copy by Git lacks.
func (s *Reading) describeExtras(ctx context.Context, visible access.Visible, refs []VisibleRef) error {
	vol, err := s.Reader.Volume(ctx)
	if err != nil {
		return err
	}
	published, _, err := vol.Published(visible.Repo)
	for i, one := range visible.Refs {
		refs[i].LFS = len(published.LFS[one.Ref]) > 0
		if mode := published.Submodules[one.Ref]; mode != events.SubmodulesOff {
			refs[i].Submodules = mode
		}
	}
	return err
}

// sendFile sends a file, or a range of it. It is never a type that a browser would run.
func (s *Reading) sendFile(w http.ResponseWriter, r *http.Request, from request) error {
	o, err := s.open(r, from)
	if err != nil {
		return err
	}
	defer o.Close()
	name := r.PathValue("path")
	var file *archive.File
	err = s.scans.Run(r.Context(), from.who.App, func() (err error) {
		file, err = o.contents(nil).Open(r.Context(), name)
		return err
	})
	switch {
	case errors.Is(err, archive.ErrFolder):
		return problem{fmt.Errorf("%.200q is a folder; list it with /tree?path=, or get it with /archive?paths=", name),
			http.StatusNotFound}
	case errors.Is(err, archive.ErrNoFile):
		return problem{fmt.Errorf("%s at %.12s has no file %.200q", o.ref.Ref, o.ref.Commit, name), http.StatusNotFound}
	case err != nil:
		return err
	}
	defer file.Close()
	o.describe(w)
	h := w.Header()
	h.Set("ETag", file.ETag)
	h.Set("Lockstep-Mode", fmt.Sprintf("%06o", file.Mode))
	h.Set("Content-Type", "application/octet-stream")
	h.Set("X-Content-Type-Options", "nosniff")
	h.Set("Content-Disposition", "attachment")
	h.Set("Content-Security-Policy", "default-src 'none'; sandbox")
	http.ServeContent(newPatient(w), r, "", time.Time{}, file)
	return nil
}

// TreeEntry is a file, link or submodule of a tree.
type TreeEntry struct {
	Path string `json:"path"`
	Raw  string `json:"raw,omitempty"` // the path in base64, if it is not UTF-8
	Mode string `json:"mode"`          // as in Git
	Blob string `json:"blob"`          // the commit of a submodule
	Size int64  `json:"size"`          // in bytes
}

// listFiles lists the files of a tree, or of a folder in it and those below.
func (s *Reading) listFiles(w http.ResponseWriter, r *http.Request, from request) error {
	query := r.URL.Query()
	limit, err := pageLimit(r)
	if err != nil {
		return badRequest(err)
	}
	after, err := base64.RawURLEncoding.DecodeString(query.Get("after"))
	if err != nil {
		return badRequest(errors.New("after: want the value of \"next\" in the previous page"))
	}
	var paths []string
	if path := query.Get("path"); path != "" {
		paths = []string{path}
	}
	if paths, err = archive.ParsePaths(paths); err != nil {
		return badRequest(err)
	}
	o, err := s.open(r, from)
	if err != nil {
		return err
	}
	defer o.Close()
	var page []archive.Entry
	more := false
	err = s.scans.Run(r.Context(), from.who.App, func() (err error) {
		page, more, err = o.contents(paths).Page(r.Context(), string(after), cmp.Or(limit, 100))
		return err
	})
	if err != nil {
		return err
	}
	shown := struct {
		Repo   string      `json:"repo"`
		Ref    string      `json:"ref"`
		Commit string      `json:"commit"`
		Files  []TreeEntry `json:"files"`
		Next   string      `json:"next,omitempty"`
	}{o.repo.String(), o.ref.Ref.String(), o.ref.Commit, make([]TreeEntry, len(page)), ""}
	for i, entry := range page {
		shown.Files[i] = TreeEntry{
			Path: entry.Path, Mode: fmt.Sprintf("%06o", entry.Mode), Blob: entry.Blob.String(), Size: entry.Bytes,
		}
		if !utf8.ValidString(entry.Path) {
			shown.Files[i].Raw = base64.StdEncoding.EncodeToString([]byte(entry.Path))
		}
	}
	if more {
		shown.Next = base64.RawURLEncoding.EncodeToString([]byte(page[len(page)-1].Path))
	}
	reply(w, http.StatusOK, shown)
	return nil
}
