package volume

import (
	"bufio"
	"bytes"
	"context"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"strconv"
	"strings"
	"time"

	"lockstep/events"
	"lockstep/internal/disk"
)

// ListedRef is a ref as the last poll has found it at the remote. The zero ref is the plain name.
type ListedRef struct {
	Commit  string    // empty if the remote lacks the ref
	Changed time.Time // when that changed, as far as it is known; zero if it has not since the first poll
	Unfit   bool      // Commit is that of a tree or a blob, which cannot be published
}

// unfit precedes the ID of what is not a commit in the file of listed refs.
const unfit = "!"

// listedHead is the first line of the file of listed refs. It distinguishes one without refs from one that a
// power cut has emptied.
const listedHead = "commit changed ref\n"

// listed is a file with a line for each ref after the first: its commit, the nanoseconds of when that
// changed, and its name.
func (f folder) listed() string { return filepath.Join(f.dir, "listed") }

// ListedRefs returns the refs that [Volume.SetListedRefs] has stored, nil if none were, or if a power cut has
// emptied the file. It needs no lease. Damaged lines are ignored: the next poll restores their refs.
func (v *Volume) ListedRefs(repo events.RepoPath) (map[events.Ref]ListedRef, error) {
	content, err := os.ReadFile(v.folder(repo).listed())
	if errors.Is(err, os.ErrNotExist) {
		return nil, v.checkMounted()
	}
	if err != nil || len(content) == 0 {
		return nil, disk.Error("read the listed refs", err)
	}
	refs := map[events.Ref]ListedRef{}
	for lines := bufio.NewScanner(bytes.NewReader(content)); lines.Scan(); {
		commit, rest, _ := strings.Cut(lines.Text(), " ")
		at, name, _ := strings.Cut(rest, " ")
		ref, err := events.ParseRef(name)
		nanos, bad := strconv.ParseInt(at, 10, 64)
		if err != nil || bad != nil {
			continue
		}
		one := ListedRef{Commit: strings.TrimPrefix(commit, unfit), Unfit: strings.HasPrefix(commit, unfit)}
		if nanos != 0 {
			one.Changed = time.Unix(0, nanos)
		}
		refs[ref] = one
	}
	return refs, nil
}

// SetListedRefs replaces the listed refs; nil deletes them. The caller holds the lease on repo with the
// fence. The file is not flushed: after a power cut, the order in which refs have changed may be lost.
func (v *Volume) SetListedRefs(
	ctx context.Context, repo events.RepoPath, fence uint64, refs map[events.Ref]ListedRef,
) error {
	if err := v.checkRequest(repo, fence); err != nil {
		return err
	}
	f := v.folder(repo)
	if err := f.recordUnsynced(ctx, fence); err != nil {
		return err
	}
	var content bytes.Buffer
	content.WriteString(listedHead)
	for ref, one := range refs {
		nanos := int64(0)
		if !one.Changed.IsZero() {
			nanos = one.Changed.UnixNano()
		}
		if one.Unfit {
			content.WriteString(unfit)
		}
		fmt.Fprintf(&content, "%s %d %s\n", one.Commit, nanos, ref)
	}
	return f.guarded(ctx, fence, func() error {
		if refs == nil {
			return f.discard(f.listed())
		}
		return disk.Error("write the listed refs", disk.ReplaceUnsynced(f.listed(), content.Bytes()))
	})
}

// publishedAt returns when a link was made, or the zero time.
func publishedAt(path string) time.Time {
	info, err := os.Lstat(path)
	if err != nil {
		return time.Time{}
	}
	return info.ModTime()
}
