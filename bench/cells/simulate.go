// Package cells measures the placement of repositories in cells, and what a cell costs beside others on a Redis Cluster.
package cells

import (
	"context"
	"errors"
	"fmt"
	"io"
	"math"
	"os"
	"runtime"
	"time"

	"github.com/spf13/cobra"

	"lockstep/bench/rig"
	"lockstep/events"
	"lockstep/internal/cells"
	"lockstep/internal/cli/term"
)

// simulation holds the flags.
type simulation struct{ repos, cells int }

// NewPlacementCommand returns the command bench placement.
func NewPlacementCommand(std term.Streams) *cobra.Command {
	var s simulation
	cmd := rig.RedisCommand(std, &cobra.Command{
		Use:   "placement",
		Short: "Simulate the placement of repositories in cells",
		Long: "Place many repositories in many cells of three weights: how far each cell is from its share, how many repositories\n" +
			"an added and a drained cell move, how long it takes to place one, and what the directory takes in memory and in\n" +
			"Redis when all that are to be moved to the added cell have been. It fails if a cell is more than 3 % from its\n" +
			"share, or if placing takes more than 2 µs. Without --redis it starts a private redis-server.",
		Example: "  go run ./bench placement\n  go run ./bench placement --repos 100000 --cells 5 --json",
	}, s.check, s.run)
	cmd.Flags().IntVar(&s.repos, "repos", 1_000_000, "number of repositories")
	cmd.Flags().IntVar(&s.cells, "cells", 64, "number of cells")
	return cmd
}

func (s *simulation) check(func(string) bool) error {
	if s.repos < 1000 || s.cells < 2 || s.cells >= cells.MaxCells {
		return fmt.Errorf("want at least 1,000 repositories, and 2 to %d cells", cells.MaxCells-1)
	}
	return nil
}

// Placement is the report of the simulation.
type Placement struct {
	Repos     int           `json:"repos"`
	Cells     int           `json:"cells"`
	WorstOff  float64       `json:"worst_off"`      // largest difference of a cell from its share, relative to that
	Noise     float64       `json:"expected_noise"` // what it would be with ideal random numbers
	AddMoved  float64       `json:"add_moved"`      // share of the repositories that an added cell moves
	AddShare  float64       `json:"add_share"`      // share of the weights that it has
	DrainMove float64       `json:"drain_moved"`
	DrainHad  float64       `json:"drain_had"` // share of the repositories that the drained cell had
	Strays    int           `json:"strays"`    // moved from or to another cell than the added or drained one
	Place     time.Duration `json:"place_ns"`  // of a processor, to place one, with the overrides
	Overrides int           `json:"overrides"` // once all were moved to the added cell
	Memory    int64         `json:"memory"`    // bytes of the copy in memory, with the overrides
	Redis     int64         `json:"redis"`     // bytes of the directory in Redis, with the overrides
	Load      time.Duration `json:"load_ns"`   // to read it
}

// Table prints the report as text.
func (p Placement) Table(w io.Writer) error {
	list := rig.NewList(w)
	for _, row := range [][2]string{
		{"repositories, cells", fmt.Sprintf("%d, %d", p.Repos, p.Cells)},
		{"cell farthest from its share", fmt.Sprintf("%.2f %% (chance alone: about %.2f %%)", 100*p.WorstOff, 100*p.Noise)},
		{"moved by an added cell", fmt.Sprintf("%.2f %%, its share is %.2f %%", 100*p.AddMoved, 100*p.AddShare)},
		{"moved by a drained cell", fmt.Sprintf("%.2f %%, it had %.2f %%", 100*p.DrainMove, 100*p.DrainHad)},
		{"moved between other cells", fmt.Sprint(p.Strays)},
		{"time to place one", p.Place.String()},
		{"overrides when all were moved", fmt.Sprint(p.Overrides)},
		{"directory in memory", fmt.Sprintf("%.1f MB", float64(p.Memory)/1e6)},
		{"directory in Redis", fmt.Sprintf("%.1f MB, read in %v", float64(p.Redis)/1e6, p.Load.Round(time.Millisecond))},
	} {
		if _, err := fmt.Fprintf(list, "%s\t%s\n", row[0], row[1]); err != nil {
			return err
		}
	}
	return list.Flush()
}

// Limits of the verdict.
const (
	maxOff   = 0.03
	maxPlace = 2 * time.Microsecond
)

// Verdict returns an error if a target is missed.
func (p Placement) Verdict() error {
	var errs []error
	if p.WorstOff > max(maxOff, p.Noise) {
		errs = append(errs, fmt.Errorf("a cell is %.2f %% from its share, want at most %.0f %%", 100*p.WorstOff, 100*maxOff))
	}
	if p.Place > maxPlace {
		errs = append(errs, fmt.Errorf("placing takes %v, want at most %v", p.Place, maxPlace))
	}
	if p.Strays > 0 {
		errs = append(errs, fmt.Errorf("%d repositories move between cells whose weights have not changed", p.Strays))
	}
	return errors.Join(errs...)
}

// weights are those of the cells, in turn. Each cell has at least half of the mean share.
var weights = []int{100, 75, 150}

func (s *simulation) run(ctx context.Context, env *rig.Env, server *rig.Redis) (rig.Report, error) {
	p := Placement{Repos: s.repos, Cells: s.cells}
	paths, err := repositories(s.repos)
	if err != nil {
		return nil, err
	}
	shares := make([]cells.Share, s.cells, s.cells+1)
	total := 0
	for i := range shares {
		shares[i] = cells.Share{Name: fmt.Sprintf("cell-%02d", i), Weight: weights[i%len(weights)]}
		total += shares[i].Weight
	}
	env.Progress("placing %d repositories", s.repos)
	before := place(cells.NewPlacement(shares), paths)
	p.WorstOff, p.Noise = balance(shares, before, total)

	added := cells.Share{Name: "added", Weight: 100}
	after := place(cells.NewPlacement(append(shares, added)), paths)
	p.AddShare = float64(added.Weight) / float64(total+added.Weight)
	p.AddMoved, p.Strays = moved(before, after, added.Name, true)

	drained := shares[0].Name
	after = place(cells.NewPlacement(shares[1:]), paths)
	had := 0
	for _, name := range before {
		if name == drained {
			had++
		}
	}
	var strays int
	p.DrainMove, strays = moved(before, after, drained, false)
	p.DrainHad, p.Strays = float64(had)/float64(len(before)), p.Strays+strays
	err = s.directory(ctx, env, server, &p, shares, added, paths)
	return p, err
}

func repositories(n int) ([]events.RepoPath, error) {
	paths := make([]events.RepoPath, n)
	var err error
	for i := range paths {
		if paths[i], err = events.ParseRepoPath(fmt.Sprintf("owner-%d/project-%d", i%4999, i)); err != nil {
			return nil, err
		}
	}
	return paths, nil
}

func place(p *cells.Placement, paths []events.RepoPath) []string {
	names := make([]string, len(paths))
	for i, path := range paths {
		names[i] = p.Of(path.Key())
	}
	return names
}

// balance returns the largest difference of a cell from its share, and three standard deviations of the smallest cell.
func balance(shares []cells.Share, placed []string, total int) (worst, noise float64) {
	count := map[string]int{}
	for _, name := range placed {
		count[name]++
	}
	for _, share := range shares {
		want := float64(len(placed)) * float64(share.Weight) / float64(total)
		worst = max(worst, math.Abs(float64(count[share.Name])-want)/want)
		noise = max(noise, 3/math.Sqrt(want))
	}
	return worst, noise
}

// moved returns the share that is placed elsewhere, and how many of them neither move to the cell nor, unless to is set, from it.
func moved(before, after []string, cell string, to bool) (share float64, strays int) {
	n := 0
	for i := range before {
		if before[i] == after[i] {
			continue
		}
		n++
		if to && after[i] != cell || !to && before[i] != cell {
			strays++
		}
	}
	return float64(n) / float64(len(before)), strays
}

// directory measures a real directory, after each repository has been moved to the added cell.
func (s *simulation) directory(ctx context.Context, env *rig.Env, server *rig.Redis, p *Placement, shares []cells.Share, added cells.Share, paths []events.RepoPath) error {
	prefix := rig.NewNamespace()
	defer server.Clear(ctx, string(prefix))
	d, err := cells.OpenOrNew(ctx, server.Client, prefix)
	if err != nil {
		return err
	}
	for _, share := range append(shares, added) {
		if share.Name == added.Name {
			if err := d.Settle(ctx, d.Epoch()); err != nil {
				return err
			}
		}
		if _, err := d.Add(ctx, share.Name, "", share.Weight); err != nil {
			return err
		}
	}
	env.Progress("moving repositories to the added cell")
	for _, path := range paths {
		if to := d.Target(path); to.Name == added.Name {
			if _, err := d.Flip(ctx, path, d.Place(path).Name, to.Name); err != nil {
				return err
			}
			p.Overrides++
		}
	}
	began := time.Now()
	base := heap()
	copied, err := cells.Open(ctx, server.Client, prefix)
	if err != nil {
		return err
	}
	p.Load = time.Since(began)
	p.Memory = heap() - base
	for _, key := range []string{"cells", "cells:epoch", "cells:placed", "cells:log"} {
		size, err := server.Client.MemoryUsage(ctx, string(prefix)+key, 0).Result()
		if err != nil {
			return err
		}
		p.Redis += size
	}
	spent, err := rig.CPUTime(os.Getpid())
	if err != nil {
		return err
	}
	for _, path := range paths {
		copied.Place(path)
	}
	after, err := rig.CPUTime(os.Getpid())
	p.Place = (after - spent) / time.Duration(len(paths))
	return err
}

// heap returns the bytes of live objects.
func heap() int64 {
	runtime.GC()
	var m runtime.MemStats
	runtime.ReadMemStats(&m)
	return int64(m.HeapAlloc)
}
