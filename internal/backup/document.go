package backup

import (
	"bytes"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"slices"
	"time"

	"lockstep/events"
	"lockstep/internal/access"
	"lockstep/internal/cells"
	"lockstep/internal/state"
	"lockstep/internal/watch"
)

// Format is the newest version of documents that this version reads. It writes 1, which all versions read, unless there are cells.
const Format = 2

// Header is the first value of a document.
type Header struct {
	Format  int          `json:"lockstep_export"`   // 1, or 2 with cells
	Version string       `json:"version,omitempty"` // of the program
	Time    time.Time    `json:"time"`
	Volume  string       `json:"volume,omitempty"` // ID of the volume that the states describe; empty if none was bound, and with cells
	Cells   []cells.Cell `json:"cells,omitempty"`  // of the directory, each with the ID of its volume; none of a single deployment
	Epoch   int64        `json:"epoch,omitempty"`  // of the directory

	TokensRequired bool `json:"tokens_required,omitempty"` // an app had a token, so requests need one
}

// Repository is a repository with watches, state or both.
type Repository struct {
	Repo    events.RepoPath   `json:"repo"`              // as first spelled
	Cell    string            `json:"cell,omitempty"`    // that has it; one of the header's
	Pinned  bool              `json:"pinned,omitempty"`  // it stays in the cell, whatever the weights
	Again   bool              `json:"again,omitempty"`   // it moved during the export, and replaces an earlier record
	Watches []json.RawMessage `json:"watches,omitempty"` // documents of package watch
	State   map[string]string `json:"state,omitempty"`   // fields of package state
	Views   map[string]string `json:"views,omitempty"`   // fields of package state
}

// End is the last value of a document.
type End struct {
	End bool `json:"end"`
	Counts
}

// Counts has the numbers of items in a document.
type Counts struct {
	Cells   int `json:"cells,omitempty"`
	Repos   int `json:"repos"`
	Watches int `json:"watches"`
	Tokens  int `json:"tokens"`
}

// ErrIncomplete means that a document ends early.
var ErrIncomplete = errors.New("the document is incomplete, its last line is missing; export again")

// value is any value of a document after the header; only one of its fields is set.
type value struct {
	repo    *Repository
	watches []watch.Watch // of repo
	token   *access.Hashed
	end     *End
}

// reader reads a document.
type reader struct {
	decoder *json.Decoder
	header  Header
	counts  Counts
	number  int // of the last value, from 1
	ended   bool
}

// newReader reads the header.
func newReader(in io.Reader) (*reader, error) {
	r := &reader{decoder: json.NewDecoder(in), number: 1}
	var first json.RawMessage
	err := r.decoder.Decode(&first)
	_, garbled := errors.AsType[*json.SyntaxError](err)
	switch {
	case errors.Is(err, io.EOF):
		return nil, errors.New("the document is empty")
	case errors.Is(err, io.ErrUnexpectedEOF):
		return nil, ErrIncomplete
	case err != nil && !garbled:
		return nil, err
	}
	var written struct { // the rest may be different in a newer version
		Format  int    `json:"lockstep_export"`
		Version string `json:"version"`
	}
	if garbled || json.Unmarshal(first, &written) != nil || written.Format == 0 {
		return nil, errors.New("this is not a document of lockstep export: its first line is not a header; uncompress it, or use lockstep watch import for a YAML file of watches")
	}
	if written.Format > Format {
		return nil, fmt.Errorf("a newer version wrote this document (%s): it has format %d, and this version reads up to %d; upgrade lockstep", written.Version, written.Format, Format)
	}
	if err := strict(first, &r.header); err != nil {
		return nil, r.failed(err)
	}
	r.counts.Cells = len(r.header.Cells)
	return r, r.failed(r.header.check())
}

func (h Header) check() error {
	for i, c := range h.Cells {
		if err := c.Check(); err != nil {
			return err
		}
		if slices.ContainsFunc(h.Cells[:i], func(o cells.Cell) bool { return o.Name == c.Name || o.Prefix == c.Prefix }) {
			return fmt.Errorf("cell %s: another one has its name or its prefix", c.Name)
		}
	}
	return nil
}

// has reports whether the document has a cell of the name.
func (h Header) has(cell string) bool {
	return slices.ContainsFunc(h.Cells, func(c cells.Cell) bool { return c.Name == cell })
}

// next reads the next value. It returns io.EOF after the last one, and an error if something follows that or if it is missing.
func (r *reader) next() (value, error) {
	r.number++
	var text json.RawMessage
	err := r.decoder.Decode(&text)
	switch {
	case errors.Is(err, io.EOF) && r.ended:
		return value{}, io.EOF
	case errors.Is(err, io.EOF), errors.Is(err, io.ErrUnexpectedEOF):
		return value{}, ErrIncomplete
	case err != nil:
		return value{}, r.failed(err)
	case r.ended:
		return value{}, r.failed(errors.New("follows the end of the document"))
	}
	v, err := parseValue(text)
	if err != nil {
		return value{}, r.failed(err)
	}
	switch {
	case v.repo != nil && v.repo.Cell != "" && !r.header.has(v.repo.Cell), v.repo != nil && v.repo.Cell == "" && len(r.header.Cells) > 0:
		return value{}, r.failed(fmt.Errorf("%s: its cell %.70q is not in the header", v.repo.Repo, v.repo.Cell))
	case v.repo != nil:
		r.counts.Repos++
		r.counts.Watches += len(v.watches)
	case v.token != nil:
		r.counts.Tokens++
	case v.end.Cells != r.counts.Cells:
		return value{}, fmt.Errorf("the document is damaged: its header has %d cells, and should have %d; export again", r.counts.Cells, v.end.Cells)
	case v.end.Counts != r.counts:
		return value{}, fmt.Errorf("the document is damaged: it ends after %d repositories, %d watches and %d tokens, and should have %d, %d and %d; export again",
			r.counts.Repos, r.counts.Watches, r.counts.Tokens, v.end.Repos, v.end.Watches, v.end.Tokens)
	default:
		r.ended = true
	}
	return v, nil
}

func (r *reader) failed(err error) error {
	if err == nil {
		return nil
	}
	return fmt.Errorf("value %d: %w", r.number, err)
}

func parseValue(text []byte) (v value, err error) {
	var kind struct {
		Repo  *json.RawMessage `json:"repo"`
		Token *json.RawMessage `json:"token"`
		End   bool             `json:"end"`
	}
	if err := json.Unmarshal(text, &kind); err != nil {
		return v, err
	}
	switch {
	case kind.Repo != nil:
		v.repo = &Repository{}
		if err := strict(text, v.repo); err != nil {
			return v, err
		}
		v.watches, err = v.repo.check()
		return v, err
	case kind.Token != nil:
		v.token = &access.Hashed{}
		if err := strict(text, v.token); err != nil {
			return v, err
		}
		return v, v.token.Check()
	case kind.End:
		v.end = &End{}
		return v, strict(text, v.end)
	}
	return v, errors.New("neither a repository nor a token; if a newer version wrote it, import with that one")
}

// check validates a repository and returns its watches.
func (r Repository) check() ([]watch.Watch, error) {
	if r.Repo.IsZero() {
		return nil, errors.New("a repository without a path")
	}
	if err := state.CheckExported(r.State); err != nil {
		return nil, fmt.Errorf("%s: %w", r.Repo, err)
	}
	watches := make([]watch.Watch, len(r.Watches))
	for i, document := range r.Watches {
		w, err := watch.ParseDocument(document)
		if err == nil && !w.Repo.Equal(r.Repo) {
			err = fmt.Errorf("it is of %s", w.Repo)
		}
		if err != nil {
			return nil, fmt.Errorf("%s: watch %d: %w", r.Repo, i+1, err)
		}
		watches[i] = w
	}
	return watches, nil
}

// strict decodes a value without unknown fields.
func strict(text []byte, into any) error {
	decoder := json.NewDecoder(bytes.NewReader(text))
	decoder.DisallowUnknownFields()
	return decoder.Decode(into)
}

// Check reads a document to its end. It returns an error for anything that [Import] would refuse, whatever Redis has.
func Check(in io.Reader) (Header, Counts, error) {
	r, err := newReader(in)
	if err != nil {
		return Header{}, Counts{}, err
	}
	for {
		_, err := r.next()
		if errors.Is(err, io.EOF) {
			return r.header, r.counts, nil
		}
		if err != nil {
			return Header{}, Counts{}, err
		}
	}
}

// replaced returns the number of the last record of each repository that was written again, by key. It has the place of others.
func replaced(in io.Reader) (map[string]int, error) {
	r, err := newReader(in)
	if err != nil {
		return nil, err
	}
	last := map[string]int{} // number of the last record
	for {
		v, err := r.next()
		if errors.Is(err, io.EOF) {
			return last, nil
		}
		if err != nil {
			return nil, err
		}
		if v.repo != nil && v.repo.Again {
			last[v.repo.Repo.Key()] = r.number
		}
	}
}
