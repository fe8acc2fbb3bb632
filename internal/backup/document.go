package backup

import (
	"bytes"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"slices"
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

	Progress func(next events.RepoPath, done, total int) // of an import, by repositories; optional
}

// Document is an export.
type Document struct {
	Header
	Repos  []Repository
	Tokens []access.Token
}

// Header is the first line of a document.
type Header struct {
	Format  int          `json:"lockstep_export"`
	Version string       `json:"version,omitempty"` // of the program
	Time    time.Time    `json:"time"`
	Counts  Counts       `json:"counts"`
	Cells   []cells.Cell `json:"cells,omitempty"` // of the directory; none of a single deployment
	Epoch   int64        `json:"epoch,omitempty"` // of the directory

	TokensRequired bool `json:"tokens_required,omitempty"` // an app had a token, so requests need one
}

// Counts has the numbers of items in a document. Each repository and each token is a line.
type Counts struct {
	Cells   int `json:"cells,omitempty"`
	Repos   int `json:"repos"`
	Watches int `json:"watches"`
	Tokens  int `json:"tokens"`
}

// Repository is a repository with watches.
type Repository struct {
	Repo    events.RepoPath   `json:"repo"`             // as first spelled
	Cell    string            `json:"cell,omitempty"`   // that has it; one of the header's
	Pinned  bool              `json:"pinned,omitempty"` // it stays in the cell, whatever the weights
	Watches []watch.Watch     `json:"watches"`
	State   map[string]string `json:"state,omitempty"` // fields of package state
}

// Write writes a document.
func (d Document) Write(to io.Writer) error {
	encoder := json.NewEncoder(to)
	encoder.SetEscapeHTML(false)
	lines := []any{d.Header}
	for _, one := range d.Repos {
		lines = append(lines, one)
	}
	for _, one := range d.Tokens {
		lines = append(lines, one)
	}
	for _, line := range lines {
		if err := encoder.Encode(line); err != nil {
			return err
		}
	}
	return nil
}

// ErrIncomplete means that a document ends early.
var ErrIncomplete = errors.New("the document is incomplete; export again")

// Parse reads a whole document and checks it.
func Parse(text []byte) (d Document, err error) {
	first, rest, _ := bytes.Cut(text, []byte("\n"))
	err = json.Unmarshal(first, &d.Header) // another format may have other fields
	switch {
	case d.Format == 0:
		return d, errors.New("this is not a document of lockstep export: its first line is not a header; uncompress it, " +
			"or use lockstep watch import for a YAML file of watches")
	case d.Format != Format:
		return d, fmt.Errorf("the document has format %d, and this version reads %d; import with the version that "+
			"wrote it (%s)",
			d.Format, Format, d.Version)
	case err != nil:
		return d, err
	}
	for _, c := range d.Cells {
		if err := c.Check(); err != nil {
			return d, err
		}
	}
	decoder := json.NewDecoder(bytes.NewReader(rest))
	decoder.DisallowUnknownFields()
	if d.Repos, err = decode(decoder, d.Counts.Repos, d.check); err != nil {
		return d, err
	}
	if d.Tokens, err = decode(decoder, d.Counts.Tokens, access.Token.Check); err != nil {
		return d, err
	}
	if decoder.More() {
		return d, errors.New("more follows the end of the document")
	}
	return d, nil
}

// decode reads n values and checks them.
func decode[T any](decoder *json.Decoder, n int, check func(T) error) (all []T, err error) {
	for range n {
		var one T
		err := decoder.Decode(&one)
		if errors.Is(err, io.EOF) || errors.Is(err, io.ErrUnexpectedEOF) {
			return nil, ErrIncomplete
		}
		if err != nil {
			return nil, err
		}
		if err := check(one); err != nil {
			return nil, err
		}
		all = append(all, one)
	}
	return all, nil
}

// check checks a repository, and normalizes its watches.
func (d Document) check(one Repository) error {
	isCell := func(c cells.Cell) bool { return c.Name == one.Cell }
	if !slices.ContainsFunc(d.Cells, isCell) && (one.Cell != "" || len(d.Cells) > 0) {
		return fmt.Errorf("%s: its cell %.70q is not in the header", one.Repo, one.Cell)
	}
	for i, w := range one.Watches {
		w, err := watch.New(w)
		if err == nil && !w.Repo.Equal(one.Repo) {
			err = fmt.Errorf("it is of %s", w.Repo)
		}
		if err != nil {
			return fmt.Errorf("%s: watch %d: %w", one.Repo, i+1, err)
		}
		one.Watches[i] = w
	}
	return nil
}
