package volume

import (
	"context"
	"encoding/json"
	"os"
	"path/filepath"
	"time"

	"lockstep/events"
	"lockstep/internal/disk"
)

// ListedRef is a ref as the last poll has found it at the remote. The zero ref is the plain name.
type ListedRef struct {
	Commit  string    `json:"commit,omitempty"` // empty if the remote lacks the ref
	Changed time.Time `json:"changed,omitzero"` // as far as it is known; zero if it has not since the first poll
	Unfit   bool      `json:"unfit,omitempty"`  // Commit is that of a tree or a blob, which cannot be published
}

// listed is a file with the listed refs in JSON.
func (f folder) listed() string { return filepath.Join(f.dir, "listed") }

// ListedRefs returns the refs that [Volume.SetListedRefs] has stored, nil if none were, or if a power cut has
// damaged the file: the next poll restores it. It needs no lease.
func (v *Volume) ListedRefs(repo events.RepoPath) (map[events.Ref]ListedRef, error) {
	refs := readCache[map[events.Ref]ListedRef](v.folder(repo).listed())
	if refs == nil {
		return nil, v.checkMounted()
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
	content, err := json.Marshal(refs)
	if err != nil {
		return err
	}
	return f.guarded(ctx, fence, func() error {
		if refs == nil {
			return f.discard(f.listed())
		}
		return disk.Error("write the listed refs", disk.ReplaceUnsynced(f.listed(), content))
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
