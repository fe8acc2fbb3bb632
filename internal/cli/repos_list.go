package cli

import (
	"context"
	"errors"
	"fmt"
	"strconv"
	"time"

	"lockstep/internal/app"
	"lockstep/internal/operate"
	"lockstep/internal/status"
	"lockstep/internal/term"
	"lockstep/internal/volume"
)

// listedRepo is a repository in the output of ls.
type listedRepo struct {
	operate.RepoLine
	Volume *onDisk `json:"volume,omitempty"`
}

// measure adds the disk usage of repositories whose volume is mounted. It warns if that of some cannot be read.
func measure(ctx context.Context, std term.Streams, d deployment, lines []operate.RepoLine) ([]listedRepo, error) {
	list, volumes := make([]listedRepo, len(lines)), map[string]*volume.Volume{}
	var unread error
	for i, line := range lines {
		mounted, known := volumes[line.Cell]
		if !known {
			cell, named := d.cells.Cell(line.Cell)
			if !named {
				cell = d.cells.Members()[0]
			}
			var err error
			if mounted, err = app.ViewVolume(ctx, d.cfg.In(cell), d.redis); err != nil {
				return nil, err
			}
			volumes[line.Cell] = mounted
		}
		disk, err := describe(mounted, line.Repo)
		list[i], unread = listedRepo{line, disk}, errors.Join(unread, err)
	}
	if unread != nil {
		fmt.Fprintf(std.Stderr, "lockstep: %s\n", term.OneLine(unread))
	}
	return list, nil
}

// repoColumns returns how ls prints repositories.
func repoColumns(prefix bool) term.List[listedRepo] {
	onVolume := func(text func(*onDisk) string) func(listedRepo) string {
		return func(r listedRepo) string {
			if r.Volume == nil {
				return ""
			}
			return text(r.Volume)
		}
	}
	empty := "no repositories yet; watch one with lockstep watch add URL --app NAME, or sync one with lockstep sync URL"
	if prefix {
		empty = "no repositories with this prefix; see lockstep repos ls"
	}
	return term.List[listedRepo]{
		Columns: []term.Column[listedRepo]{
			{Head: "REPOSITORY", Text: func(r listedRepo) string { return r.Repo }},
			{Head: "CELL", Text: func(r listedRepo) string { return r.Cell }, Optional: true},
			{Head: "REF", Text: func(r listedRepo) string { return shortRef(r.Ref) }},
			{Head: "COMMIT", Text: func(r listedRepo) string { return r.Commit[:min(12, len(r.Commit))] }},
			{Head: "SYNCED", Time: func(r listedRepo) time.Time { return timeOf(r.Synced) }},
			{Head: "ANSWERED", Time: func(r listedRepo) time.Time { return r.Answered }, Wide: true},
			{Head: "STATUS", Text: repoStatus},
			{Head: "SIZE", Text: onVolume(func(d *onDisk) string { return volume.BytesText(d.Bytes) }), Optional: true},
			{Head: "FILES", Text: onVolume(func(d *onDisk) string {
				return strconv.FormatInt(d.Files, 10)
			}), Wide: true, Optional: true},
			{Head: "TREES", Text: onVolume(func(d *onDisk) string { return strconv.Itoa(d.Trees) }), Wide: true, Optional: true},
			{Head: "STORE", Text: onVolume(func(d *onDisk) string { return strconv.Itoa(d.Store) }), Wide: true, Optional: true},
			{Head: "ADOPTED", Text: onVolume((*onDisk).adopted), Wide: true, Optional: true},
			{Head: "FENCE", Text: func(r listedRepo) string { return strconv.FormatUint(r.Fence, 10) }, Wide: true},
			{Head: "FAILURES", Text: func(r listedRepo) string { return strconv.Itoa(r.InARow()) }, Wide: true},
			{Head: "CIRCUIT", Text: func(r listedRepo) string { return status.Circuit(r.RepoSummary) }, Wide: true},
			{Head: "LAST ERROR", Optional: true, Text: func(r listedRepo) string {
				if len(r.Failing) == 0 {
					return ""
				}
				return status.FailureText(r.Failing[0], 100)
			}},
		},
		Name: func(r listedRepo) string { return r.Repo }, Empty: empty,
	}
}

// repoStatus returns the state of a repository in a word or two.
func repoStatus(r listedRepo) string {
	switch {
	case r.Removed != "":
		return "removed"
	case r.Circuit.OpenUntil != nil:
		return "failing, paused"
	case len(r.Failing) > 0:
		return "failing"
	case len(r.Refused) > 0:
		return "commit refused"
	case len(r.Missing) > 0:
		return status.Missing
	case r.Synced == nil:
		return "not synced yet"
	}
	return "ok"
}
