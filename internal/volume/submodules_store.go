package volume

import (
	"context"
	"crypto/sha256"
	"encoding/hex"
	"errors"
	"os"
	"path/filepath"

	"lockstep/events"
	"lockstep/internal/disk"
	"lockstep/internal/git/checkout"
)

// parts is the folder of the repository's submodules.
func (f folder) parts() string { return filepath.Join(f.dir, "parts") }

// part is the store of one commit of a submodule. It is complete, and never changes: trees read nothing from it.
func (f folder) part(p checkout.Part) string {
	sum := sha256.Sum256([]byte(events.CanonicalRemote(p.URL)))
	return filepath.Join(f.parts(), hex.EncodeToString(sum[:16])+"-"+p.Commit.String())
}

// partsOf returns the stores of the submodules that have files.
func (f folder) partsOf(parts checkout.Parts) (dirs []string) {
	for _, part := range parts.Filled() {
		dirs = append(dirs, f.part(part))
	}
	return dirs
}

// dropParts discards the stores of submodules, because one may be damaged.
func (s *syncer) dropParts(ctx context.Context, parts checkout.Parts) error {
	return s.f.guarded(ctx, s.fence, func() error {
		for _, dir := range s.f.partsOf(parts) {
			if err := s.f.discard(dir); err != nil {
				return err
			}
		}
		return nil
	})
}

// listParts lists the stores of submodules.
func (f folder) listParts() (dirs []string, err error) {
	entries, err := disk.ReadDir(f.parts())
	if err != nil {
		return nil, disk.Error("list the submodules", err)
	}
	for _, entry := range entries {
		dirs = append(dirs, filepath.Join(f.parts(), entry.Name()))
	}
	return dirs, nil
}

// pruneParts discards the stores of submodules that no tree has.
func (h *holder) pruneParts(ctx context.Context) error {
	dirs, err := h.f.listParts()
	if err != nil || len(dirs) == 0 {
		return err
	}
	trees, err := disk.ReadDir(h.f.trees())
	if err != nil {
		return disk.Error("list the trees", err)
	}
	needed := map[string]bool{}
	for _, tree := range trees {
		parts, err := checkout.GitDirOf(h.f.tree(tree.Name())).Parts()
		if err != nil && !errors.Is(err, os.ErrNotExist) {
			return nil // unknown which ones the tree uses: keep all
		}
		for _, part := range parts.List {
			needed[h.f.part(part)] = true
		}
	}
	return h.f.guarded(ctx, h.fence, func() error {
		for _, dir := range dirs {
			if needed[dir] {
				continue
			}
			if err := h.f.discard(dir); err != nil {
				return err
			}
		}
		return nil
	})
}
