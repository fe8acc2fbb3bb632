package volume

import (
	"context"
	"slices"

	"lockstep/events"
	"lockstep/internal/disk"
	"lockstep/internal/git/checkout"
)

const (
	maxParts     = 1000 // submodules of a tree, those of submodules included
	maxPartDepth = 8    // submodules within submodules
)

// obtainParts fetches the submodules that the plan's tree needs and the repository does not have, and adds
// their files to the plan. It does nothing if neither the plan's tree nor the last one is to have any.
func (s *syncer) obtainParts(ctx context.Context) error {
	s.parts = checkout.Parts{Mode: string(s.req.Submodules)}
	if s.parts.Mode == "" && s.last.Parts().Mode == "" {
		return nil
	}
	if err := s.forgetUnreadable(ctx); err != nil {
		return err
	}
	if s.parts.Mode != "" {
		s.progress.begin(events.PhaseFetch, "bytes", 0)
		var err error
		if s.parts.List, err = s.collectParts(ctx); err != nil {
			return err
		}
	}
	if err := s.planParts(ctx, s.parts); err != nil {
		return err
	}
	s.v.done("parts")
	return nil
}

// planParts adds the files of the submodules that the repository already has to the plan.
func (b *builder) planParts(ctx context.Context, parts checkout.Parts) error {
	b.partDirs = nil
	for _, dir := range slices.Concat(b.f.partsOf(b.last.Parts()), b.f.partsOf(parts)) {
		if !slices.Contains(b.partDirs, dir) {
			b.partDirs = append(b.partDirs, dir)
		}
	}
	b.objects.Add(b.partDirs...)
	return b.plan.SetParts(ctx, b.objects, parts, b.v.cfg.MaxTreeFiles)
}

// keepParts prepares a copy of a tree with the same submodules, none of which is fetched.
func (b *builder) keepParts(ctx context.Context, tree string) error {
	parts, err := checkout.GitDirOf(tree).Parts()
	if err != nil {
		return disk.Error("read the submodules of a tree", err)
	}
	if parts.Mode == "" {
		return nil
	}
	if err := b.forgetUnreadable(ctx); err != nil {
		return err
	}
	return b.planParts(ctx, parts)
}

// hasParts reports whether a tree has the submodules that are asked for. Until they are collected, and wanted
// is nil, it is false if some are missing: they may be available now.
func (s *syncer) hasParts(tree string, wanted *checkout.Parts) bool {
	parts, err := checkout.GitDirOf(tree).Parts()
	if err != nil {
		return false
	}
	if wanted != nil {
		return parts.Equal(*wanted)
	}
	return parts.Mode == string(s.req.Submodules) && len(parts.Missing()) == 0
}

// noteParts records the submodules of the tree of a ref. A submodule whose remote did not answer may be
// available now, unlike one that does not exist.
func (p *Published) noteParts(ref events.Ref, tree string) {
	delete(p.Submodules, ref)
	delete(p.Incomplete, ref)
	delete(p.Missing, ref)
	parts, err := checkout.GitDirOf(tree).Parts()
	if err != nil || parts.Mode == "" {
		return
	}
	p.Submodules[ref] = events.Submodules(parts.Mode)
	missing := parts.Missing()
	if len(missing) > 0 {
		p.Missing[ref] = missing
	}
	if slices.ContainsFunc(missing, func(m checkout.Part) bool { return isTransient(m.Class) }) {
		p.Incomplete[ref] = true
	}
}

// lackParts removes the files of submodules whose LFS objects cannot be downloaded, given as errors by path,
// from the plan. It returns an error that ends the sync.
func (s *syncer) lackParts(ctx context.Context, failed map[string]error) error {
	var parts []checkout.Part
	for _, part := range s.parts.List { // sorted, so that a submodule precedes those within it
		if slices.ContainsFunc(parts, func(p checkout.Part) bool { return !p.IsFilled() && isBelow(part.Path, p.Path) }) {
			continue
		}
		if err := failed[part.Path]; err != nil {
			from, _ := s.partRemote(ctx, part.URL) // whatever the error, it names the credential
			part.Credential = from.Credential
			if err := s.accept(ctx, &part, err); err != nil {
				return err
			}
		}
		parts = append(parts, part)
	}
	s.parts.List = parts
	return s.planParts(ctx, s.parts)
}
