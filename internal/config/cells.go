package config

import (
	"cmp"
	"errors"
	"net/url"

	"lockstep/events"
	"lockstep/internal/cells"
)

func (c *Config) checkCells() error {
	if c.Cell != "" && c.Cell != cells.Every {
		if err := cells.CheckName(c.Cell); err != nil {
			return err
		}
	}
	if c.CellReader == "" {
		return nil
	}
	u, err := url.Parse(c.CellReader)
	if err != nil || u.Host == "" || u.Scheme != "http" && u.Scheme != "https" || u.User != nil {
		return errors.New("cell-reader: want a URL such as https://eu-1.example.org, without credentials")
	}
	return nil
}

// In returns the configuration for one cell.
func (c Config) In(cell cells.Member) Config {
	c.Prefix, c.Cell = string(cell.Namespace), cell.Name
	return c
}

// Directory returns the prefix of the directory of cells, or "" if there is none.
func (c *Config) Directory() events.Namespace {
	if c.Cell == "" {
		return ""
	}
	return cells.DefaultPrefix
}

// Shared returns the prefix of what all cells share: tokens, IDs of webhooks and the limits of hosts. It is
// that of the directory, or of the deployment if there is none.
func (c *Config) Shared() events.Namespace { return cmp.Or(c.Directory(), c.Namespace()) }
