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
}

// Document is an export.
type Document struct {
	Header
	Content
}

// Header is the first line of a document.
type Header struct {
	Format  int          `json:"lockstep_export"`
	Version string       `json:"version,omitempty"` // of the program
	Time    time.Time    `json:"time"`
	Cells   []cells.Cell `json:"cells,omitempty"` // of the directory; none of a single deployment
	Epoch   int64        `json:"epoch,omitempty"` // of the directory

	TokensRequired bool `json:"tokens_required,omitempty"` // an app had a token, so requests need one
}

// Content is the rest of a document.
type Content struct {
	Repos  []Repository    `json:"repos"`
	Tokens []access.Hashed `json:"tokens"`
}

// Repository is a repository with watches.
type Repository struct {
	Repo    events.RepoPath   `json:"repo"`             // as first spelled
	Cell    string            `json:"cell,omitempty"`   // that has it; one of the header's
	Pinned  bool              `json:"pinned,omitempty"` // it stays in the cell, whatever the weights
	Watches []watch.Watch     `json:"watches"`
	State   map[string]string `json:"state,omitempty"` // fields of package state
}

// Counts has the numbers of items in a document.
type Counts struct {
	Cells   int `json:"cells,omitempty"`
	Repos   int `json:"repos"`
	Watches int `json:"watches"`
	Tokens  int `json:"tokens"`
}

// Count counts the items of a document.
func (d Document) Count() Counts {
	c := Counts{Cells: len(d.Cells), Repos: len(d.Repos), Tokens: len(d.Tokens)}
	for _, one := range d.Repos {
		c.Watches += len(one.Watches)
	}
	return c
}

// Write writes a document as two JSON values, the second with a line for each of its values.
func (d Document) Write(to io.Writer) error {
	encoder := json.NewEncoder(to)
	encoder.SetEscapeHTML(false)
	if err := encoder.Encode(d.Header); err != nil {
		return err
	}
	encoder.SetIndent("", " ")
	return encoder.Encode(d.Content)
}

// ErrIncomplete means that a document ends early.
var ErrIncomplete = errors.New("the document is incomplete; export again")

// Parse reads a whole document and checks it.
func Parse(text []byte) (d Document, err error) {
	first, rest, _ := bytes.Cut(text, []byte("\n"))
	var written struct { // the rest may be different in another format
		Format  int    `json:"lockstep_export"`
		Version string `json:"version"`
	}
	if json.Unmarshal(first, &written) != nil || written.Format == 0 {
		return d, errors.New("this is not a document of lockstep export: its first line is not a header; uncompress it, or use lockstep watch import for a YAML file of watches")
	}
	if written.Format != Format {
		return d, fmt.Errorf("the document has format %d, and this version reads %d; import with the version that wrote it (%s)", written.Format, Format, written.Version)
	}
	if err := strict(first, &d.Header); err != nil {
		return d, err
	}
	if err := strict(rest, &d.Content); err != nil {
		return d, err
	}
	for _, c := range d.Cells {
		if err := c.Check(); err != nil {
			return d, err
		}
	}
	for _, one := range d.Repos {
		if err := d.check(one); err != nil {
			return d, fmt.Errorf("%s: %w", one.Repo, err)
		}
	}
	for _, one := range d.Tokens {
		if err := one.Check(); err != nil {
			return d, err
		}
	}
	return d, nil
}

// check checks a repository, and normalizes its watches.
func (d Document) check(one Repository) error {
	isCell := func(c cells.Cell) bool { return c.Name == one.Cell }
	if !slices.ContainsFunc(d.Cells, isCell) && (one.Cell != "" || len(d.Cells) > 0) {
		return fmt.Errorf("its cell %.70q is not in the header", one.Cell)
	}
	for i, w := range one.Watches {
		w, err := watch.New(w)
		if err == nil && !w.Repo.Equal(one.Repo) {
			err = fmt.Errorf("it is of %s", w.Repo)
		}
		if err != nil {
			return fmt.Errorf("watch %d: %w", i+1, err)
		}
		one.Watches[i] = w
	}
	return nil
}

// strict decodes one value without unknown fields.
func strict(text []byte, into any) error {
	decoder := json.NewDecoder(bytes.NewReader(text))
	decoder.DisallowUnknownFields()
	err := decoder.Decode(into)
	if errors.Is(err, io.EOF) || errors.Is(err, io.ErrUnexpectedEOF) {
		return ErrIncomplete
	}
	if err == nil && decoder.More() {
		return errors.New("more follows the end of the document")
	}
	return err
}
