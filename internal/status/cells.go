package status

import (
	"context"
	"fmt"
	"io"
	"time"

	"github.com/redis/go-redis/v9"

	"lockstep/internal/cells"
	"lockstep/internal/config"
	"lockstep/internal/hosts"
	"lockstep/internal/operate"
	"lockstep/internal/term"
	"lockstep/internal/volume"
)

// Reader reads the state of a service, or of each of its cells.
type Reader struct {
	Redis  redis.UniversalClient
	Config config.Config
	Cells  *cells.Set

	// Volume opens the volume of a cell, if it is mounted here.
	Volume func(context.Context, config.Config, redis.UniversalClient) (*volume.Volume, error)
}

// cellTimeout limits the read of one cell among several.
const cellTimeout = 1500 * time.Millisecond

// Read returns a [Service], or [AllCells] if there are several. Its cost does not depend on the size of the service: it
// searches for leases and failures for a limited time.
func (r Reader) Read(ctx context.Context) (term.Table, error) {
	if r.Cells.IsSingle() {
		return r.readCell(ctx, r.Cells.Members()[0])
	}
	all := AllCells{Cells: []cellStatus{}}
	for _, a := range cells.Gather(ctx, r.Cells.Members(), cellTimeout, r.readCell) {
		if a.Err != nil {
			all.Missing = append(all.Missing, a.Missing())
			continue
		}
		if all.Hosts == nil {
			all.Hosts, all.withHosts = a.Value.Hosts, a.Value
		}
		a.Value.Hosts = nil
		all.Cells = append(all.Cells, cellStatus{a.Name, a.Value})
	}
	return all, nil
}

func (r Reader) readCell(ctx context.Context, cell cells.Member) (Service, error) {
	cfg := r.Config.In(cell)
	volume, err := r.Volume(ctx, cfg, r.Redis)
	if err != nil {
		return Service{}, err
	}
	return read(ctx, r.Redis, cfg, volume, searchTimeout)
}

// Verdict returns the verdict on the service: of several cells, what each of them has, after its name.
func (r Reader) Verdict(ctx context.Context) (operate.Verdict, error) {
	found, err := r.Read(ctx)
	if err != nil {
		return operate.Verdict{}, err
	}
	all, several := found.(AllCells)
	if !several {
		return found.(Service).Verdict, nil
	}
	verdicts := map[string]operate.Verdict{}
	for _, c := range all.Cells {
		verdicts[c.Cell] = c.Verdict
	}
	return operate.MergeVerdicts(verdicts, all.Missing), nil
}

// AllCells is the state of a service of several cells.
type AllCells struct {
	Cells   []cellStatus    `json:"cells"`
	Hosts   []hosts.Host    `json:"hosts,omitempty"`   // of all cells
	Missing []cells.Missing `json:"missing,omitempty"` // that do not answer

	withHosts Service // prints Hosts
}

type cellStatus struct {
	Cell string `json:"cell"`
	Service
}

// Table prints the state of each cell.
func (a AllCells) Table(w io.Writer) {
	for i, c := range a.Cells {
		if i > 0 {
			fmt.Fprintln(w)
		}
		fmt.Fprintf(w, "cell\t%s\n", c.Cell)
		c.Service.Table(w)
	}
	a.withHosts.HostRows(w)
	for _, m := range a.Missing {
		fmt.Fprintf(w, "\ncell\t%s\nhealth\t%s\n", m.Cell, "no answer: "+term.Printable(m.Error))
	}
}
