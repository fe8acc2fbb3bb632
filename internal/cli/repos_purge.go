package cli

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"io"
	"strings"
	"time"

	"github.com/spf13/cobra"

	"lockstep/events"
	"lockstep/internal/app"
	"lockstep/internal/cli/term"
	"lockstep/internal/git/object"
	"lockstep/internal/volume"
	"lockstep/locking"
)

func newReposPurgeCommand(std term.Streams) *cobra.Command {
	var flags maintenanceFlags
	var purge volume.PurgeRequest
	cmd := &cobra.Command{
		Use:   "purge COMMIT [owner/name…]",
		Short: "Delete a leaked commit from the volume",
		Long: "Delete a commit that must not be kept, such as one with a secret, from all repositories on the volume or from the named\n" +
			"ones, following those that have moved. Deletes the commit, the replaced commits that descend from it, and everything\n" +
			"that only these contain, from stores, replaced trees and submodules, at once. Rewrite history at the forge and sync\n" +
			"first: while a published ref contains the commit, nothing of its repository is deleted. Trees that readers and\n" +
			"workspaces pin are listed, and deleted by the first patrol after they are released. A purged result notifies apps and\n" +
			"followers of the commit. Exit code 1 unless all repositories are free of it.",
		Example: "  lockstep repos purge d670460b4b4aece5915caf5c68d12f560a9fe3e4 --dry-run --root /srv/repos --redis redis://127.0.0.1:6379\n" +
			"  lockstep repos purge d670460b4b4aece5915caf5c68d12f560a9fe3e4 acme/widgets --root /srv/repos --redis redis://127.0.0.1:6379",
		Args: func(_ *cobra.Command, args []string) error {
			if len(args) == 0 || !object.IsID(args[0]) || object.ParseID(args[0]).IsZero() {
				return term.UsageError(errors.New("want the full hash of a commit, of 40 or 64 hexadecimal digits: see git log, or the forge"))
			}
			return nil
		},
		ValidArgsFunction: func(cmd *cobra.Command, args []string, prefix string) ([]string, cobra.ShellCompDirective) {
			if len(args) == 0 {
				return nil, cobra.ShellCompDirectiveNoFileComp
			}
			return completeFrom(std, repositories)(cmd, args[1:], prefix)
		},
		RunE: func(cmd *cobra.Command, args []string) error {
			purge.Commit = strings.ToLower(args[0])
			repos, err := parseRepos(args[1:])
			if err != nil {
				return err
			}
			if purge.Replaced && len(repos) == 0 {
				return term.UsageError(errors.New("--replaced: name the repositories"))
			}
			return flags.onVolume(cmd, std, func(ctx context.Context, m maintainer) error {
				list, failures := m.purgeAll(ctx, repos, purge)
				if err := flags.out.Show(std, list, list.Table); err != nil {
					return err
				}
				switch {
				case ctx.Err() != nil:
					return context.Cause(ctx)
				case failures > 0:
					return fmt.Errorf("%d repositories may still have %.12s", failures, purge.Commit)
				case len(list) == 0:
					fmt.Fprintf(std.Stderr, "lockstep: no repository on the volume has %.12s\n", purge.Commit)
				}
				return nil
			})
		},
	}
	flags.addCommon(cmd)
	cmd.Flags().BoolVar(&purge.DryRun, "dry-run", false, "show what would be deleted, and change nothing")
	cmd.Flags().BoolVar(&purge.Replaced, "replaced", false, "delete all other replaced trees of the named repositories, too: where history is cut, they may descend from the commit")
	return cmd
}

// purgeRun purges a commit from repositories.
type purgeRun struct {
	maintainer
	request volume.PurgeRequest
	named   bool // the repositories are named
	list    purgedList
	rows    map[string]int    // of list, by repository
	moved   []events.RepoPath // where repositories have moved
}

// purgeAll purges a commit from the given repositories, or from the whole volume if there are none.
// It follows a repository that has moved, even to a path that this run has already visited.
func (m maintainer) purgeAll(ctx context.Context, repos []events.RepoPath, purge volume.PurgeRequest) (list purgedList, failed int) {
	r := purgeRun{maintainer: m, request: purge, named: len(repos) > 0, list: purgedList{}, rows: map[string]int{}}
	visit := func(repo events.RepoPath, err error) error { return r.visit(ctx, repo, err) }
	m.each(ctx, repos, visit)
	followed := map[string]bool{}
	for ; len(r.moved) > 0 && ctx.Err() == nil; r.moved = r.moved[1:] {
		if to := r.moved[0]; !followed[to.Key()] {
			followed[to.Key()] = true
			_ = visit(to, nil)
		}
	}
	for _, p := range r.list {
		if p.Error != "" || p.State == volume.PurgePublished || p.State == volume.PurgePinned || p.State == volume.PurgePresent && !purge.DryRun {
			failed++
		}
	}
	return r.list, failed
}

// visit purges the commit from one repository, and lists the outcome.
func (r *purgeRun) visit(ctx context.Context, repo events.RepoPath, err error) error {
	p := purged{Repo: repo.String(), Commit: r.request.Commit}
	if err == nil {
		err = r.purge(ctx, repo, &p)
	}
	p.Error = errorText(err)
	at, again := r.rows[p.Repo]
	switch {
	case err == nil && p.State == volume.PurgeAbsent && (again || !r.named):
	case again && !repo.IsZero():
		r.list[at] = p
	default:
		r.rows[p.Repo] = len(r.list)
		r.list = append(r.list, p)
	}
	return err
}

// purge purges the commit from one repository, and announces that if the repository had it or was named.
func (r *purgeRun) purge(ctx context.Context, repo events.RepoPath, p *purged) error {
	return app.WithLease(ctx, r.volume, r.locker, repo, "purge", locking.WaitInLine, func(ctx context.Context, fence uint64) error {
		purge := r.request
		purge.Repo, purge.Fence = repo, fence
		result, err := r.volume.Purge(ctx, purge)
		p.set(result)
		if !result.MovedTo.IsZero() {
			r.moved = append(r.moved, result.MovedTo)
		}
		if err != nil || r.redis == nil || purge.DryRun || result.State == volume.PurgePublished || result.State == volume.PurgeAbsent && !r.named {
			return err
		}
		if err := app.AnnouncePurge(ctx, r.redis, r.namespace, repo, fence, purge.Commit); err != nil {
			return fmt.Errorf("it is %s here, but apps and followers are not notified: run the command again: %w", result.State, err)
		}
		return nil
	})
}

// purged is the outcome of purge for one repository.
type purged struct {
	Repo      string                    `json:"repo"`
	Commit    string                    `json:"commit"`
	State     volume.PurgeState         `json:"state,omitempty"`
	Published []volume.PurgePublication `json:"published,omitempty"`
	Pins      []volume.Pin              `json:"pins,omitempty"`
	Trees     []string                  `json:"trees,omitempty"`
	Objects   int                       `json:"objects"`
	Freed     int64                     `json:"freed"` // bytes
	Shared    []volume.SharedFile       `json:"shared,omitempty"`
	More      int                       `json:"shared_more,omitempty"`    // shared files that are not listed
	NoParents bool                      `json:"shared_unknown,omitempty"` // which files the commit introduced is not known
	Unknown   []string                  `json:"unknown,omitempty"`
	Error     string                    `json:"error,omitempty"`
}

func (p *purged) set(r volume.PurgeResult) {
	p.State, p.Published, p.Pins, p.Trees, p.Objects, p.Freed = r.State, r.Published, r.Pins, r.Trees, r.Objects, r.Freed
	p.Shared, p.More, p.NoParents, p.Unknown = r.Shared, r.SharedCount-len(r.Shared), r.SharedCount > 0 && !r.Known, r.Unknown
}

type purgedList []purged

func (l purgedList) Table(w io.Writer) {
	fmt.Fprintln(w, "REPOSITORY\tSTATE\tOBJECTS\tTREES\tFREED\tERROR")
	for _, p := range l {
		fmt.Fprintf(w, "%s\t%s\t%d\t%d\t%s\t%s\n", p.Repo, term.Dash(string(p.State)), p.Objects, len(p.Trees), volume.BytesText(p.Freed), term.Dash(p.Error))
		for _, at := range p.Published {
			part := ""
			if at.Part != "" {
				part = fmt.Sprintf(", in the submodule %q", at.Part)
			}
			fmt.Fprintf(w, "  published as %q: %s at %.12s has it%s; rewrite its history at the forge, sync it, and run this again\n", at.Name, at.Ref, at.Commit, part)
		}
		for _, pin := range p.Pins {
			fmt.Fprintf(w, "  %s\n", pinText(pin))
		}
		p.shared(w)
		if len(p.Unknown) > 0 {
			fmt.Fprintf(w, "  history is cut: %s may descend from it; use --replaced if they do\n", shortened(p.Unknown))
		}
	}
}

func (p purged) shared(w io.Writer) {
	if p.NoParents {
		fmt.Fprintf(w, "  its parents are not kept, so it is not known which files it introduced; %d of its files are also in other commits\n", len(p.Shared)+p.More)
		return
	}
	for _, file := range p.Shared {
		fmt.Fprintf(w, "  its %q stays: %s\n", file.Path, cmp.Or(quotedName(file.In), "an older commit that is kept has the same content"))
	}
	if p.More > 0 {
		fmt.Fprintf(w, "  and %d more of its files\n", p.More)
	}
}

func quotedName(at string) string {
	if at == "" {
		return ""
	}
	return fmt.Sprintf("%q has the same content", at)
}

func shortened(commits []string) string {
	const most = 5
	short := make([]string, 0, most)
	for _, commit := range commits[:min(len(commits), most)] {
		short = append(short, fmt.Sprintf("%.12s", commit))
	}
	text := strings.Join(short, ", ")
	if more := len(commits) - most; more > 0 {
		text += fmt.Sprintf(" and %d more", more)
	}
	return text
}

func pinText(pin volume.Pin) string {
	since := ""
	if !pin.Since.IsZero() {
		since = " since " + pin.Since.Format(time.RFC3339)
	}
	switch pin.Kind {
	case volume.PinAdopted:
		return fmt.Sprintf("adopted clone %q has it; delete that", pin.Path)
	case volume.PinFetched:
		return fmt.Sprintf("the .git of %q has it, as somebody fetched into it; delete it there", pin.Path)
	case volume.PinProcess:
	}
	if pin.PID == 0 {
		return fmt.Sprintf("pinned: %q, by a process that has ended since, or that is in another container or on another machine", pin.Path)
	}
	return fmt.Sprintf("pinned: %q, by process %d (%s)%s", pin.Path, pin.PID, term.Printable(pin.Name), since)
}
