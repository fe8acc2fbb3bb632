package cli

import (
	"context"
	"errors"
	"maps"
	"slices"
	"strconv"
	"time"

	"github.com/redis/go-redis/v9"

	"lockstep/internal/app"
	"lockstep/internal/config"
	"lockstep/internal/operate"
	"lockstep/internal/state"
	"lockstep/internal/status"
	"lockstep/internal/term"
	"lockstep/internal/volume"
)

// listedRepo is a repository in the output of ls.
type listedRepo struct {
	operate.RepoSummary
	Cell   string  `json:"cell,omitempty"`   // if there are several
	Ref    string  `json:"ref,omitempty"`    // the default branch, or else the first published ref
	Commit string  `json:"commit,omitempty"` // published for Ref
	Volume *onDisk `json:"volume,omitempty"`
}

// describeRepos adds the published commits and, if the volume is mounted, the disk usage. It returns the
// complete list, even if err reports that the disk usage of some repositories cannot be read, or nil.
func describeRepos(
	ctx context.Context, cfg config.Config, client redis.UniversalClient, cell string, summaries []operate.RepoSummary,
) ([]listedRepo, error) {
	volume, err := app.ViewVolume(ctx, cfg, client)
	if err != nil {
		return nil, err
	}
	names := make([]string, len(summaries))
	for i, summary := range summaries {
		names[i] = summary.Repo
	}
	published, err := state.NewStore(client, cfg.Namespace()).LoadHeads(ctx, names)
	if err != nil {
		return nil, err
	}
	list := make([]listedRepo, len(summaries))
	for i, summary := range summaries {
		disk, diskErr := describe(volume, summary.Repo)
		err = errors.Join(err, diskErr)
		heads := published[i].Heads()
		list[i] = listedRepo{RepoSummary: summary, Cell: cell, Ref: published[i].Default(), Volume: disk}
		if refs := slices.Sorted(maps.Keys(heads)); heads[list[i].Ref] == "" && len(refs) > 0 {
			list[i].Ref = refs[0]
		}
		list[i].Commit = heads[list[i].Ref]
	}
	return list, err
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
			{Head: "STATUS", Text: repoStatus},
			{Head: "SIZE", Text: onVolume(func(d *onDisk) string { return volume.BytesText(d.Bytes) }), Optional: true},
			{Head: "FILES", Text: onVolume(func(d *onDisk) string {
				return strconv.FormatInt(d.Files, 10)
			}), Wide: true, Optional: true},
			{Head: "TREES", Text: onVolume(func(d *onDisk) string { return strconv.Itoa(d.Trees) }), Wide: true, Optional: true},
			{Head: "STORE", Text: onVolume(func(d *onDisk) string { return strconv.Itoa(d.Store) }), Wide: true, Optional: true},
			{Head: "ADOPTED", Text: onVolume((*onDisk).adopted), Wide: true, Optional: true},
			{Head: "FENCE", Text: func(r listedRepo) string { return strconv.FormatUint(r.Fence, 10) }, Wide: true},
			{Head: "FAILURES", Text: func(r listedRepo) string { return strconv.Itoa(r.Circuit.Failures) }, Wide: true},
			{Head: "CIRCUIT", Text: func(r listedRepo) string { return status.Circuit(r.Circuit) }, Wide: true},
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
