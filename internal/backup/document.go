package backup

import (
	"bytes"
	"encoding/json"
	"errors"
	"fmt"
	"time"

	"github.com/redis/go-redis/v9"

	"lockstep/events"
	"lockstep/internal/access"
	"lockstep/internal/cells"
	"lockstep/internal/watch"
)

// Format is the version of documents.
const Format = 1

// Deployment is what is exported, or imported into.
type Deployment struct {
	Redis  redis.UniversalClient
	Cells  *cells.Set       // those of a directory, or a single deployment
	Tokens events.Namespace // prefix of the tokens: that of the directory if there is one
}

// Header is the first line.
type Header struct {
	Format  int          `json:"lockstep_export"`
	Version string       `json:"version,omitempty"` // of the program
	Time    time.Time    `json:"time"`
	Cells   []cells.Cell `json:"cells,omitempty"` // of the directory; none of a single deployment
	Epoch   int64        `json:"epoch,omitempty"` // of the directory

	TokensRequired bool `json:"tokens_required,omitempty"` // an app had a token, so requests need one
}

// Repository is a repository with watches.
type Repository struct {
	Repo    events.RepoPath   `json:"repo"`             // as first spelled
	Cell    string            `json:"cell,omitempty"`   // that has it; one of the header's
	Pinned  bool              `json:"pinned,omitempty"` // it stays in the cell, whatever the weights
	Watches []watch.Watch     `json:"watches"`
	State   map[string]string `json:"state,omitempty"` // fields of package state
}

// End is the last line.
type End struct {
	End   bool `json:"end"`
	Lines int  `json:"lines"` // before it
}

// line is a line after the header: a repository, a token or the end.
type line struct {
	Repository
	access.Hashed
	End
}

// ErrIncomplete means that a document ends early.
var ErrIncomplete = errors.New("the document is incomplete, its last line is missing; export again")

// read calls visit for each line between the header and the end.
func read(document []byte, visit func(line) error) error {
	n, ended := 0, false
	for text := range bytes.Lines(document) {
		if n++; n == 1 {
			continue
		}
		if ended {
			return fmt.Errorf("line %d follows the end of the document", n)
		}
		l, err := parseLine(text)
		if err != nil && !bytes.HasSuffix(text, []byte("\n")) {
			err = ErrIncomplete
		}
		if err == nil && l.End.End && l.Lines != n-1 {
			err = fmt.Errorf("the document is damaged: it has %d lines before this one, and should have %d; export again", n-1, l.Lines)
		}
		if ended = l.End.End; err == nil && !ended {
			err = visit(l)
		}
		if err != nil {
			return fmt.Errorf("line %d: %w", n, err)
		}
	}
	if !ended {
		return ErrIncomplete
	}
	return nil
}

// Check reads a document to its end. It returns an error for anything that [Import] would refuse, whatever Redis has.
func Check(document []byte) (h Header, err error) {
	first, _, _ := bytes.Cut(document, []byte("\n"))
	var written struct { // the rest may be different in another format
		Format  int    `json:"lockstep_export"`
		Version string `json:"version"`
	}
	if json.Unmarshal(first, &written) != nil || written.Format == 0 {
		return h, errors.New("this is not a document of lockstep export: its first line is not a header; uncompress it, or use lockstep watch import for a YAML file of watches")
	}
	if written.Format != Format {
		return h, fmt.Errorf("the document has format %d, and this version reads %d; import with the version that wrote it (%s)", written.Format, Format, written.Version)
	}
	if err := strict(first, &h); err != nil {
		return h, fmt.Errorf("line 1: %w", err)
	}
	known := map[string]bool{"": len(h.Cells) == 0}
	for _, c := range h.Cells {
		if err := c.Check(); err != nil {
			return h, fmt.Errorf("line 1: %w", err)
		}
		known[c.Name] = true
	}
	return h, read(document, func(l line) error {
		if !l.Repo.IsZero() && !known[l.Cell] {
			return fmt.Errorf("%s: its cell %.70q is not in the header", l.Repo, l.Cell)
		}
		return nil
	})
}

func parseLine(text []byte) (l line, err error) {
	if err := strict(text, &l); err != nil {
		return l, err
	}
	switch {
	case l.End.End:
		return l, nil
	case l.Hash != "":
		return l, l.Hashed.Check()
	case l.Repo.IsZero() || len(l.Watches) == 0:
		return l, errors.New("neither a repository with watches nor a token")
	}
	for i, w := range l.Watches {
		w, err := watch.New(w)
		if err == nil && !w.Repo.Equal(l.Repo) {
			err = fmt.Errorf("it is of %s", w.Repo)
		}
		if err != nil {
			return l, fmt.Errorf("%s: watch %d: %w", l.Repo, i+1, err)
		}
		l.Watches[i] = w
	}
	return l, nil
}

// strict decodes a value without unknown fields.
func strict(text []byte, into any) error {
	decoder := json.NewDecoder(bytes.NewReader(text))
	decoder.DisallowUnknownFields()
	return decoder.Decode(into)
}
