package cells

import (
	"encoding/json"
	"errors"
	"fmt"
	"net/url"
	"regexp"

	"lockstep/events"
	"lockstep/internal/egress"
)

// DefaultPrefix is the prefix of the directory's keys.
const DefaultPrefix events.Namespace = "lockstep:{dir}:"

// Every is the setting cell of a command that works with all cells. No cell has this name.
const Every = "all"

// Limits of a directory.
const (
	MaxWeight = 1_000_000 // of one cell
	MaxCells  = 1024
)

// DefaultWeight is the weight of a cell that is added without one.
const DefaultWeight = 100

// State is the state of a cell.
type State string

// The states of a cell.
const (
	Active   State = "active"   // has a share in proportion to its weight
	Draining State = "draining" // its repositories are being moved elsewhere
	Gone     State = "gone"     // has no repositories; its name can be used again
)

// Cell is an entry of the directory.
type Cell struct {
	Name   string           `json:"name"`
	Prefix events.Namespace `json:"prefix"` // of its keys
	Weight int              `json:"weight"` // as given by the operator; see Target
	Placed int              `json:"placed"` // weight by which repositories are placed now
	State  State            `json:"state"`
	Reader string           `json:"reader,omitempty"` // base URL of its HTTP API; "" if unknown

	text string // as stored
}

// Target returns the weight by which repositories shall be placed: 0 unless the cell is active.
func (c Cell) Target() int {
	if c.State != Active {
		return 0
	}
	return c.Weight
}

var namePattern = regexp.MustCompile(`^[a-z0-9][a-z0-9._-]{0,62}$`)

// CheckName returns an error unless name is a valid name of a cell: at most 63 lower-case letters, digits and
// ._-, as in "eu-1".
func CheckName(name string) error {
	if !namePattern.MatchString(name) || name == Every {
		return fmt.Errorf("cell %.70q: want at most 63 lower-case letters, digits and ._-, as in \"eu-1\", "+
			"and not \"all\"", name)
	}
	return nil
}

// PrefixOf returns the prefix of a cell's keys unless another is given when it is added: "lockstep:{eu-1}:".
func PrefixOf(name string) events.Namespace { return events.Namespace("lockstep:{" + name + "}:") }

// MayHaveTokens reports whether tokens may be sent to the reader at a URL: over https, or on this machine.
func MayHaveTokens(reader *url.URL) bool {
	return reader.Host != "" && (reader.Scheme == "https" || reader.Scheme == "http" && egress.IsLocal(reader.Hostname()))
}

// Check returns an error unless the cell is valid.
func (c Cell) Check() error {
	if err := CheckName(c.Name); err != nil {
		return err
	}
	if _, err := events.ParseNamespace(string(c.Prefix)); err != nil {
		return fmt.Errorf("cell %s: %w", c.Name, err)
	}
	if c.Weight < 1 || c.Weight > MaxWeight {
		return fmt.Errorf("cell %s: weight %d: want 1 to %d", c.Name, c.Weight, MaxWeight)
	}
	if c.Placed < 0 || c.Placed > MaxWeight {
		return fmt.Errorf("cell %s: placed weight %d: want 0 to %d", c.Name, c.Placed, MaxWeight)
	}
	if c.State != Active && c.State != Draining && c.State != Gone {
		return fmt.Errorf("cell %s: unknown state %.20q", c.Name, c.State)
	}
	return nil
}

// decode parses a stored cell.
func decode(name, text string) (Cell, error) {
	c := Cell{text: text}
	if err := c.read(name); err != nil {
		return Cell{}, fmt.Errorf("directory: record of cell %.70q: %w", name, err)
	}
	return c, nil
}

// read sets the fields that the text has.
func (c *Cell) read(name string) error {
	if err := json.Unmarshal([]byte(c.text), c); err != nil {
		return err
	}
	if c.Name != name {
		return errors.New("its record has another name")
	}
	return c.Check()
}

// encode returns the text to store.
func (c Cell) encode() (string, error) {
	if err := c.Check(); err != nil {
		return "", err
	}
	text, err := json.Marshal(c)
	return string(text), err
}
